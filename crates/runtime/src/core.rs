//! The core: all shards of the process and what only memory knows, behind one lock.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_kernel::explain::Surroundings;
use abide_kernel::shard::{Answer, Batch, Command, Dispatch, Flush, Load, Output, Rules, Throttle, Ticket, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{
    ClaimId, Claimant, PlannedStep, Refusal, RunId, Shard, ShardId, ShardMap, Slot, StartSpec, Str, Timestamp,
    TokenHash,
};
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::desk::{Desk, Handed};
use crate::link::unknown;
use crate::program::{News, Program};
use crate::ring::Ring;
use crate::telemetry::{Meter, OpenSpans};

/// Shards, pools and those who wait for answers.
pub(crate) struct Core {
    pub(crate) map: ShardMap,
    /// By number; `None` where another node serves it, or nobody.
    pub(crate) shards: Vec<Option<Shard>>,
    /// The others, if nodes share the store.
    pub(crate) ring: Option<Ring>,
    pub(crate) pools: Vec<PoolState>,
    /// Who claims for them.
    claimant: Arc<Claimant>,
    /// Workers outside of this process, and what is on its way to them.
    pub(crate) desk: Desk,
    pub(crate) handed: Vec<Handed>,
    /// Caps and rates, over all shards.
    pub(crate) throttle: Throttle,
    pub(crate) waiters: HashMap<Ticket, Waiting>,
    pub(crate) next_ticket: u64,
    pub(crate) executing: HashMap<ClaimId, Executing>,
    /// Which shard is asked first for work; it moves on, so that none is favoured.
    first_shard: usize,
    /// Whether what is ready is claimed at once, and not after all of a group was said.
    filling: bool,
    /// Set when no new attempts are claimed any more.
    pub(crate) draining: bool,
    /// Set when no command is taken any more, and why.
    pub(crate) closed: Option<String>,
    /// The last invariant that did not hold, if one did not.
    pub(crate) bug: Option<String>,
    /// Batches that were appended, in order; what hangs on them has not left yet.
    pub(crate) durable: VecDeque<Batch>,
    pub(crate) last_change: Timestamp,
    /// When the oldest change happened that index rows do not say yet.
    pub(crate) behind_since: Option<Timestamp>,
    pub(crate) next_beat: Option<Timestamp>,
    /// What happened so far, and what has not ended.
    pub(crate) meter: Meter,
    pub(crate) spans: OpenSpans,
}

/// A pool of local workers for one queue.
pub(crate) struct PoolState {
    pub(crate) capacity: usize,
    pub(crate) running: usize,
}

/// Someone who waits for an answer.
pub(crate) enum Waiter {
    /// A caller here.
    Here(oneshot::Sender<Answer>),
    /// A caller here, for whom it may have been done before: that it cannot be done any more says nothing of that.
    Again(oneshot::Sender<Answer>),
    /// Another node, which asked under a number.
    There { process: Str, id: u64 },
    /// An attempt here, whose claim is kept in a shard elsewhere.
    Beat(ClaimId),
    /// Nobody; but it must arrive.
    Nobody,
}

impl Waiter {
    /// The same, of whom somebody was asked who may have done it and did not say so.
    pub(crate) fn again(self) -> Self {
        match self {
            Self::Here(sender) => Self::Again(sender),
            other => other,
        }
    }
}

/// A waiter, and what was asked, if it may be asked again elsewhere.
pub(crate) struct Waiting {
    pub(crate) waiter: Waiter,
    again: Again,
    /// Whether nothing comes of it but the answer.
    reads: bool,
}

/// What was asked, if it may be asked again.
pub(crate) type Again = Option<(Slot, Box<Command>)>;

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

    /// Completes a start by the definition that is registered: of this version, or the newest. Else says which are.
    pub(crate) fn plan(&self, spec: &mut StartSpec, version: Option<u32>) -> Result<(), String> {
        let known = self.definitions.iter().filter(|known| known.workflow == spec.workflow);
        let found = match version {
            Some(version) => known.clone().find(|known| known.version == version),
            None => known.clone().max_by_key(|known| known.version),
        };
        let Some(definition) = found else {
            let names = self.definitions.iter().map(|known| format!("{} v{}", known.workflow, known.version));
            let names: Vec<String> = names.collect();
            return Err(if names.is_empty() { "none is".into() } else { format!("registered: {}", names.join(", ")) });
        };
        spec.version = definition.version;
        spec.fingerprint = Some(definition.fingerprint);
        spec.steps = vec![PlannedStep { step: definition.first_step.clone(), needs: Vec::new() }];
        Ok(())
    }

    pub(crate) fn find(&self, workflow: &Arc<str>, version: u32) -> Option<&Arc<dyn Program>> {
        self.by_name.get(&(workflow.clone(), version))
    }
}

/// The ticket of commands whose answer nobody waits for.
pub(crate) const NOBODY: Ticket = Ticket(0);

impl Core {
    pub(crate) fn new(map: ShardMap, limits: &Rules, claimant: Arc<Claimant>, pools: usize) -> Self {
        Self {
            shards: map.all().map(|_| None).collect(),
            map,
            ring: None,
            pools: Vec::new(),
            claimant,
            desk: Desk::new(pools),
            handed: Vec::new(),
            throttle: Throttle::new(limits),
            waiters: HashMap::new(),
            next_ticket: 1,
            executing: HashMap::new(),
            first_shard: 0,
            filling: true,
            draining: false,
            closed: None,
            bug: None,
            durable: VecDeque::new(),
            last_change: Timestamp(0),
            behind_since: None,
            next_beat: None,
            meter: Meter::default(),
            spans: OpenSpans::default(),
        }
    }

    /// The shards that are served here.
    pub(crate) fn served(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().flatten()
    }

    pub(crate) fn served_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().flatten()
    }

    /// A shard that is served here, by its number.
    pub(crate) fn at(&mut self, id: ShardId) -> Option<&mut Shard> {
        self.shards.get_mut(usize::from(id.0))?.as_mut()
    }

    /// Whether a shard is served here, which takes a lease where nodes share the store.
    pub(crate) fn serves(&self, now: Timestamp, id: ShardId) -> bool {
        let in_time = self.ring.as_ref().is_none_or(|ring| now < ring.serves_until);
        in_time && self.shards.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    /// Gives a command to its shard; the answer comes by the receiver once it may leave.
    pub(crate) fn submit(
        &mut self,
        now: Timestamp,
        slot: Slot,
        command: Command,
    ) -> (Ticket, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        (self.put(now, slot, command, Waiter::Here(sender)), receiver)
    }

    /// Gives several commands to their shards; what follows from them is left to be claimed.
    pub(crate) fn submit_all(
        &mut self,
        now: Timestamp,
        commands: Vec<(Slot, Command)>,
    ) -> Vec<oneshot::Receiver<Answer>> {
        self.filling = false;
        let submitted = commands.into_iter().map(|(slot, command)| self.submit(now, slot, command).1).collect();
        self.filling = true;
        submitted
    }

    /// Gives a command to its shard, for someone who waits.
    pub(crate) fn put(&mut self, now: Timestamp, slot: Slot, command: Command, waiter: Waiter) -> Ticket {
        if let Some(reason) = &self.closed {
            if let Waiter::Here(sender) = waiter {
                // The receiver is at hand, so that this cannot fail.
                let _ = sender.send(Answer::Refused(Refusal::Closed { reason: reason.clone() }));
            }
            return NOBODY;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.place(now, ticket, slot, command, waiter);
        ticket
    }

    /// Gives a command to its shard here, or keeps it for whoever serves the shard.
    pub(crate) fn place(&mut self, now: Timestamp, ticket: Ticket, slot: Slot, command: Command, waiter: Waiter) {
        let home = self.map.home(slot);
        let serves = self.serves(now, home);
        let Some(shard) = self.shards[usize::from(home.0)].as_mut().filter(|_| serves) else {
            self.forward(now, ticket, slot, command, waiter);
            return;
        };
        let again = self.ring.is_some() && command.is_repeatable();
        let again = again.then(|| (slot, Box::new(command.clone())));
        let reads = command.changes_nothing();
        self.waiters.insert(ticket, Waiting { waiter, again, reads });
        shard.submit(now, ticket, command);
        self.fill(now);
    }

    /// Gives a command to its shard that nobody waits for.
    pub(crate) fn put_quietly(&mut self, now: Timestamp, slot: Slot, command: Command) {
        let home = self.map.home(slot);
        if self.closed.is_some() {
            return;
        }
        if self.serves(now, home)
            && let Some(shard) = self.at(home)
        {
            shard.submit(now, NOBODY, command);
        } else {
            self.put(now, slot, command, Waiter::Nobody);
        }
    }

    /// Takes whoever waits under a ticket, and what they asked if it may be asked again.
    pub(crate) fn take_waiting(&mut self, ticket: Ticket) -> Option<(Waiter, Again)> {
        let Waiting { waiter, again, .. } = self.waiters.remove(&ticket)?;
        Some((waiter, again))
    }

    /// Forgets one who waited for a run's end; nothing is left of one who was told.
    pub(crate) fn unwatch(&mut self, run: RunId, ticket: Ticket) -> Option<Waiter> {
        if let Some(waiter) = self.ring.as_mut().and_then(|ring| ring.forget(ticket)) {
            return Some(waiter);
        }
        let waiting = self.waiters.remove(&ticket)?;
        let home = self.map.home(run.slot());
        if let Some(shard) = self.at(home) {
            shard.unwatch(run, ticket);
        }
        Some(waiting.waiter)
    }

    /// Takes back what waits for another node. What a shard here was given is answered soon, and stays.
    pub(crate) fn take_back(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.ring.as_mut()?.forget(ticket)
    }

    /// Lets free workers claim what is ready, so that the claims ride in the batch that is being gathered.
    pub(crate) fn fill(&mut self, now: Timestamp) {
        if !self.filling {
            return;
        }
        self.throttle.begin_round();
        if self.draining {
            return;
        }
        if !self.throttle.is_empty() {
            self.report();
        }
        // A node whose lease is over claims nothing: what it would hand out may be another's by now.
        if self.ring.as_ref().is_some_and(|ring| now >= ring.serves_until) {
            return;
        }
        let shards = self.shards.len();
        let order = (0..shards).map(|turn| (self.first_shard + turn) % shards);
        let has_work = |shard: &Option<Shard>| shard.as_ref().is_some_and(Shard::has_ready);
        let busy: Vec<usize> = order.filter(|index| has_work(&self.shards[*index])).collect();
        for (number, pool) in self.pools.iter_mut().enumerate() {
            for index in &busy {
                let free = pool.capacity.saturating_sub(pool.running);
                if free == 0 {
                    break;
                }
                // Pools join each shard in the same order, so that a pool's number is its worker's.
                let worker = WorkerId(number as u32);
                if let Some(shard) = &mut self.shards[*index] {
                    pool.running += shard.claim(now, worker, &self.claimant, free, &mut self.throttle);
                }
            }
        }
        if self.desk.is_waiting(!busy.is_empty()) {
            let (all, throttle) = (&mut self.shards, &mut self.throttle);
            let promises = self.desk.fill(now, |worker, by, most| {
                let mut claimed = 0;
                for shard in &busy {
                    if let Some(shard) = all[*shard].as_mut().filter(|_| claimed < most) {
                        claimed += shard.claim(now, worker, by, most - claimed, throttle);
                    }
                }
                claimed
            });
            self.keep(promises);
        }
        if !busy.is_empty() {
            self.tell_work(now, &busy);
        }
        if shards > 1 {
            self.first_shard = (self.first_shard + 1) % shards;
        }
    }

    /// Every shard tells the throttle what began and what ended: room made in one of them is room for all.
    fn report(&mut self) {
        for shard in self.shards.iter_mut().flatten() {
            shard.report(&mut self.throttle);
        }
    }

    /// What the run's shard and the throttle know of its surroundings.
    pub(crate) fn surroundings(&mut self, run: RunId) -> Surroundings {
        self.report();
        let home = self.map.home(run.slot());
        let shard = self.shards[usize::from(home.0)].as_ref();
        shard.map(|shard| shard.surroundings(run, &self.throttle)).unwrap_or_default()
    }

    /// Whether an attempt was claimed for a worker of this process.
    pub(crate) fn is_local(&self, dispatch: &Dispatch) -> bool {
        (dispatch.worker.0 as usize) < self.pools.len()
    }

    /// How many attempts local workers have claimed, begun or not.
    pub(crate) fn running(&self) -> usize {
        self.pools.iter().map(|pool| pool.running).sum()
    }

    /// How many attempts an engine that stops waits for: without a store, only those that have begun.
    pub(crate) fn unfinished(&self) -> usize {
        let unheard = self.ring.as_ref().map_or(0, Ring::unheard);
        if self.closed.is_some() { self.executing.len() } else { self.running() + unheard }
    }

    /// Lets everything happen that is due.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        for shard in self.served_mut() {
            if shard.next_wake().is_some_and(|at| at <= now) {
                shard.tick(now);
            }
        }
        for idle in self.desk.forget_idle(now) {
            self.served_mut().for_each(|shard| shard.leave(idle));
        }
        self.fill(now);
    }

    /// When the next deadline of any shard is, or a rate lets somebody begin.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.served().filter_map(Shard::next_wake).chain(self.throttle.next_wake()).min()
    }

    /// The same, or when something is to be said to other nodes or to the store.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let ring = self.ring.as_ref().map(Ring::next_wake);
        self.next_due().into_iter().chain(ring).chain(self.desk.next_idle()).min()
    }

    /// How many rows wait to be sealed.
    pub(crate) fn gathered(&self) -> usize {
        self.served().map(Shard::gathered).sum()
    }

    /// Whether a shard has something to append.
    pub(crate) fn wants_append(&self) -> bool {
        self.served().any(Shard::wants_append)
    }

    /// How many runs have index rows that are behind.
    pub(crate) fn behind(&self) -> usize {
        self.served().map(Shard::behind).sum()
    }

    /// Whether index rows have been behind for so long, however busy the engine is.
    pub(crate) fn is_far_behind(&self, now: Timestamp, age_ms: u64) -> bool {
        self.behind_since.is_some_and(|since| now.since(since) >= age_ms)
    }

    /// Takes no more commands. Gives everybody who waits, to be told without the lock: whoever only reads that there is no
    /// more to come, and whoever asked for something to be done that nobody knows whether it is.
    pub(crate) fn close(&mut self, reason: &str) -> Vec<(oneshot::Sender<Answer>, Answer)> {
        self.closed.get_or_insert_with(|| reason.to_owned());
        self.draining = true;
        self.desk.close();
        for shard in self.served_mut() {
            // What was gathered will never be appended.
            drop(shard.seal());
        }
        let mut told = Vec::new();
        let mut waiting: Vec<(Ticket, Waiting)> = std::mem::take(&mut self.waiters).into_iter().collect();
        waiting.sort_by_key(|(ticket, _)| *ticket);
        let waiting = waiting.into_iter().map(|(_, waiting)| (waiting.waiter, waiting.reads));
        let forwarded = self.ring.as_mut().map(Ring::take_forwards).unwrap_or_default();
        for (waiter, reads) in waiting.chain(forwarded) {
            match waiter {
                Waiter::Here(sender) | Waiter::Again(sender) if reads => {
                    told.push((sender, Answer::Refused(Refusal::Closed { reason: reason.into() })));
                }
                Waiter::Here(sender) | Waiter::Again(sender) => told.push((sender, unknown())),
                Waiter::There { process, id } => self.answer_there(&process, id, unknown()),
                Waiter::Beat(_) | Waiter::Nobody => {}
            }
        }
        told
    }

    /// Takes what must be appended, and, if `flush` says so, the index rows that follow it.
    pub(crate) fn seal(&mut self, flush: bool) -> (Vec<Batch>, Vec<Flush>) {
        let mut batches = Vec::with_capacity(self.shards.len());
        let mut flushes = Vec::new();
        for shard in self.shards.iter_mut().flatten() {
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
        self.served().any(Shard::has_outputs)
    }

    /// Takes what may leave now.
    pub(crate) fn drain_outputs(&mut self, into: &mut Vec<Output>) {
        for shard in self.served_mut() {
            shard.drain_outputs(into);
        }
    }

    /// Takes what must be loaded.
    pub(crate) fn take_loads(&mut self) -> Vec<(ShardId, Load)> {
        let mut loads = Vec::new();
        for shard in self.served_mut() {
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
            let slot = claim.run.slot();
            let home = self.map.home(slot);
            let command = Command::Heartbeat { claim, token };
            if self.serves(now, home) {
                self.put_quietly(now, slot, command);
            } else {
                self.put(now, slot, command, Waiter::Beat(claim));
            }
        }
        self.next_beat = (!self.executing.is_empty()).then(|| now.after(lease_ms / 3));
    }
}
