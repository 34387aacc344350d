//! A shard beside a map: random signals, timers, joins, business keys, cancels, failures, leases and dead letters, with time,
//! flushes and crashes between them. What a simple map of runs says, the shard says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::act::{cancel, completing, done, flow, keyed, next, payload, show, sleeping, spawn};
use crate::support::random::config;
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::limits::DELIVERIES_MAX_DEFAULT;
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::signal::{Accepted, Sent};
use abide_kernel::transition::start::{RejectReason, StartAnswer};
use abide_kernel::{
    Backoff, ClaimId, ErrorInfo, Join, Moment, OnConflict, Outcome, Payload, Refusal, RetryPolicy, RunId, StartSpec,
    Status, Timestamp,
};
use proptest::prelude::*;

const LEASE_MS: u64 = 1_000;
/// How often an attempt is delivered without an answer before it is set aside.
const DELIVERIES_MAX: u32 = 2;
/// How a failed step is tried again.
const RETRY_MS: u64 = 300;
const RETRIES_MAX: u32 = 2;

/// Where a run stands, as the map has it.
#[derive(Clone, Debug, PartialEq)]
enum Stand {
    Ready,
    Later { until: Timestamp },
    Held { until: Timestamp },
    Aside,
    Awaiting { name: &'static str, until: Option<Timestamp> },
    Sleeping { until: Timestamp },
    Joining { left: BTreeSet<RunId>, won: u32, lost: u32, join: Join },
    Ended(Status),
}

/// A run, as the map has it.
#[derive(Clone, Debug)]
struct Kept {
    stand: Stand,
    key: Option<String>,
    input: &'static str,
    parent: Option<RunId>,
    inbox: Vec<(u64, &'static str)>,
    signals: u64,
    dedup: BTreeMap<String, u64>,
    /// What it awaited last, and what it had received when it was claimed.
    awaits: Option<&'static str>,
    seen: u64,
    /// How often its step failed, how often its worker was lost, and how often that may be.
    retries: u32,
    reclaims: u32,
    deliveries_max: u32,
}

impl Kept {
    fn new(key: Option<String>, input: &'static str, parent: Option<RunId>) -> Self {
        Self {
            stand: Stand::Ready,
            key,
            input,
            parent,
            inbox: Vec::new(),
            signals: 0,
            dedup: BTreeMap::new(),
            awaits: None,
            seen: 0,
            retries: 0,
            reclaims: 0,
            // Children are given as they come.
            deliveries_max: if parent.is_none() { DELIVERIES_MAX } else { DELIVERIES_MAX_DEFAULT },
        }
    }

    fn status(&self) -> Status {
        match &self.stand {
            Stand::Ready | Stand::Later { .. } => Status::Runnable,
            Stand::Aside => Status::DeadLettered,
            Stand::Held { .. } => Status::Executing,
            Stand::Awaiting { .. } => Status::AwaitingSignal,
            Stand::Sleeping { .. } => Status::Sleeping,
            Stand::Joining { .. } => Status::AwaitingChildren,
            Stand::Ended(status) => *status,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.stand, Stand::Ended(_))
    }

    /// A step that goes on uses up what it awaited and was given.
    fn consume(&mut self) {
        let (awaits, seen) = (self.awaits.take(), self.seen);
        self.inbox.retain(|(id, name)| Some(*name) != awaits || *id > seen);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Start { key: Option<u8>, reuse: bool, other: bool },
    Claim,
    Done(u8),
    Next(u8),
    Await { run: u8, which: bool, deadline: Option<u16> },
    Sleep(u8, u16),
    Spawn { run: u8, children: u8, join: u8 },
    Again(u8),
    Fail { run: u8, cured: bool },
    Beat(u8),
    GiveBack(u8),
    Settle { run: u8, requeue: bool },
    Signal { run: u8, which: bool, dedup: Option<u8> },
    Cancel(u8, bool),
    Tick(u16),
    Flush,
    Crash { late: bool, forget: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<u8>;
    let start = (proptest::option::of(0u8..3), any::<bool>(), any::<bool>());
    let wait = (n(), any::<bool>(), proptest::option::of(1u16..1_500));
    prop_oneof![
        4 => start.prop_map(|(key, reuse, other)| Op::Start { key, reuse, other }),
        9 => Just(Op::Claim),
        3 => n().prop_map(Op::Done),
        2 => n().prop_map(Op::Next),
        4 => wait.prop_map(|(run, which, deadline)| Op::Await { run, which, deadline }),
        2 => (n(), 1u16..1_500).prop_map(|(run, ms)| Op::Sleep(run, ms)),
        2 => (n(), 1u8..4, n()).prop_map(|(run, children, join)| Op::Spawn { run, children, join }),
        1 => n().prop_map(Op::Again),
        3 => (n(), prop::bool::weighted(0.8)).prop_map(|(run, cured)| Op::Fail { run, cured }),
        2 => n().prop_map(Op::Beat),
        1 => n().prop_map(Op::GiveBack),
        3 => (n(), prop::bool::weighted(0.7)).prop_map(|(run, requeue)| Op::Settle { run, requeue }),
        5 => (n(), any::<bool>(), proptest::option::of(0u8..3)).prop_map(|(run, which, dedup)| Op::Signal { run, which, dedup }),
        1 => (n(), any::<bool>()).prop_map(|(run, cascade)| Op::Cancel(run, cascade)),
        5 => (0u16..1_400).prop_map(Op::Tick),
        2 => Just(Op::Flush),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(late, forget)| Op::Crash { late, forget }),
    ]
}

fn name(which: bool) -> &'static str {
    if which { "one" } else { "two" }
}

struct Pair {
    world: World,
    map: BTreeMap<RunId, Kept>,
}

impl Pair {
    fn new(shards: u16) -> Self {
        let mut world = World::new(shards);
        world.join(Hand::new("w1", &["flow"]));
        Self { world, map: BTreeMap::new() }
    }

    /// The `n`-th of the runs for which something holds.
    fn pick(&self, n: u8, fits: impl Fn(&Kept) -> bool) -> Option<RunId> {
        let fitting: Vec<RunId> = self.map.iter().filter(|(_, kept)| fits(kept)).map(|(id, _)| *id).collect();
        (!fitting.is_empty()).then(|| fitting[usize::from(n) % fitting.len()])
    }

    fn obey(&mut self, op: &Op) {
        match op {
            Op::Start { key, reuse, other } => self.start(*key, *reuse, if *other { "1" } else { "2" }),
            Op::Claim => self.claim(),
            Op::Done(n) => self.complete(*n, done()),
            Op::Next(n) => self.complete(*n, next("on")),
            Op::Sleep(n, ms) => self.complete(*n, sleeping(u64::from(*ms))),
            Op::Await { run, which, deadline } => {
                let deadline = deadline.map(|ms| Moment::In(u64::from(ms)));
                let (signals, then) = (vec![name(*which).into()], Some("on".into()));
                self.complete(*run, Outcome::Await { signals, then, deadline, state: payload("{}") });
            }
            Op::Spawn { run, children, join: how } => {
                let mut outcome = spawn(vec![flow(); usize::from(*children)]);
                if let Outcome::Spawn { join, .. } = &mut outcome {
                    *join = [Join::AllTerminal, Join::AllSucceeded, Join::Any, Join::Quorum(1)][usize::from(how % 4)];
                }
                self.complete(*run, outcome);
            }
            Op::Again(n) => self.complete_unheld(*n),
            Op::Fail { run, cured } => self.fail(*run, *cured),
            Op::Beat(n) => self.beat(*n),
            Op::GiveBack(n) => self.give_back(*n),
            Op::Settle { run, requeue } => self.settle(*run, *requeue),
            Op::Signal { run, which, dedup } => self.signal(*run, name(*which), dedup.map(|key| format!("d{key}"))),
            Op::Cancel(n, cascade) => self.cancel(*n, *cascade),
            Op::Tick(ms) => self.tick(u64::from(*ms)),
            Op::Flush => self.world.flush(),
            Op::Crash { late, forget } => {
                if *forget {
                    self.world.forget_index();
                }
                self.world.crash(if *late { Crash::AfterAppend } else { Crash::BeforeAppend });
                // Whoever held an attempt gets a full lease from the new owner.
                let until = self.world.now.after(LEASE_MS);
                for kept in self.map.values_mut() {
                    if let Stand::Held { until: held } = &mut kept.stand {
                        *held = until;
                    }
                }
                self.tick(0);
            }
        }
    }

    fn start(&mut self, key: Option<u8>, reuse: bool, input: &'static str) {
        let key = key.map(|key| format!("k{key}"));
        let mut spec = key.as_deref().map_or_else(flow, keyed);
        (spec.input, spec.deliveries_max) = (payload(input), Some(DELIVERIES_MAX));
        if let (Some(key), true) = (&mut spec.key, reuse) {
            key.on_conflict = OnConflict::Reuse;
        }
        let holder = self.map.iter().find(|(_, kept)| key.is_some() && kept.key == key && !kept.is_over());
        let expected = match holder {
            Some((by, kept)) if reuse && kept.input == input => StartAnswer::Reused(*by),
            Some((by, _)) => {
                let reason = if reuse { RejectReason::OtherInput } else { RejectReason::KeyTaken };
                StartAnswer::Rejected { by: *by, reason }
            }
            None => StartAnswer::Created(RunId(0)),
        };
        let found = self.ask_start(spec);
        match (expected, found) {
            (StartAnswer::Created(_), StartAnswer::Created(run)) => {
                assert!(self.map.insert(run, Kept::new(key, input, None)).is_none(), "{run} is new");
            }
            (expected, found) => assert_eq!(expected, found),
        }
    }

    fn ask_start(&mut self, spec: StartSpec) -> StartAnswer {
        let request = self.world.request();
        match self.world.ask(Command::Start { request, spec: Box::new(spec) }) {
            Answer::Started(answer) => answer,
            other => panic!("expected an answer to a start, found {other:?}"),
        }
    }

    fn claim(&mut self) {
        self.world.outputs.clear();
        let claimed = self.world.claim("w1", 1);
        let ready = self.pick(0, |kept| kept.stand == Stand::Ready);
        assert_eq!(claimed, usize::from(ready.is_some()), "what is ready is claimed");
        let dispatched = self.world.outputs.iter().find_map(|output| match output {
            Output::Dispatch(dispatch) => Some(dispatch.claim.run),
            _ => None,
        });
        if let Some(run) = dispatched {
            let until = self.world.now.after(LEASE_MS);
            let kept = self.map.get_mut(&run).expect("a known run");
            assert_eq!(kept.stand, Stand::Ready, "{run}");
            (kept.stand, kept.seen) = (Stand::Held { until }, kept.signals);
        }
    }

    fn complete(&mut self, n: u8, outcome: Outcome) {
        let Some(id) = self.pick(n, |kept| matches!(kept.stand, Stand::Held { .. })) else { return };
        let known = show(&mut self.world, id).children.len();
        let completing = completing(&self.world, id, outcome.clone());
        let answer = self.world.ask(Command::Complete { run: id, completing });
        assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
        let children: Vec<RunId> = show(&mut self.world, id).children[known..].iter().map(|child| child.id).collect();
        let now = self.world.now;
        let kept = self.map.get_mut(&id).expect("a known run");
        if !matches!(outcome, Outcome::Await { .. }) {
            kept.consume();
        }
        (kept.retries, kept.reclaims) = (0, 0);
        match outcome {
            Outcome::Done { .. } => self.end(id, Status::Done),
            Outcome::Next { .. } => kept.stand = Stand::Ready,
            Outcome::Sleep { until, .. } => kept.stand = Stand::Sleeping { until: until.from(now) },
            Outcome::Await { signals, deadline, .. } => {
                let name = name(*signals[0] == *name(true));
                kept.awaits = Some(name);
                let here = kept.inbox.iter().any(|(_, known)| *known == name);
                let until = deadline.map(|moment| moment.from(now));
                kept.stand = if here { Stand::Ready } else { Stand::Awaiting { name, until } };
            }
            Outcome::Spawn { join, .. } => {
                kept.stand = Stand::Joining { left: children.iter().copied().collect(), won: 0, lost: 0, join };
                self.map.extend(children.into_iter().map(|child| (child, Kept::new(None, "{}", Some(id)))));
            }
            other => panic!("nobody says {other:?}"),
        }
    }

    fn held(&self, n: u8) -> Option<(RunId, ClaimId)> {
        let id = self.pick(n, |kept| matches!(kept.stand, Stand::Held { .. }))?;
        Some((id, self.world.dispatches[&id].claim))
    }

    /// A step fails: it is tried again after a while, or its run ends.
    fn fail(&mut self, n: u8, cured: bool) {
        let Some((id, claim)) = self.held(n) else { return };
        let error = if cured { ErrorInfo::retryable("error", "x") } else { ErrorInfo::terminal("error", "x") };
        let policy = RetryPolicy { backoff: Backoff::Constant, ..RetryPolicy::exponential(RETRY_MS) };
        let failing = Failing {
            claim: claim.number,
            token: token("w1"),
            error: Arc::new(error),
            retry: Some(RetryPolicy { retries_max: Some(RETRIES_MAX), ..policy }),
            seed: 0,
            entries: Vec::new(),
            reopen: Vec::new(),
            set_aside: false,
        };
        let answer = self.world.ask(Command::Fail { run: id, failing: Box::new(failing) });
        assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
        let until = self.world.now.after(RETRY_MS);
        let kept = self.map.get_mut(&id).expect("a known run");
        if cured && kept.retries < RETRIES_MAX {
            kept.retries += 1;
            kept.stand = Stand::Later { until };
        } else {
            self.end(id, Status::Failed);
        }
    }

    /// Whoever says that they live keeps what they hold.
    fn beat(&mut self, n: u8) {
        let Some((id, claim)) = self.held(n) else { return };
        let until = self.world.now.after(LEASE_MS);
        let answer = self.world.ask(Command::Heartbeat { claim, token: token("w1") });
        assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
        self.map.get_mut(&id).expect("a known run").stand = Stand::Held { until };
    }

    /// What is given back was not delivered.
    fn give_back(&mut self, n: u8) {
        let Some((id, claim)) = self.held(n) else { return };
        let answer = self.world.ask(Command::GiveBack { claim, token: token("w1") });
        assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
        self.map.get_mut(&id).expect("a known run").stand = Stand::Ready;
    }

    /// What was set aside goes back and is delivered as often again, or is given up.
    fn settle(&mut self, n: u8, requeue: bool) {
        let Some(id) = self.pick(n, |kept| kept.stand == Stand::Aside).or_else(|| self.pick(n, |_| true)) else {
            return;
        };
        let command = if requeue { Command::Requeue { run: id } } else { Command::Discard { run: id } };
        let answer = self.world.ask(command);
        if self.map[&id].stand != Stand::Aside {
            return assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        }
        assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
        if requeue {
            let kept = self.map.get_mut(&id).expect("a known run");
            (kept.stand, kept.reclaims) = (Stand::Ready, 0);
        } else {
            self.end(id, Status::Failed);
        }
    }

    /// A word about a claim that is no longer held takes no effect.
    fn complete_unheld(&mut self, n: u8) {
        let Some(id) = self.pick(n, |kept| !matches!(kept.stand, Stand::Held { .. })) else { return };
        if self.world.dispatches.contains_key(&id) {
            let completing = completing(&self.world, id, done());
            let answer = self.world.ask(Command::Complete { run: id, completing });
            let harmless = matches!(answer, Answer::Refused(_) | Answer::Recorded { duplicate: true, .. });
            assert!(harmless, "{answer:?}");
        }
    }

    fn signal(&mut self, n: u8, name: &'static str, dedup: Option<String>) {
        let Some(id) = self.pick(n, |_| true) else { return };
        let key = dedup.clone().map(|key| key.as_str().into());
        let request = self.world.request();
        let sent = Box::new(Sent { name: name.into(), payload: Payload::null(), dedup: key, request });
        let answer = self.world.ask(Command::Signal { run: id, sent });
        let kept = self.map.get_mut(&id).expect("a known run");
        if let Some(signal) = dedup.as_ref().and_then(|key| kept.dedup.get(key)) {
            assert_eq!(answer, Answer::Signalled(Accepted { signal: *signal, duplicate: true }));
            return;
        }
        if let Stand::Ended(status) = kept.stand {
            assert_eq!(answer, Answer::Refused(Refusal::RunOver { run: id, status }));
            return;
        }
        kept.signals += 1;
        assert_eq!(answer, Answer::Signalled(Accepted { signal: kept.signals, duplicate: false }));
        kept.inbox.push((kept.signals, name));
        kept.dedup.extend(dedup.map(|key| (key, kept.signals)));
        if matches!(kept.stand, Stand::Awaiting { name: awaited, .. } if awaited == name) {
            kept.stand = Stand::Ready;
        }
    }

    fn cancel(&mut self, n: u8, cascade: bool) {
        let Some(id) = self.pick(n, |_| true) else { return };
        let request = self.world.request();
        let answer = self.world.ask(cancel(id, request, cascade));
        match self.map[&id].stand {
            Stand::Ended(status) => assert_eq!(answer, Answer::Refused(Refusal::RunOver { run: id, status })),
            _ => {
                assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
                self.cancel_kept(id, cascade);
            }
        }
    }

    fn cancel_kept(&mut self, id: RunId, cascade: bool) {
        if self.map[&id].is_over() {
            return;
        }
        self.end(id, Status::Cancelled);
        if cascade {
            let children: Vec<RunId> =
                self.map.iter().filter(|(_, kept)| kept.parent == Some(id)).map(|(child, _)| *child).collect();
            children.into_iter().for_each(|child| self.cancel_kept(child, true));
        }
    }

    /// A run ends, and its parent counts it.
    fn end(&mut self, id: RunId, status: Status) {
        let kept = self.map.get_mut(&id).expect("a known run");
        kept.stand = Stand::Ended(status);
        let Some(parent) = kept.parent.and_then(|parent| self.map.get_mut(&parent)) else { return };
        let Stand::Joining { left, won, lost, join } = &mut parent.stand else { return };
        if !left.remove(&id) {
            return;
        }
        *(if status == Status::Done { &mut *won } else { &mut *lost }) += 1;
        let over = left.is_empty();
        let joined = match *join {
            Join::AllTerminal => over,
            Join::AllSucceeded => over || *lost > 0,
            Join::Any => over || *won > 0,
            Join::Quorum(k) => over || *won >= k || *won + (left.len() as u32) < k,
        };
        if joined {
            parent.stand = Stand::Ready;
        }
    }

    fn tick(&mut self, ms: u64) {
        self.world.tick(ms);
        let now = self.world.now;
        for kept in self.map.values_mut() {
            let due = match &kept.stand {
                Stand::Held { until } | Stand::Later { until } | Stand::Sleeping { until } => Some(*until),
                Stand::Awaiting { until, .. } => *until,
                Stand::Ready | Stand::Aside | Stand::Joining { .. } | Stand::Ended(_) => None,
            };
            if due.is_none_or(|due| due > now) {
                continue;
            }
            // Whoever held it was lost.
            let lost = matches!(kept.stand, Stand::Held { .. });
            kept.reclaims += u32::from(lost);
            kept.stand = if lost && kept.reclaims >= kept.deliveries_max { Stand::Aside } else { Stand::Ready };
        }
    }

    fn compare(&mut self) {
        for (id, kept) in self.map.clone() {
            let run = show(&mut self.world, id);
            assert_eq!(run.status(), kept.status(), "{id}: {kept:?}");
            let inbox: Vec<(u64, &str)> = run.inbox.iter().map(|signal| (signal.id, &*signal.name)).collect();
            assert_eq!(inbox, kept.inbox, "{id}: {kept:?}");
            assert_eq!(run.signals, kept.signals, "{id}");
        }
    }
}

fn play(shards: u16, ops: &[Op]) {
    let mut pair = Pair::new(shards);
    for op in ops {
        pair.obey(op);
        pair.compare();
    }
    check::check(&pair.world);
}

proptest! {
    #![proptest_config(config(150, 23))]

    /// G3, G4, G7: one shard answers as the map does.
    #[test]
    fn one_shard_agrees_with_a_map(ops in proptest::collection::vec(op(), 1..80)) {
        play(1, &ops);
    }

    /// G3, G4, G7: so do four, with runs in all of them.
    #[test]
    fn four_shards_agree_with_a_map(ops in proptest::collection::vec(op(), 1..80)) {
        play(4, &ops);
    }
}
