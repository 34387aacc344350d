//! Random commands with crashes anywhere: memory is the fold of the log, indexes are what a naive look at the runs
//! says, and nobody is answered twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::random::config;
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::shard::{Answer, Command, Output, Ticket};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::signal::Sent;
use abide_kernel::{
    ChildSpec, ClaimId, Concurrency, Consume, ErrorInfo, Join, Moment, OnConflict, Outcome, Payload, Phase, RequestId,
    RetryPolicy, Run, RunId, StartSpec, StatusSet, Timestamp, TokenHash, UniqueKey,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Start(u8, u8),
    Again(u8),
    Claim(u8),
    Complete(u8, u8),
    CompleteAgain(u8),
    Fail(u8, u8),
    Heartbeat(u8),
    GiveBack(u8),
    Signal(u8, u8),
    Cancel(u8, u8),
    Child(u8, u8),
    Compact(u8),
    Purge(u8),
    Requeue(u8),
    Discard(u8),
    Wake(u8),
    Show(u8),
    Tick(u16),
    Flush,
    Crash(u8),
    Hold,
    Durable,
    HoldLoads,
    Loads,
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<u8>;
    prop_oneof![
        4 => (n(), n()).prop_map(|(a, b)| Op::Start(a, b)),
        1 => n().prop_map(Op::Again),
        6 => n().prop_map(Op::Claim),
        8 => (n(), n()).prop_map(|(a, b)| Op::Complete(a, b)),
        1 => n().prop_map(Op::CompleteAgain),
        1 => (n(), n()).prop_map(|(a, b)| Op::Fail(a, b)),
        1 => n().prop_map(Op::Heartbeat),
        1 => n().prop_map(Op::GiveBack),
        4 => (n(), n()).prop_map(|(a, b)| Op::Signal(a, b)),
        1 => (n(), n()).prop_map(|(a, b)| Op::Cancel(a, b)),
        1 => (n(), n()).prop_map(|(a, b)| Op::Child(a, b)),
        1 => n().prop_map(Op::Compact),
        1 => n().prop_map(Op::Purge),
        1 => n().prop_map(Op::Requeue),
        1 => n().prop_map(Op::Discard),
        1 => n().prop_map(Op::Wake),
        1 => n().prop_map(Op::Show),
        4 => (0u16..700).prop_map(Op::Tick),
        3 => Just(Op::Flush),
        1 => n().prop_map(Op::Crash),
        1 => Just(Op::Hold),
        2 => Just(Op::Durable),
        1 => Just(Op::HoldLoads),
        2 => Just(Op::Loads),
    ]
}

struct Play {
    world: World,
    starts: Vec<(RequestId, StartSpec)>,
    completions: Vec<(RunId, Completing)>,
    asked: BTreeSet<Ticket>,
    answered: BTreeSet<Ticket>,
    created: BTreeMap<RequestId, RunId>,
    asked_start: BTreeMap<Ticket, RequestId>,
}

fn text(value: &str) -> Payload {
    Payload::parse(value).expect("json")
}

/// A spec with or without keys: few of each, so that they meet.
fn spec(a: u8, b: u8) -> StartSpec {
    let mut spec = StartSpec::new("flow", text(if b & 8 == 0 { "1" } else { "2" }));
    if a & 1 == 1 {
        spec.key = Some(UniqueKey {
            key: format!("k{}", (a >> 1) % 3).into(),
            occupied: match (a >> 3) % 4 {
                0 => StatusSet::of(&[abide_kernel::Status::Runnable, abide_kernel::Status::Executing]),
                1 => StatusSet::ALL,
                _ => StatusSet::OPEN,
            },
            on_conflict: if b & 1 == 0 { OnConflict::Reject } else { OnConflict::Reuse },
        });
    }
    if b & 2 == 2 {
        spec.concurrency = Some(Concurrency { key: format!("c{}", (b >> 2) % 3).into(), limit: 1 });
    }
    if a & 64 == 64 {
        spec.eligible_at = Some(crate::support::BASE.after(u64::from(b) * 20));
    }
    if a & 128 == 128 && b & 128 == 128 {
        spec.deadline = Some(crate::support::BASE.after(u64::from(a) * 30));
    }
    spec.priority = i32::from((a >> 4) & 3);
    spec.deliveries_max = Some(3);
    spec
}

fn outcome(b: u8) -> Outcome {
    let state = text(r#"{"s":1}"#);
    match b % 12 {
        0 | 1 => Outcome::Next { step: "next".into(), state },
        2 => Outcome::Replay { state, delay_ms: u64::from(b) },
        3 | 4 => Outcome::Await {
            signals: vec![if b & 16 == 0 { "a".into() } else { "b".into() }],
            then: (b & 32 == 32).then(|| "then".into()),
            deadline: (b & 64 == 64).then_some(Moment::In(500)),
            state,
        },
        5 => Outcome::Sleep { until: Moment::In(u64::from(b) * 5), then: None, state },
        6 | 7 => Outcome::Spawn {
            children: (0..b / 64 + 1).map(|n| ChildSpec { spec: spec(b.wrapping_add(n * 7) & 0x3f, b) }).collect(),
            then: "joined".into(),
            join: [Join::AllTerminal, Join::Any, Join::AllSucceeded, Join::Quorum(1)][usize::from(b / 64)],
            deadline: (b & 16 == 16).then_some(Moment::In(900)),
            state,
        },
        8 | 9 => Outcome::Done { result: state },
        10 => Outcome::Stop { error: ErrorInfo::terminal("stop", "asked") },
        _ => Outcome::ContinueAsNew { input: state },
    }
}

fn failing(claim: u32, token: TokenHash, retry: Option<RetryPolicy>) -> Failing {
    Failing {
        claim,
        token,
        error: Arc::new(ErrorInfo::retryable("oops", "x")),
        retry,
        seed: 1,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside: false,
    }
}

fn completing(claim: u32, token: TokenHash, b: u8) -> Completing {
    Completing {
        claim,
        token,
        outcome: Arc::new(outcome(b)),
        consume: if b & 128 == 0 { Consume::Presented } else { Consume::ByName },
        error: None,
        compact_after: b.is_multiple_of(5).then_some(4),
        entries: Vec::new(),
    }
}

impl Play {
    fn new(shards: u16) -> Self {
        let mut world = World::new(shards);
        world.join(Hand::new("w1", &["flow"]));
        let mut local = Hand::new("w2", &["flow"]);
        local.local = true;
        local.lease_ms = 400;
        world.join(local);
        Self {
            world,
            starts: Vec::new(),
            completions: Vec::new(),
            asked: BTreeSet::new(),
            answered: BTreeSet::new(),
            created: BTreeMap::new(),
            asked_start: BTreeMap::new(),
        }
    }

    /// The `n`-th run that any log names, children and records of keys included.
    fn run(&self, n: u8) -> Option<RunId> {
        let ids: BTreeSet<RunId> =
            self.world.disks.iter().flat_map(|disk| disk.rows.iter().map(|row| row.run)).collect();
        let ids: Vec<RunId> = ids.into_iter().collect();
        (!ids.is_empty()).then(|| ids[usize::from(n) % ids.len()])
    }

    /// The `n`-th dispatch: run, claim and token.
    fn held(&self, n: u8) -> Option<(RunId, u32, TokenHash)> {
        let all: Vec<_> = self.world.dispatches.values().collect();
        let dispatch = (!all.is_empty()).then(|| all[usize::from(n) % all.len()])?;
        let name = &self.world.hands[dispatch.worker.0 as usize].name;
        Some((dispatch.claim.run, dispatch.claim.number, token(name)))
    }

    fn ask(&mut self, command: Command) {
        let request = match &command {
            Command::Start { request, .. } => Some(*request),
            _ => None,
        };
        let ticket = self.world.submit(command);
        assert!(self.asked.insert(ticket));
        if let Some(request) = request {
            self.asked_start.insert(ticket, request);
        }
    }

    fn obey(&mut self, op: &Op) {
        match op {
            Op::Claim(n) => {
                let worker = if n & 1 == 0 { "w1" } else { "w2" };
                for _ in 0..=n % 3 {
                    self.claim_one(worker);
                }
            }
            Op::Tick(ms) => self.world.tick(u64::from(*ms)),
            Op::Flush => {
                if !self.world.held {
                    self.world.flush();
                }
            }
            Op::Crash(n) => {
                self.world.held = false;
                if n & 4 == 4 {
                    self.world.forget_index();
                }
                self.world.crash(if n & 1 == 0 { Crash::BeforeAppend } else { Crash::AfterAppend });
            }
            Op::Hold => self.world.held = true,
            Op::Durable => {
                self.world.held = false;
                self.world.settle();
            }
            Op::HoldLoads => self.world.loads_held = true,
            Op::Loads => {
                self.world.loads_held = false;
                self.world.settle();
            }
            other => {
                if let Some(command) = self.command(other) {
                    self.ask(command);
                }
            }
        }
    }

    fn command(&mut self, op: &Op) -> Option<Command> {
        Some(match op {
            Op::Start(a, b) => {
                let (request, spec) = (self.world.request(), spec(*a, *b));
                self.starts.push((request, spec.clone()));
                Command::Start { request, spec: Box::new(spec) }
            }
            Op::Again(n) => {
                let (request, spec) = self.starts.get(usize::from(*n) % self.starts.len().max(1))?.clone();
                Command::Start { request, spec: Box::new(spec) }
            }
            Op::Complete(a, b) => {
                let (run, claim, token) = self.held(*a)?;
                let completing = completing(claim, token, *b);
                self.completions.push((run, completing.clone()));
                Command::Complete { run, completing }
            }
            Op::CompleteAgain(n) => {
                let (run, completing) = self.completions.get(usize::from(*n) % self.completions.len().max(1))?.clone();
                Command::Complete { run, completing }
            }
            Op::Fail(a, b) => {
                let (run, claim, token) = self.held(*a)?;
                let retry = (b & 1 == 1).then(|| RetryPolicy::exponential(u64::from(*b)));
                let failing = failing(claim, token, retry);
                Command::Fail { run, failing: Box::new(failing) }
            }
            Op::Heartbeat(n) => {
                let (run, number, token) = self.held(*n)?;
                Command::Heartbeat { claim: ClaimId { run, number }, token }
            }
            Op::GiveBack(n) => {
                let (run, number, token) = self.held(*n)?;
                Command::GiveBack { claim: ClaimId { run, number }, token }
            }
            Op::Signal(a, b) => Command::Signal {
                run: self.run(*a)?,
                sent: Box::new(Sent {
                    name: if b & 1 == 0 { "a".into() } else { "b".into() },
                    payload: Payload::null(),
                    dedup: (b & 6 == 6).then(|| format!("d{}", b >> 4).into()),
                    request: self.world.request(),
                }),
            },
            Op::Cancel(a, b) => Command::Cancel {
                run: self.run(*a)?,
                request: self.world.request(),
                cascade: b & 1 == 1,
                reason: Arc::new(ErrorInfo::terminal("cancelled", "x")),
            },
            Op::Child(a, b) => {
                let (run, claim, token) = self.held(*a)?;
                let starting = StartingChild {
                    claim,
                    token,
                    key: format!("child{}", b % 3).into(),
                    spec: spec(*b & 0x3f, b % 3),
                    metadata: None,
                };
                Command::StartChild { run, starting: Box::new(starting) }
            }
            Op::Compact(n) => Command::Compact { run: self.run(*n)? },
            Op::Purge(n) => Command::Purge { run: self.run(*n)? },
            Op::Requeue(n) => Command::Requeue { run: self.run(*n)? },
            Op::Discard(n) => Command::Discard { run: self.run(*n)? },
            Op::Show(n) => Command::Show { run: self.run(*n)? },
            Op::Wake(n) => Command::Wake { run: self.run(*n)?, token: 1 },
            _ => return None,
        })
    }

    /// Lets a worker claim an attempt: of those that can be claimed, wherever they are kept, it gets the first.
    fn claim_one(&mut self, worker: &str) {
        let settled = worker == "w1" && !self.world.held && !self.world.loads_held;
        let now = self.world.now;
        let place = |run: &Run| {
            let at = |cursor: &abide_kernel::Cursor| match cursor.phase {
                Phase::Scheduled { visible_at, arrival } if visible_at <= now => Some((visible_at, arrival)),
                _ => None,
            };
            Some((run.started.spec.priority, run.cursors.iter().filter_map(at).min()?, run.id))
        };
        let first = (0..self.world.shards.len()).filter(|_| settled).find_map(|shard| {
            let runs = self.runs(shard);
            runs.iter().filter(|run| is_ready(run, &runs, now)).filter_map(place).min()
        });
        self.world.claim(worker, 1);
        if let Some((.., run)) = first {
            let run = self.world.folded(run).expect("a run");
            let claimed = run.cursors.iter().any(|at| matches!(at.phase, Phase::Claimed(_)));
            assert!(claimed, "{} is the first, and another was claimed", run.id);
        }
    }

    /// Nobody is answered twice, and a request that created a run has created no other.
    fn listen(&mut self) {
        let outputs = std::mem::take(&mut self.world.outputs);
        for output in outputs {
            let Output::Answer(ticket, answer) = output else {
                continue;
            };
            assert!(self.asked.contains(&ticket));
            assert!(self.answered.insert(ticket), "{ticket:?} is answered twice");
            if let (Answer::Started(abide_kernel::transition::start::StartAnswer::Created(run)), Some(request)) =
                (answer, self.asked_start.get(&ticket))
            {
                let first = *self.created.entry(*request).or_insert(run);
                assert_eq!(first, run, "a retry gets the first answer");
            }
        }
        for ticket in std::mem::take(&mut self.world.lost) {
            assert!(self.answered.insert(ticket), "{ticket:?} is lost and answered");
        }
    }

    fn runs(&self, shard: usize) -> Vec<Run> {
        let rows = &self.world.disks[shard].rows;
        let ids: BTreeSet<RunId> = rows.iter().map(|row| row.run).collect();
        ids.into_iter().filter_map(|id| check::fold(rows, id)).collect()
    }

    /// The indexes say what a naive look at every run says.
    fn check_indexes(&mut self) {
        if self.world.held || self.world.loads_held {
            return;
        }
        self.world.tick(0);
        let now = self.world.now;
        for shard in 0..self.world.shards.len() {
            let runs = self.runs(shard);
            let work = runs.iter().any(|run| is_ready(run, &runs, now));
            let worker = self.world.worker("w1");
            let found = self.world.shards[shard].has_work(now, worker, &mut self.world.throttle);
            assert_eq!(found, work, "ready work at {now:?}");
            let wake = self.world.shards[shard].next_wake();
            assert!(wake.is_none_or(|wake| wake > now), "it wants to be woken in the past");
            for run in &runs {
                let memory = self.world.shards[shard].run(run.id).unwrap_or(run);
                if let Some(due) = naive_due(memory, now) {
                    assert!(wake.is_some_and(|wake| wake <= due), "{} is due unseen", run.id);
                }
            }
        }
    }

    /// When everything has been said and heard, what different runs know of each other agrees.
    fn finish(&mut self) {
        (self.world.held, self.world.loads_held) = (false, false);
        self.world.settle();
        self.world.tick(0);
        check::check(&self.world);
        self.listen();
        assert_eq!(self.asked, self.answered, "everybody is answered");
        let runs: Vec<Run> = (0..self.world.shards.len()).flat_map(|s| self.runs(s)).collect();
        let by_id: BTreeMap<RunId, &Run> = runs.iter().map(|run| (run.id, run)).collect();
        let mut keys = BTreeSet::new();
        let mut executing: BTreeMap<String, u32> = BTreeMap::new();
        for run in &runs {
            for child in run.children.iter().filter(|child| child.end.is_none()) {
                let open = by_id.get(&child.id).is_none_or(|child| child.end.is_none());
                assert!(open, "{} ended and its parent was not told", child.id);
            }
            if let (Some(key), false, true) = (&run.started.spec.key, run.key_freed, run.started.reserves.is_none()) {
                assert!(keys.insert(key.key.clone()), "{} is held twice", key.key);
            }
            if let Some(held_for) = run.started.reserves {
                let free = by_id.get(&held_for).is_none_or(|run| run.key_freed);
                assert_eq!(run.end.is_some(), free, "a key is held as long as its run needs it");
            }
            if let Some(concurrency) = &run.started.spec.concurrency {
                let claimed = run.cursors.iter().filter(|at| matches!(at.phase, Phase::Claimed(_)));
                *executing.entry(concurrency.key.to_string()).or_default() += claimed.count() as u32;
            }
        }
        assert!(executing.values().all(|count| *count <= 1), "{executing:?}");
    }
}

fn is_ready(run: &Run, all: &[Run], now: Timestamp) -> bool {
    let visible =
        |at: &abide_kernel::Cursor| matches!(at.phase, Phase::Scheduled { visible_at, .. } if visible_at <= now);
    let claimed = |run: &Run| run.cursors.iter().any(|at| matches!(at.phase, Phase::Claimed(_)));
    let key = |run: &Run| run.started.spec.concurrency.as_ref().map(|c| c.key.clone());
    let full = key(run).is_some() && all.iter().any(|other| key(other) == key(run) && claimed(other));
    run.cursors.iter().any(visible) && !full
}

fn naive_due(run: &Run, now: Timestamp) -> Option<Timestamp> {
    if run.end.is_some() {
        return None;
    }
    let cursors = run.cursors.iter().filter_map(|at| match &at.phase {
        Phase::Scheduled { visible_at, .. } => Some(*visible_at).filter(|at| *at > now),
        Phase::Claimed(claim) => Some(claim.until()),
        Phase::Waiting(wait) => wait.until,
        _ => None,
    });
    cursors.chain(run.started.spec.deadline).min()
}

fn play(shards: u16, ops: &[Op]) {
    let mut play = Play::new(shards);
    for op in ops {
        play.obey(op);
        check::check(&play.world);
        play.listen();
        play.check_indexes();
    }
    play.finish();
}

proptest! {
    #![proptest_config(config(60, 17))]

    /// SQ-11, SE-33, GD-29, GD-61: whatever happens in whatever order, memory is the fold of the log.
    #[test]
    fn one_shard_survives_anything(ops in proptest::collection::vec(op(), 1..90)) {
        play(1, &ops);
    }

    /// SQ-11, SE-33, GD-59: the same with envelopes between four shards.
    #[test]
    fn four_shards_survive_anything(ops in proptest::collection::vec(op(), 1..90)) {
        play(4, &ops);
    }
}
