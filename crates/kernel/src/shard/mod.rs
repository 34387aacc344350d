//! A shard: many runs, their ready work and their deadlines, over one log. It does no I/O.
//!
//! In go commands, loads, "durable up to n" and the current instant; out come batches to append, loads to
//! make, and, once durable, answers, dispatches and the next instant at which it wants to be woken. A batch
//! that is refused, or whose outcome is unknown, ends this object: the driver drops it and opens the shard anew.

mod admit;
mod claim;
pub mod command;
mod commit;
mod deadlines;
mod execute;
mod hash;
mod letters;
mod load;
mod messages;
mod orphans;
mod ready;
mod recent;
mod resident;
mod throttle;
mod transact;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use claim::Worker;
pub use command::*;
pub use load::Loaded;
pub use ready::{LaneKey, Order, Windows};
pub use throttle::{BadRule, Hold, Rate, Rule, Rules, Scope, Throttle};

use crate::envelope::{Envelope, Message};
use crate::{Claimant, LetterId, Run, RunId, Seq, ShardEpoch, ShardId, ShardMap, Str, Timestamp};
use deadlines::Deadlines;
use hash::Map;
use orphans::Orphans;
use ready::Ready;
use recent::Recent;
use resident::Resident;
use throttle::Tally;

/// What a shard is told when it is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which shard it is.
    pub id: ShardId,
    /// Which shard serves which slot.
    pub map: ShardMap,
    /// The ownership under which it writes.
    pub epoch: ShardEpoch,
    /// The node that owns it.
    pub node: Str,
    /// The process that runs local workers: claims of other processes' local workers are known to be lost.
    pub process: Str,
    /// The last position in its log.
    pub head: Seq,
    /// The last envelope sent to each shard.
    pub sent: Vec<u64>,
    /// The last envelope consumed from each shard.
    pub consumed: Vec<u64>,
    /// Whether a notifier wants to hear of scheduled attempts.
    pub notify: bool,
    /// How much ready work is kept in memory.
    pub windows: Windows,
    /// The rules of the throttle that is lent to every claim.
    pub rules: Rules,
    /// How long an attempt waits for its definition, where workers of its queue lack it, before it is set aside.
    pub definition_wait_ms: u64,
}

/// Those to whom something was owed when a shard was dropped.
#[derive(Debug, Default)]
pub struct Abandoned {
    /// Every ticket whose answer has not left.
    pub tickets: Vec<Ticket>,
    /// The worker of every attempt that was claimed and not handed out.
    pub undelivered: Vec<(WorkerId, Arc<Claimant>)>,
}

/// A deterministic state machine over a durable log.
#[derive(Clone, Debug)]
pub struct Shard {
    config: Config,
    now: Timestamp,
    opened_at: Timestamp,
    head: Seq,
    /// How many of `head` were handed over to be appended.
    sealed: Seq,

    runs: Map<RunId, Box<Resident>>,
    ready: Ready,
    tally: Tally,
    orphans: Orphans,
    deadlines: Deadlines,
    keys: Map<String, RunId>,
    recent: Recent,
    workers: Vec<Worker>,
    watchers: Map<RunId, Vec<(Ticket, execute::Watched)>>,
    /// Starts that wait for a run in another shard to begin, by the record that holds their key.
    beginning: Map<RunId, Vec<(Ticket, Answer)>>,

    batch: Batch,
    /// How many batches were sealed, and how many of them are durable.
    batches_sealed: u64,
    batches_durable: u64,
    messages: VecDeque<Message>,
    /// Envelopes received and not yet consumed, by sender.
    inbound: Vec<VecDeque<Envelope>>,

    /// What leaves once so many batches are durable. A batch may hold envelopes alone, so positions would not do.
    release: VecDeque<(u64, Output)>,
    outputs: Vec<Output>,
    loads: Vec<Load>,
    waiting_runs: Map<RunId, Vec<load::Waiting>>,
    waiting_keys: Map<String, Vec<load::Waiting>>,
    paging_due: bool,

    dirty: Vec<RunId>,
    purged: Vec<(RunId, Seq)>,
    /// Runs in the flush that is under way.
    flushing: Vec<RunId>,
    /// Runs that were loaded for one command and may leave again.
    visitors: Vec<RunId>,
    purging: Vec<(RunId, Seq)>,
    /// Purged runs that the store may still have: a load of one of them finds nothing.
    gone: Map<RunId, ()>,
    /// Children whose admission waits for their key, and that are known not to have begun.
    absent: Map<RunId, ()>,
    /// The first row of the log that is damaged, of those that were read.
    damaged_at: Option<Seq>,
    /// Dead letters whose removal is gathered or under way: the store still has them.
    settling: Map<LetterId, ()>,
    bug: Option<String>,
}

impl Shard {
    /// A shard without runs at the given position. What it had is given to it by [`Shard::adopt`].
    #[must_use]
    pub fn new(config: Config, now: Timestamp) -> Self {
        let shards = usize::from(config.map.count());
        assert_eq!(config.sent.len(), shards, "one number per receiver");
        assert_eq!(config.consumed.len(), shards, "one number per sender");
        Self {
            now,
            opened_at: now,
            head: config.head,
            sealed: config.head,
            runs: Map::default(),
            ready: Ready::new(config.windows),
            tally: Tally::new(config.rules.clone()),
            orphans: Orphans::default(),
            deadlines: Deadlines::default(),
            keys: Map::default(),
            recent: Recent::new(now),
            workers: Vec::new(),
            watchers: Map::default(),
            beginning: Map::default(),
            batch: Batch { shard: config.id, epoch: config.epoch, ..Batch::default() },
            batches_sealed: 0,
            batches_durable: 0,
            messages: VecDeque::new(),
            inbound: (0..shards).map(|_| VecDeque::new()).collect(),
            release: VecDeque::new(),
            outputs: Vec::new(),
            loads: Vec::new(),
            waiting_runs: Map::default(),
            waiting_keys: Map::default(),
            paging_due: false,
            dirty: Vec::new(),
            purged: Vec::new(),
            flushing: Vec::new(),
            visitors: Vec::new(),
            purging: Vec::new(),
            gone: Map::default(),
            absent: Map::default(),
            damaged_at: None,
            settling: Map::default(),
            bug: None,
            config,
        }
    }

    /// Which shard it is.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.config.id
    }

    /// Which shard serves which slot.
    #[must_use]
    pub fn map(&self) -> ShardMap {
        self.config.map
    }

    /// Gives it a command. The answer leaves by [`Shard::take_outputs`] once it is durable.
    pub fn submit(&mut self, now: Timestamp, ticket: Ticket, command: Command) {
        self.advance(now);
        match command {
            Command::Start { request, spec } => self.start(Some(ticket), request, spec),
            Command::Unflushed => {
                let answer = Answer::Unflushed(self.unflushed());
                self.answer(Some(ticket), answer);
            }
            Command::Settle { letter, envelope, how } => self.settle_letter(ticket, letter, *envelope, how),
            command => self.execute_or_load(Some(ticket), command),
        }
        self.pump();
    }

    /// Lets time pass: whatever is due happens.
    pub fn tick(&mut self, now: Timestamp) {
        self.advance(now);
        while let Some(run) = self.deadlines.pop_due(self.now) {
            self.expire(run);
        }
        self.set_orphans_aside();
        if let Some(from) = self.deadlines.wants_page(self.now)
            && !self.paging_due
        {
            self.paging_due = true;
            self.loads.push(Load::Due { from });
        }
        self.pump();
    }

    /// Takes what may leave now.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        core::mem::take(&mut self.outputs)
    }

    /// Whether something may leave now.
    #[must_use]
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Moves what may leave now to the end of `into`, which keeps its memory from call to call.
    pub fn drain_outputs(&mut self, into: &mut Vec<Output>) {
        into.append(&mut self.outputs);
    }

    /// Takes what must be loaded.
    pub fn take_loads(&mut self) -> Vec<Load> {
        let now = self.now;
        let page = |(line, last): (String, Order)| {
            let Order { priority, eligible_at, arrival, run, .. } = last;
            Load::Ready { line, after: LinePlace { priority, eligible_at, arrival, run }, now }
        };
        self.loads.extend(self.ready.take_wanted().into_iter().map(page));
        core::mem::take(&mut self.loads)
    }

    /// The next instant at which [`Shard::tick`] has something to do.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        // While a page is being read, what lies behind the horizon is on its way.
        let due = if self.paging_due { self.deadlines.first() } else { self.deadlines.next() };
        due.into_iter().chain(self.next_orphan().map(|(at, _)| at)).min()
    }

    /// A broken invariant, found before anything was appended: the driver drops the shard and opens it anew.
    #[must_use]
    pub fn bug(&self) -> Option<&str> {
        self.bug.as_deref()
    }

    /// Ends this object. Whoever waits for an answer must be told that the outcome is unknown.
    #[must_use]
    pub fn abandon(mut self) -> Abandoned {
        let mut tickets: Vec<Ticket> = Vec::new();
        let mut undelivered = Vec::new();
        for output in self.outputs.drain(..).chain(self.release.drain(..).map(|(_, output)| output)) {
            match output {
                Output::Answer(ticket, _) => tickets.push(ticket),
                Output::Dispatch(dispatch) => undelivered.push((dispatch.worker, dispatch.by)),
                _ => {}
            }
        }
        for (_, waiting) in self.waiting_runs.drain() {
            tickets.extend(waiting.into_iter().filter_map(|waiting| waiting.ticket));
        }
        for (_, waiting) in self.waiting_keys.drain() {
            tickets.extend(waiting.into_iter().filter_map(|waiting| waiting.ticket));
        }
        for (_, waiting) in self.watchers.drain() {
            tickets.extend(waiting.into_iter().map(|(ticket, _)| ticket));
        }
        for (_, waiting) in self.beginning.drain() {
            tickets.extend(waiting.into_iter().map(|(ticket, _)| ticket));
        }
        tickets.sort();
        Abandoned { tickets, undelivered }
    }

    /// The ownership under which it writes.
    #[must_use]
    pub fn epoch(&self) -> ShardEpoch {
        self.config.epoch
    }

    /// The last envelope sent to each shard.
    #[must_use]
    pub fn sent(&self) -> &[u64] {
        &self.config.sent
    }

    /// The number of the next envelope it takes in from a shard.
    #[must_use]
    pub fn expects(&self, from: ShardId) -> u64 {
        let sender = usize::from(from.0);
        1 + self.inbound[sender].back().map_or(self.config.consumed[sender], |back| back.number)
    }

    /// What it ever told the throttle it takes back, because it leaves.
    pub fn withdraw(&mut self, throttle: &mut Throttle) {
        self.tally.withdraw(throttle);
    }

    /// A run that is in memory, as it stands: listings merge it with what the store has. It may be ahead of what
    /// is durable, so nothing that leaves the process may be read from here.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<&Run> {
        self.runs.get(&id).map(|resident| &resident.run)
    }

    /// The shard's own time: the clock's, and never before its last fact.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether a run is in memory.
    #[must_use]
    pub fn is_resident(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    /// Drops a run whose record turned out to be damaged. Nothing is written: others go on.
    pub fn set_aside(&mut self, run: RunId) {
        self.drop_resident(run);
        self.dirty.retain(|dirty| *dirty != run);
    }

    /// What has changed since index rows were written, or is being written.
    fn unflushed(&self) -> Unflushed {
        let mut ids: Vec<RunId> = self.dirty.iter().chain(&self.flushing).copied().collect();
        ids.sort();
        ids.dedup();
        let records = ids.iter().filter_map(|id| self.runs.get(id)).map(|resident| resident.index_row()).collect();
        let mut gone: Vec<RunId> = self.gone.keys().copied().collect();
        gone.sort();
        Unflushed { records, gone }
    }

    /// Whoever asked with this ticket to be told of the run's end, or of its answer, no longer wants to know.
    pub fn unwatch(&mut self, run: RunId, ticket: Ticket) {
        if let Some(tickets) = self.watchers.get_mut(&run) {
            tickets.retain(|(watching, _)| *watching != ticket);
            if tickets.is_empty() {
                self.watchers.remove(&run);
            }
        }
    }

    /// How many runs are in memory.
    #[must_use]
    pub fn resident_runs(&self) -> usize {
        self.runs.len()
    }

    /// How many runs had to be looked at by `then`, and were not yet.
    #[must_use]
    pub fn overdue(&self, then: Timestamp) -> usize {
        self.deadlines.due_by(then)
    }

    /// Time never runs backwards for a shard, whatever the clock says.
    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// Queues an answer until everything decided so far is durable.
    fn answer(&mut self, ticket: Option<Ticket>, answer: Answer) {
        if let Some(ticket) = ticket {
            self.emit(Output::Answer(ticket, answer));
        }
    }

    /// Queues an output until everything decided so far is durable.
    fn emit(&mut self, output: Output) {
        let after = self.batches_sealed + u64::from(!self.batch.is_empty());
        if after <= self.batches_durable && self.bug.is_none() {
            self.outputs.push(output);
        } else {
            self.release.push_back((after, output));
        }
    }
}
