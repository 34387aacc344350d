//! A toy world around real shards: an in-memory log and index per shard, a clock that is moved by hand, a wire
//! that carries envelopes. Nothing here decides anything about a run.

pub mod act;
pub mod check;
pub mod random;
pub mod script;
pub mod text;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use abide_kernel::envelope::{DeadEnvelope, Envelope};
use abide_kernel::limits::DEFINITION_WAIT_MS_DEFAULT;
use abide_kernel::shard::{
    Answer, Batch, Command, Config, Dispatch, LinePlace, Load, Loaded, Output, Record, Rule, Rules, Shard, Throttle,
    Ticket, Windows, Worker, WorkerId,
};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{
    Claimant, Fingerprint, LetterId, Phase, RequestId, Row, Run, RunId, Seq, ShardEpoch, ShardId, ShardMap, StartSpec,
    Timestamp, TokenHash, stable_hash,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The instant at which every world begins; texts show times relative to it.
pub const BASE: Timestamp = Timestamp(1_000_000_000_000);

/// How many waiting attempts and deadlines of cold runs a world keeps in memory: few, so that paging happens.
const WINDOWS: Windows = Windows { lane: 2, key: 1, due: 3, page: 512, visitors: 256 };

/// What one shard has made durable.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub rows: Vec<Row>,
    pub outbox: Vec<Envelope>,
    pub consumed: Vec<u64>,
    pub dead: BTreeMap<LetterId, DeadEnvelope>,
    pub letters: u64,
    pub index: BTreeMap<RunId, Record>,
    pub through: Seq,
}

/// A worker as a test describes it: it joins every shard again after a crash.
#[derive(Clone, Debug)]
pub struct Hand {
    pub name: String,
    pub lease_ms: u64,
    pub queues: Vec<String>,
    pub definitions: Vec<Definition>,
    pub local: bool,
}

impl Hand {
    pub fn new(name: &str, flows: &[&str]) -> Self {
        Self {
            name: name.into(),
            lease_ms: 1_000,
            queues: vec!["default".into()],
            definitions: flows.iter().map(|flow| definition(flow)).collect(),
            local: false,
        }
    }

    pub fn token(&self) -> TokenHash {
        token(&self.name)
    }
}

/// The token hash of the worker called `name`.
pub fn token(name: &str) -> TokenHash {
    TokenHash(u128::from(stable_hash(name.as_bytes())))
}

/// A definition written `flow`, `flow@version` or `flow@version#fingerprint`; its first step is `begin`.
pub fn definition(text: &str) -> Definition {
    let (rest, fingerprint) = text.split_once('#').unwrap_or((text, "7"));
    let (workflow, version) = rest.split_once('@').unwrap_or((rest, "1"));
    Definition {
        workflow: workflow.into(),
        version: version.parse().expect("a version"),
        fingerprint: Fingerprint(fingerprint.parse().expect("a fingerprint")),
        first_step: "begin".into(),
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// What was gathered and not appended is lost.
    BeforeAppend,
    /// What was gathered is appended, but nobody is told.
    AfterAppend,
}

pub struct World {
    pub now: Timestamp,
    pub map: ShardMap,
    pub shards: Vec<Shard>,
    pub disks: Vec<Disk>,
    pub hands: Vec<Hand>,
    pub rules: Rules,
    pub throttle: Throttle,
    pub notify: bool,
    /// Whether batches wait for [`World::durable`] instead of being appended at once.
    pub held: bool,
    /// Whether loads wait instead of being answered at once.
    pub loads_held: bool,
    /// Whether envelopes stay on the wire.
    pub wire_held: bool,
    pub waiting_loads: VecDeque<(usize, Load)>,
    pub wire: VecDeque<Envelope>,
    pub outputs: Vec<Output>,
    pub new_rows: Vec<Row>,
    pub dispatches: BTreeMap<RunId, Dispatch>,
    pub lost: Vec<Ticket>,
    process: u32,
    tickets: u64,
    requests: u64,
}

impl World {
    pub fn new(shards: u16) -> Self {
        let map = ShardMap::new(shards);
        let count = usize::from(shards);
        let mut world = Self {
            now: BASE,
            map,
            shards: Vec::new(),
            disks: vec![Disk { consumed: vec![0; count], ..Disk::default() }; count],
            hands: Vec::new(),
            rules: Rules::default(),
            throttle: Throttle::default(),
            notify: false,
            held: false,
            loads_held: false,
            wire_held: false,
            waiting_loads: VecDeque::new(),
            wire: VecDeque::new(),
            outputs: Vec::new(),
            new_rows: Vec::new(),
            dispatches: BTreeMap::new(),
            lost: Vec::new(),
            process: 1,
            tickets: 0,
            requests: 0,
        };
        world.open();
        world
    }

    /// A world whose claims keep to `rules`.
    pub fn throttled(shards: u16, rules: Vec<Rule>) -> Self {
        let mut world = Self::new(shards);
        world.rules = Rules::new(rules).expect("rules");
        world.open();
        world
    }

    /// Goes by other rules from now on.
    pub fn go_by(&mut self, rules: Vec<Rule>) {
        self.rules = Rules::new(rules).expect("rules");
        self.throttle.go_by(&self.rules);
        self.shards.iter_mut().for_each(|shard| shard.go_by(&self.rules));
    }

    fn config(&self, shard: usize) -> Config {
        let disk = &self.disks[shard];
        let mut sent = vec![0; self.disks.len()];
        for envelope in &disk.outbox {
            sent[usize::from(envelope.to.0)] = envelope.number;
        }
        Config {
            id: ShardId(shard as u16),
            map: self.map,
            epoch: ShardEpoch(u64::from(self.process)),
            node: "node".into(),
            process: self.process_name(),
            head: disk.rows.last().map_or(Seq(0), |row| row.seq),
            sent,
            consumed: disk.consumed.clone(),
            notify: self.notify,
            windows: WINDOWS,
            rules: self.rules.clone(),
            definition_wait_ms: DEFINITION_WAIT_MS_DEFAULT,
        }
    }

    fn process_name(&self) -> abide_kernel::Str {
        format!("process-{}", self.process).into()
    }

    /// Opens every shard from what is durable: index rows first, then the log after them.
    fn open(&mut self) {
        // What a rate has used up is known to the process alone, and dies with it.
        self.throttle = Throttle::new(&self.rules);
        self.shards = (0..self.disks.len()).map(|index| Shard::new(self.config(index), self.now)).collect();
        for index in 0..self.shards.len() {
            self.recall(index);
        }
        for hand in self.hands.clone() {
            self.admit_hand(&hand);
        }
        for disk in &self.disks {
            for envelope in &disk.outbox {
                let consumed = self.disks[usize::from(envelope.to.0)].consumed[usize::from(envelope.from.0)];
                if envelope.number > consumed {
                    self.wire.push_back(envelope.clone());
                }
            }
        }
    }

    fn recall(&mut self, index: usize) {
        let (shard, disk) = (&mut self.shards[index], &self.disks[index]);
        let newer = |run: &RunId| disk.rows.iter().any(|row| row.run == *run && row.seq > disk.through);
        for (id, record) in &disk.index {
            let run = fold_of(disk, record);
            let held = run.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_)));
            if held || newer(id) {
                shard.adopt(run, record.head);
            }
        }
        for row in disk.rows.iter().filter(|row| row.seq > disk.through && !row.facts.is_empty()) {
            shard.replay(row).expect("the log folds");
        }
        let lines: BTreeSet<&String> =
            disk.index.values().filter_map(|record| Some(&record.ready.as_ref()?.0)).collect();
        for line in lines {
            let (page, last) = ready_page(disk, line, None, shard.now());
            shard.loaded_ready(self.now, line, page, last);
        }
        shard.replayed(self.now);
        for run in shard.claimed_runs() {
            shard.end_lost_claims(run);
        }
        let (page, more) = due_page(disk, Timestamp(i64::MIN));
        shard.loaded_due(self.now, &page, more);
    }

    /// Makes a worker known to every shard, now and after every crash.
    pub fn join(&mut self, hand: Hand) {
        self.hands.push(hand.clone());
        self.admit_hand(&hand);
    }

    fn admit_hand(&mut self, hand: &Hand) {
        let id = self.worker(&hand.name);
        for shard in &mut self.shards {
            let queues = hand.queues.iter().map(|queue| queue.as_str().into()).collect();
            shard.join(id, Worker::new(queues, hand.definitions.clone()));
        }
    }

    fn claimant(&self, worker: WorkerId) -> Arc<Claimant> {
        let hand = &self.hands[worker.0 as usize];
        let process = hand.local.then(|| self.process_name());
        Claimant::new(hand.name.as_str().into(), hand.token(), hand.lease_ms, process)
    }

    pub fn worker(&self, name: &str) -> WorkerId {
        let index = self.hands.iter().position(|hand| hand.name == name);
        WorkerId(index.expect("a worker that joined") as u32)
    }

    pub fn home(&self, run: RunId) -> usize {
        usize::from(self.map.home(run.slot()).0)
    }

    /// A request id that was never used, made now.
    pub fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::new(self.now, u128::from(self.requests))
    }

    pub fn submit(&mut self, command: Command) -> Ticket {
        let shard = match &command {
            Command::Start { request, spec } => self.map.home(spec.admission_slot(*request)),
            Command::Settle { envelope, .. } => envelope.to,
            other => other.run().map_or(ShardId(0), |run| self.map.home(run.slot())),
        };
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.shards[usize::from(shard.0)].submit(self.now, ticket, command);
        self.settle();
        ticket
    }

    /// Submits a command and gives back the one answer it must have by now.
    pub fn ask(&mut self, command: Command) -> Answer {
        let ticket = self.submit(command);
        self.answer(ticket).expect("an answer")
    }

    /// Takes the answer to `ticket`, if it has left.
    pub fn answer(&mut self, ticket: Ticket) -> Option<Answer> {
        let found = self.outputs.iter().position(|output| matches!(output, Output::Answer(to, _) if *to == ticket))?;
        match self.outputs.remove(found) {
            Output::Answer(_, answer) => Some(answer),
            _ => None,
        }
    }

    pub fn start(&mut self, spec: StartSpec) -> RunId {
        let request = self.request();
        let id = spec.run_id(request);
        self.submit(Command::Start { request, spec: Box::new(spec) });
        id
    }

    /// Lets a worker claim up to `most` attempts, shard by shard.
    pub fn claim(&mut self, worker: &str, most: usize) -> usize {
        let id = self.worker(worker);
        let by = self.claimant(id);
        let mut claimed = 0;
        self.throttle.begin_round();
        self.shards.iter_mut().for_each(|shard| shard.report(&mut self.throttle));
        for shard in &mut self.shards {
            claimed += shard.claim(self.now, id, &by, most - claimed, &mut self.throttle);
        }
        self.settle();
        claimed
    }

    pub fn has_work(&mut self, worker: &str) -> bool {
        let id = self.worker(worker);
        let (now, throttle) = (self.now, &mut self.throttle);
        self.shards.iter_mut().any(|shard| shard.has_work(now, id, throttle))
    }

    /// Moves the clock and lets everything that is due happen.
    pub fn tick(&mut self, ms: u64) {
        self.now = self.now.after(ms);
        for shard in &mut self.shards {
            shard.tick(self.now);
        }
        self.settle();
    }

    /// Everything gathered becomes durable, also while commits are held.
    pub fn durable(&mut self) {
        let held = core::mem::replace(&mut self.held, false);
        self.settle();
        self.held = held;
    }

    /// Answers loads, appends batches and carries envelopes until nothing is left to do.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for index in 0..self.shards.len() {
                let loads = self.shards[index].take_loads();
                self.waiting_loads.extend(loads.into_iter().map(|load| (index, load)));
                if !self.held {
                    moved |= self.commit(index);
                }
                self.collect(index);
            }
            if !self.loads_held {
                moved |= self.load_one();
            }
            if !self.wire_held
                && let Some(envelope) = self.wire.pop_front()
            {
                self.shards[usize::from(envelope.to.0)].receive(self.now, envelope);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Answers the load asked for first.
    pub fn load_one(&mut self) -> bool {
        let Some((index, load)) = self.waiting_loads.pop_front() else {
            return false;
        };
        let (shard, disk) = (&mut self.shards[index], &self.disks[index]);
        match load {
            Load::Run(id) => {
                let loaded = disk
                    .index
                    .get(&id)
                    .map_or(Loaded::Missing, |record| Loaded::Run(Box::new(fold_of(disk, record)), record.head));
                shard.loaded_run(self.now, id, loaded);
            }
            Load::Key(identity) => {
                let holder = disk.index.values().find(|record| record.occupies.as_deref() == Some(&identity));
                let loaded = |record: &Record| Loaded::Run(Box::new(fold_of(disk, record)), record.head);
                shard.loaded_key(self.now, &identity, holder.map(|record| (record.run, loaded(record))));
            }
            Load::Due { from } => {
                let (page, more) = due_page(disk, from);
                shard.loaded_due(self.now, &page, more);
            }
            Load::Ready { line, after, now } => {
                let (page, last) = ready_page(disk, &line, Some(after), now);
                shard.loaded_ready(self.now, &line, page, last);
            }
        }
        true
    }

    /// Seals and appends what a shard has gathered, and tells it.
    pub fn commit(&mut self, index: usize) -> bool {
        let Some(batch) = self.shards[index].seal() else {
            assert_eq!(self.shards[index].bug(), None);
            return false;
        };
        self.append(index, &batch);
        for row in &batch.rows {
            // Of long lives every so often: a run is written whole.
            if row.rev.0 < 16 || row.rev.0.is_power_of_two() {
                check_read_back(&row.facts);
                self.shards[index].run(row.run).into_iter().for_each(check_read_back);
            }
        }
        self.shards[index].durable(self.now, batch);
        true
    }

    /// Writes a batch to the toy disk.
    pub fn append(&mut self, index: usize, batch: &Batch) {
        let disk = &mut self.disks[index];
        disk.rows.extend(batch.rows.iter().cloned());
        disk.outbox.extend(batch.envelopes.iter().cloned());
        for letter in &batch.settled {
            disk.dead.remove(letter).expect("a dead letter is settled once");
        }
        for dead in &batch.dead {
            disk.letters += 1;
            disk.dead.insert(LetterId(disk.letters), dead.clone());
        }
        for (sender, number) in &batch.consumed {
            disk.consumed[usize::from(sender.0)] = *number;
        }
        self.new_rows.extend(batch.rows.iter().cloned());
    }

    fn collect(&mut self, index: usize) {
        for output in self.shards[index].take_outputs() {
            match output {
                Output::Deliver(envelope) => self.wire.push_back(envelope),
                Output::Dispatch(dispatch) => {
                    self.dispatches.insert(dispatch.claim.run, (*dispatch).clone());
                    self.outputs.push(Output::Dispatch(dispatch));
                }
                other => self.outputs.push(other),
            }
        }
    }

    /// Writes the index rows of every shard; runs that nobody needs leave memory.
    pub fn flush(&mut self) {
        for index in 0..self.shards.len() {
            self.flush_one(index);
        }
    }

    pub fn flush_one(&mut self, index: usize) {
        let Some(flush) = self.shards[index].flush() else {
            return;
        };
        let disk = &mut self.disks[index];
        for record in flush.records {
            disk.index.insert(record.run, record);
        }
        for (run, _) in flush.purged {
            disk.index.remove(&run);
        }
        for (run, begins) in flush.compacted {
            debug_assert_eq!(disk.rows[begins.0 as usize - 1].run, run);
            // Only this life of the run: long after a purge the same id may have begun again.
            let mut next = disk.rows[begins.0 as usize - 1].prior;
            while next.0 != 0 {
                let row = &mut disk.rows[next.0 as usize - 1];
                row.facts.clear();
                next = row.prior;
            }
        }
        disk.through = flush.through;
        self.shards[index].flushed();
    }

    /// The process dies and another opens the shards from what is durable.
    pub fn crash(&mut self, how: Crash) {
        for index in 0..self.shards.len() {
            if how == Crash::AfterAppend
                && let Some(batch) = self.shards[index].seal()
            {
                self.append(index, &batch);
            }
        }
        for shard in std::mem::take(&mut self.shards) {
            self.lost.extend(shard.abandon().tickets);
        }
        self.waiting_loads.clear();
        self.wire.clear();
        self.process += 1;
        self.open();
        self.settle();
    }

    /// Forgets every index row and checkpoint: the log alone is the truth.
    pub fn forget_index(&mut self) {
        for disk in &mut self.disks {
            disk.index.clear();
            disk.through = Seq(0);
        }
    }

    /// The run as the log has it.
    pub fn folded(&self, id: RunId) -> Option<Run> {
        check::fold(&self.disks[self.home(id)].rows, id)
    }

    pub fn resident_runs(&self) -> usize {
        self.shards.iter().map(Shard::resident_runs).sum()
    }
}

/// What is written can be read, and is the same.
fn check_read_back<T: Serialize + DeserializeOwned>(written: &T) {
    let text = serde_json::to_string(written).expect("it can be written");
    let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(serde_json::to_string(&read).expect("it can be written"), text);
}

/// The run as its checkpoint keeps it, or, where that is left out, as its journal does.
pub fn fold_of(disk: &Disk, record: &Record) -> Run {
    if record.checkpoint.is_empty() {
        let rows = &disk.rows[..record.head.0 as usize];
        return check::fold(rows, record.run).expect("a journal");
    }
    serde_json::from_slice(&record.checkpoint).expect("a checkpoint")
}

/// A page of the runs that wait in a line, and its last place if there are more.
fn ready_page(
    disk: &Disk,
    line: &str,
    after: Option<LinePlace>,
    now: Timestamp,
) -> (Vec<(Run, Seq)>, Option<LinePlace>) {
    let waits = |record: &Record| {
        let (_, place) = record.ready.as_ref().filter(|(of, _)| of == line)?;
        (Some(*place) > after && place.eligible_at <= now).then_some(*place)
    };
    let places: BTreeSet<LinePlace> = disk.index.values().filter_map(waits).collect();
    let page: Vec<LinePlace> = places.iter().take(WINDOWS.lane).copied().collect();
    let last = page.last().copied().filter(|_| page.len() < places.len());
    let stored = |place: LinePlace| (fold_of(disk, &disk.index[&place.run]), disk.index[&place.run].head);
    (page.into_iter().map(stored).collect(), last)
}

fn due_page(disk: &Disk, from: Timestamp) -> (Vec<(Timestamp, RunId)>, Option<Timestamp>) {
    let mut due: Vec<(Timestamp, RunId)> = disk
        .index
        .values()
        .filter_map(|record| Some((record.due?, record.run)))
        .filter(|(at, _)| *at >= from)
        .collect();
    due.sort();
    // Whole instants only: a page that ended within one would begin with it again for ever.
    let mut end = due.len().min(WINDOWS.due);
    while end > 0 && end < due.len() && due[end].0 == due[end - 1].0 {
        end += 1;
    }
    let more = due.get(end).map(|(at, _)| *at);
    due.truncate(end);
    (due, more)
}
