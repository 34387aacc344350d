//! The core: all shards of the process and what only memory knows, behind one lock.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_kernel::explain::Surroundings;
use abide_kernel::shard::{Answer, Batch, Command, Flush, Load, Output, Rules, Throttle, Ticket, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{ClaimId, Refusal, RunId, Shard, ShardId, ShardMap, Slot, Timestamp, TokenHash};
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::program::{News, Program};

/// Shards, pools and those who wait for answers.
pub(crate) struct Core {
    pub(crate) map: ShardMap,
    pub(crate) shards: Vec<Shard>,
    pub(crate) pools: Vec<PoolState>,
    /// Caps and rates, over all shards.
    pub(crate) throttle: Throttle,
    pub(crate) waiters: HashMap<Ticket, oneshot::Sender<Answer>>,
    pub(crate) next_ticket: u64,
    pub(crate) executing: HashMap<ClaimId, Executing>,
    /// Which shard is asked first for work; it moves on, so that none is favoured.
    first_shard: usize,
    /// Set when no new attempts are claimed any more.
    pub(crate) draining: bool,
    /// Set when no command is taken any more, and why.
    pub(crate) closed: Option<String>,
    /// Batches that were appended, in order; what hangs on them has not left yet.
    pub(crate) durable: VecDeque<Batch>,
    pub(crate) last_change: Timestamp,
    /// When the oldest change happened that index rows do not say yet.
    pub(crate) behind_since: Option<Timestamp>,
    pub(crate) next_beat: Option<Timestamp>,
}

/// A pool of local workers for one queue.
pub(crate) struct PoolState {
    pub(crate) capacity: usize,
    pub(crate) running: usize,
    /// The pool as each shard knows it.
    pub(crate) workers: Vec<WorkerId>,
}

/// An attempt that a local worker executes.
pub(crate) struct Executing {
    pub(crate) pool: usize,
    pub(crate) news: Arc<News>,
    pub(crate) since: Timestamp,
}

/// The programs by name and version.
pub(crate) struct Programs {
    by_name: HashMap<(Arc<str>, u32), Arc<dyn Program>>,
    pub(crate) definitions: Vec<Definition>,
}

impl Programs {
    pub(crate) fn new(programs: &[Arc<dyn Program>]) -> Self {
        let definitions: Vec<Definition> = programs.iter().map(|program| program.definition()).collect();
        let by_name = definitions
            .iter()
            .zip(programs)
            .map(|(definition, program)| ((definition.workflow.clone(), definition.version), program.clone()))
            .collect();
        Self { by_name, definitions }
    }

    pub(crate) fn find(&self, workflow: &Arc<str>, version: u32) -> Option<&Arc<dyn Program>> {
        self.by_name.get(&(workflow.clone(), version))
    }
}

/// The ticket of commands whose answer nobody waits for.
pub(crate) const NOBODY: Ticket = Ticket(0);

impl Core {
    pub(crate) fn new(map: ShardMap, limits: &Rules) -> Self {
        Self {
            map,
            shards: Vec::new(),
            pools: Vec::new(),
            throttle: Throttle::new(limits),
            waiters: HashMap::new(),
            next_ticket: 1,
            executing: HashMap::new(),
            first_shard: 0,
            draining: false,
            closed: None,
            durable: VecDeque::new(),
            last_change: Timestamp(0),
            behind_since: None,
            next_beat: None,
        }
    }

    pub(crate) fn shard(&mut self, slot: Slot) -> &mut Shard {
        let home = self.map.home(slot);
        &mut self.shards[usize::from(home.0)]
    }

    /// Gives a command to its shard; the answer comes by the receiver once it may leave.
    pub(crate) fn submit(
        &mut self,
        now: Timestamp,
        slot: Slot,
        command: Command,
    ) -> (Ticket, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        if let Some(reason) = &self.closed {
            // The receiver is at hand, so that this cannot fail.
            let _ = sender.send(Answer::Refused(Refusal::Closed { reason: reason.clone() }));
            return (NOBODY, receiver);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiters.insert(ticket, sender);
        self.shard(slot).submit(now, ticket, command);
        self.fill(now);
        (ticket, receiver)
    }

    /// Forgets one who waited for a run's end; nothing is left of one who was told.
    pub(crate) fn unwatch(&mut self, run: RunId, ticket: Ticket) -> Option<oneshot::Sender<Answer>> {
        let waiter = self.waiters.remove(&ticket)?;
        if self.closed.is_none() {
            self.shard(run.slot()).unwatch(run, ticket);
        }
        Some(waiter)
    }

    /// Lets free workers claim what is ready, so that the claims ride in the batch that is being gathered.
    pub(crate) fn fill(&mut self, now: Timestamp) {
        self.throttle.begin_round();
        if self.draining {
            return;
        }
        if !self.throttle.is_empty() {
            self.report();
        }
        let shards = self.shards.len();
        for pool in &mut self.pools {
            for turn in 0..shards {
                let free = pool.capacity - pool.running;
                if free == 0 {
                    break;
                }
                let index = (self.first_shard + turn) % shards;
                pool.running += self.shards[index].claim(now, pool.workers[index], free, &mut self.throttle);
            }
        }
        if shards > 1 {
            self.first_shard = (self.first_shard + 1) % shards;
        }
    }

    /// Every shard tells the throttle what began and what ended: room made in one of them is room for all.
    fn report(&mut self) {
        for shard in &mut self.shards {
            shard.report(&mut self.throttle);
        }
    }

    /// What the run's shard and the throttle know of its surroundings.
    pub(crate) fn surroundings(&mut self, run: RunId) -> Surroundings {
        self.report();
        let home = self.map.home(run.slot());
        self.shards[usize::from(home.0)].surroundings(run, &self.throttle)
    }

    /// How many attempts local workers have claimed, begun or not.
    pub(crate) fn running(&self) -> usize {
        self.pools.iter().map(|pool| pool.running).sum()
    }

    /// How many attempts an engine that stops waits for: without a store, only those that have begun.
    pub(crate) fn unfinished(&self) -> usize {
        if self.closed.is_some() { self.executing.len() } else { self.running() }
    }

    /// Lets everything happen that is due.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        for shard in &mut self.shards {
            if shard.next_wake().is_some_and(|at| at <= now) {
                shard.tick(now);
            }
        }
        self.fill(now);
    }

    /// When the next deadline of any shard is, or a rate lets somebody begin.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.shards.iter().filter_map(Shard::next_wake).chain(self.throttle.next_wake()).min()
    }

    /// How many rows wait to be sealed.
    pub(crate) fn gathered(&self) -> usize {
        self.shards.iter().map(Shard::gathered).sum()
    }

    /// Whether a shard has something to append.
    pub(crate) fn wants_append(&self) -> bool {
        self.shards.iter().any(Shard::wants_append)
    }

    /// How many runs have index rows that are behind.
    pub(crate) fn behind(&self) -> usize {
        self.shards.iter().map(Shard::behind).sum()
    }

    /// Whether index rows have been behind for so long, however busy the engine is.
    pub(crate) fn is_far_behind(&self, now: Timestamp, age_ms: u64) -> bool {
        self.behind_since.is_some_and(|since| now.since(since) >= age_ms)
    }

    /// Takes no more commands. Gives everybody who waits, to be told without the lock.
    pub(crate) fn close(&mut self, reason: &str) -> Vec<oneshot::Sender<Answer>> {
        self.closed.get_or_insert_with(|| reason.to_owned());
        self.draining = true;
        for shard in &mut self.shards {
            // What was gathered will never be appended.
            drop(shard.seal());
        }
        self.waiters.drain().map(|(_, waiter)| waiter).collect()
    }

    /// Takes what must be appended, and, if `flush` says so, the index rows that follow it.
    pub(crate) fn seal(&mut self, flush: bool) -> (Vec<Batch>, Vec<Flush>) {
        let mut batches = Vec::with_capacity(self.shards.len());
        let mut flushes = Vec::new();
        for shard in &mut self.shards {
            batches.extend(shard.seal());
            if flush {
                self.behind_since = None;
                flushes.extend(shard.flush());
            }
        }
        (batches, flushes)
    }

    /// Whether something may leave now.
    pub(crate) fn has_outputs(&self) -> bool {
        self.shards.iter().any(Shard::has_outputs)
    }

    /// Takes what may leave now.
    pub(crate) fn drain_outputs(&mut self, into: &mut Vec<Output>) {
        for shard in &mut self.shards {
            shard.drain_outputs(into);
        }
    }

    /// Takes what must be loaded.
    pub(crate) fn take_loads(&mut self) -> Vec<(ShardId, Load)> {
        let mut loads = Vec::new();
        for shard in &mut self.shards {
            let id = shard.id();
            loads.extend(shard.take_loads().into_iter().map(|load| (id, load)));
        }
        loads
    }

    /// When local claims must be extended next, given a lease.
    pub(crate) fn arm_beat(&mut self, now: Timestamp, lease_ms: u64) {
        if self.next_beat.is_none() {
            self.next_beat = Some(now.after(lease_ms / 3));
        }
    }

    /// A local attempt is over: its place is free.
    pub(crate) fn finished(&mut self, claim: ClaimId) {
        if let Some(executing) = self.executing.remove(&claim) {
            self.pools[executing.pool].running -= 1;
        }
    }

    /// Extends the claims of attempts that have been executing for a while.
    pub(crate) fn beat(&mut self, now: Timestamp, token: TokenHash, lease_ms: u64) {
        let mut claims: Vec<ClaimId> = self
            .executing
            .iter()
            .filter(|(_, executing)| now.since(executing.since) >= lease_ms / 6)
            .map(|(claim, _)| *claim)
            .collect();
        claims.sort();
        for claim in claims {
            self.shard(claim.run.slot()).submit(now, NOBODY, Command::Heartbeat { claim, token });
        }
        self.next_beat = (!self.executing.is_empty()).then(|| now.after(lease_ms / 3));
    }
}
