//! The whole world of the model: what is durable, two nodes, two workers, and how much has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_kernel::shard::{Command, Ticket};
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::fail::Failing;
use abide_kernel::{
    ClaimId, Consume, ErrorInfo, Outcome, Payload, RequestId, RetryPolicy, RunId, StartSpec, Timestamp, TokenHash,
};
use abide_store::Verdict;

use super::disk::Disk;
use super::machine::{LEASE_MS, Machine, Owned, WORKFLOW};
use super::outputs::{CLIENT, Spoken};
use super::print::Print;
use super::{Act, Bounds, Hands, Word, laws};
use crate::Violation;

const BASE: Timestamp = Timestamp(1_000_000_000_000);

/// How far the clock of the second node is ahead, where nodes share a store.
const AHEAD_MS: u64 = 2 * LEASE_MS;

/// The second step.
pub(super) const LAST: &str = "last";

/// How often an attempt is delivered before it is set aside.
pub(super) const DELIVERIES_MAX: u32 = 3;

/// A worker: every claim that it was ever given, and may still speak of.
#[derive(Clone, Debug, Default)]
pub(super) struct Hand {
    pub(super) claims: BTreeSet<u32>,
}

/// How much of what is bounded has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) starts: u8,
    pub(super) opens: u8,
    pub(super) expiries: u8,
    pub(super) claims: u8,
    pub(super) words: u8,
    pub(super) flushes: u8,
}

/// The world at one moment.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) disk: Disk,
    pub(super) nodes: [Machine; 2],
    pub(super) hands: [Hand; 2],
    pub(super) spent: Spent,
    /// Claims that left a node for a worker, and whether for the last step.
    pub(super) dispatched: BTreeMap<u32, bool>,
    /// Claims whose worker was told that its result is recorded, and was not before.
    pub(super) told: BTreeSet<u32>,
    /// Every result that the holder of its claim returned, and how many of the times that it did were not refused.
    pub(super) returned: BTreeMap<String, u8>,
    /// The prints of the nodes.
    prints: [u128; 2],
}

fn request() -> RequestId {
    RequestId::new(BASE, 7)
}

fn spec() -> StartSpec {
    StartSpec { deliveries_max: Some(DELIVERIES_MAX), ..StartSpec::new(WORKFLOW, Payload::null()) }
}

/// The one run.
pub(super) fn run_id() -> RunId {
    spec().run_id(request())
}

impl State {
    /// Nobody owns the shard, and nothing was written.
    pub(super) fn new(bounds: &Bounds) -> Self {
        let mut disk = Disk::default();
        disk.ledger.leases = bounds.says.contains(&Word::Beat).then(BTreeMap::new);
        disk.ledger.one_owner = bounds.hands == Hands::Local;
        let second = if disk.ledger.one_owner { BASE } else { BASE.after(AHEAD_MS) };
        Self {
            disk,
            nodes: [Machine::new(0, BASE), Machine::new(1, second)],
            hands: Default::default(),
            spent: Spent::default(),
            dispatched: BTreeMap::new(),
            told: BTreeSet::new(),
            returned: BTreeMap::new(),
            prints: [0; 2],
        }
    }

    /// Lets the act happen, and holds everything against the laws.
    pub(super) fn obey(&mut self, bounds: &Bounds, act: Act) -> Result<(), Violation> {
        self.count(act);
        match act {
            Act::Open(node) => {
                self.crash(bounds, node);
                self.open(bounds, node)?;
            }
            Act::Again(node) => self.open(bounds, node)?,
            Act::Append(node) => self.append(node)?,
            Act::Flush(node) => self.flush(node)?,
            Act::Start(node)
            | Act::Claim(node, _)
            | Act::Release(node)
            | Act::Expire(node)
            | Act::Tick(node)
            | Act::Say { node, .. } => self.turn(bounds, node, act)?,
        }
        self.listen(bounds, act.node())?;
        self.refuse_stale(act.node())
    }

    /// What a stale owner has gathered will be refused, and until then it can say nothing that does not wait for it. So
    /// it may as well be refused at once.
    fn refuse_stale(&mut self, node: usize) -> Result<(), Violation> {
        let epoch = self.disk.epoch;
        let stale = |owned: &Owned| owned.epoch != epoch && owned.flying.is_none() && owned.shard.wants_append();
        if self.nodes[node].owned.as_deref().is_some_and(stale) { self.append(node) } else { Ok(()) }
    }

    fn count(&mut self, act: Act) {
        let spent = &mut self.spent;
        let what = match act {
            Act::Start(_) => &mut spent.starts,
            Act::Open(_) | Act::Again(_) => &mut spent.opens,
            Act::Claim(..) => &mut spent.claims,
            Act::Expire(_) => &mut spent.expiries,
            Act::Flush(_) => &mut spent.flushes,
            Act::Say { .. } => &mut spent.words,
            Act::Append(_) | Act::Release(_) | Act::Tick(_) => return,
        };
        *what = what.saturating_add(1);
    }

    fn open(&mut self, bounds: &Bounds, node: usize) -> Result<(), Violation> {
        self.disk.epoch += 1;
        self.refuse_stale(1 - node)?;
        self.disk.ledger.take_over(self.nodes[node].opening(&self.disk));
        self.nodes[node].open(bounds, &self.disk)?;
        if !bounds.hands.live_in_nodes() {
            return Ok(());
        }
        // Claims of this process that were written and never handed out.
        let token = self.nodes[node].token(bounds);
        let Some((clock, owned)) = self.nodes[node].owned() else { return Ok(()) };
        for claim in owned.shard.local_claims() {
            if !self.hands[node].claims.contains(&claim.number) {
                owned.shard.submit(clock, Ticket(0), Command::GiveBack { claim, token });
            }
        }
        Ok(())
    }

    /// The process is gone, if there was one with the shard; a worker that lived in it is gone, too.
    fn crash(&mut self, bounds: &Bounds, node: usize) {
        if self.nodes[node].owned.take().is_none() {
            return;
        }
        self.nodes[node].life += 1;
        if bounds.hands.live_in_nodes() {
            self.hands[node].claims.clear();
        }
    }

    fn append(&mut self, node: usize) -> Result<(), Violation> {
        let Some((_, owned)) = self.nodes[node].owned() else { return Ok(()) };
        let Some(batch) = owned.shard.seal() else { return Ok(()) };
        if batch.epoch.0 != owned.epoch {
            return Err(format!("a batch under epoch {}, by an owner of {}", batch.epoch.0, owned.epoch));
        }
        let before = self.disk.rows.len();
        match self.disk.append(&batch)? {
            Verdict::Durable => {
                owned.flying = Some(batch);
                self.wanted()?;
            }
            Verdict::Stale => {
                let current = owned.epoch == self.disk.epoch;
                self.nodes[node].owned = None;
                if current || self.disk.rows.len() != before {
                    return Err("the owner's batch was refused, or a stale one was written".into());
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, node: usize) -> Result<(), Violation> {
        let Some((_, owned)) = self.nodes[node].owned() else { return Ok(()) };
        let Some(flush) = owned.shard.flush() else { return Ok(()) };
        match self.disk.flush(flush)? {
            Verdict::Durable => owned.shard.flushed(),
            Verdict::Stale => self.nodes[node].owned = None,
        }
        Ok(())
    }

    /// Something reaches the node's shard.
    fn turn(&mut self, bounds: &Bounds, node: usize, act: Act) -> Result<(), Violation> {
        let mut command = None;
        if let Act::Say { hand, claim, word, .. } = act {
            let token = self.nodes[hand].token(bounds);
            let said = laws::said(claim, token, word);
            if word.is_result() && self.disk.ledger.claims.get(&claim) == Some(&token) {
                *self.returned.entry(said.clone()).or_default() += 1;
            }
            let life = self.nodes[hand].worker_life(bounds);
            command = Some((Spoken { claim, hand, life, word }.ticket(), self.command(claim, token, word, &said)));
        }
        if let Act::Start(_) = act {
            command = Some((CLIENT, Command::Start { request: request(), spec: Box::new(spec()) }));
        }
        let machine = &mut self.nodes[node];
        let due = machine.owned.as_ref().and_then(|owned| owned.shard.next_wake()).unwrap_or(machine.clock);
        machine.clock = match act {
            Act::Expire(_) | Act::Say { word: Word::Late, .. } => machine.clock.max(due),
            Act::Say { word: Word::Beat, .. } => machine.clock.after(LEASE_MS / 2),
            _ => machine.clock,
        };
        let Some((clock, owned)) = self.nodes[node].owned() else { return Ok(()) };
        match act {
            Act::Claim(_, hand) => owned.claim(clock, hand),
            Act::Expire(_) | Act::Tick(_) => owned.shard.tick(clock),
            Act::Release(_) => {
                if let Some(batch) = owned.flying.take() {
                    owned.shard.durable(clock, batch);
                }
            }
            _ => {}
        }
        if let Some((ticket, command)) = command {
            owned.shard.submit(clock, ticket, command);
        }
        owned.load(clock, &self.disk)
    }

    /// What the worker says. The run has two steps, and the first leads to the second.
    fn command(&self, claim: u32, token: TokenHash, word: Word, said: &str) -> Command {
        let run = run_id();
        let payload = || Payload::parse(said.to_owned()).unwrap_or_default();
        let outcome = if self.dispatched.get(&claim).is_some_and(|last| *last) {
            Outcome::Done { result: payload() }
        } else {
            Outcome::Next { step: LAST.into(), state: payload() }
        };
        let id = ClaimId { run, number: claim };
        match word {
            Word::Done | Word::Late => Command::Complete {
                run,
                completing: Completing {
                    claim,
                    token,
                    outcome: Arc::new(outcome),
                    consume: Consume::Presented,
                    error: None,
                    compact_after: None,
                    entries: Vec::new(),
                },
            },
            Word::Failed => Command::Fail {
                run,
                failing: Box::new(Failing {
                    claim,
                    token,
                    error: Arc::new(ErrorInfo { retryable: true, ..ErrorInfo::terminal("failed", said) }),
                    retry: Some(RetryPolicy::exponential(0)),
                    seed: 0,
                    entries: Vec::new(),
                    reopen: Vec::new(),
                    set_aside: false,
                }),
            },
            Word::Beat => Command::Heartbeat { claim: id, token },
            Word::Returned => Command::GiveBack { claim: id, token },
        }
    }

    /// A print of everything that decides what can happen next, after an act of `node`; and the same with how much has
    /// happened, which decides what is tried.
    pub(super) fn print(&mut self, node: usize) -> (u128, u128) {
        self.prints[node] = Print::of(&self.nodes[node]);
        let mut print = Print::default();
        print.add(&(&self.disk, self.disk.is_behind()));
        print.add(&self.prints);
        print.add(&(&self.hands, &self.dispatched, &self.told, &self.returned));
        let plain = print.end();
        print.add(&self.spent);
        (plain, print.end())
    }
}
