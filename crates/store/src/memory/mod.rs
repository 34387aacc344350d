//! The reference store: everything in memory, the same rules as every other store, and faults on demand.
//!
//! A [`MemoryStore`] is a handle. Its contents outlive the handle for as long as a clone exists: a test drops an
//! engine with its handle and goes on with a clone, as a process would that opens the same file.

mod attendant;
mod cluster;
mod faults;
mod import;
mod reader;
mod state;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Batch, Flush, LinePlace, Record};
use abide_kernel::{RunId, Seq, ShardId, ShardMap, Timestamp};

pub use attendant::{Attendant, Stage, Word};
pub use faults::{Faults, Operation, Rot, Struck, WriteFault};
pub use reader::MemoryReader;
pub use state::Paged;

use crate::counts::Counts;
use crate::{
    Cluster, Counters, DeadLetterItem, Due, Fault, FaultKind, Import, Kept, Opened, Reader, ReadyPage, Scanned, Store,
    StoredRun, StoredToken, Verdict,
};
use state::State;

/// A handle on a store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    map: ShardMap,
    state: Arc<Mutex<State>>,
    counts: Arc<Counts>,
    /// A sync failed under this handle: nothing more is written through it.
    stopped: bool,
    /// The store's own clock, if nodes share the store.
    clock: Option<Arc<AtomicI64>>,
    /// Who is asked about every write through this handle.
    attendant: Option<Arc<dyn Attendant>>,
}

impl MemoryStore {
    /// An empty store with `shards` shards.
    ///
    /// # Panics
    /// When `shards` is zero or exceeds the number of slots.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        let map = ShardMap::new(shards);
        let state = Arc::new(Mutex::new(State::new(map)));
        Self { map, state, counts: Arc::default(), stopped: false, clock: None, attendant: None }
    }

    /// Faults on demand, for the contents of this store whichever handle meets them.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(self.state.clone())
    }

    /// Shows every index row and its shard to whoever compares them with the journals.
    pub fn each_record(&self, mut look: impl FnMut(ShardId, &Record)) {
        lock(&self.state).runs.values().for_each(|found| look(found.shard, &found.record));
    }

    /// Up to which position of its log the index rows of a shard are written.
    #[must_use]
    pub fn watermark(&self, shard: ShardId) -> Seq {
        lock(&self.state).shards[usize::from(shard.0)].watermark
    }

    /// Where the log of a shard ends.
    #[must_use]
    pub fn head(&self, shard: ShardId) -> Seq {
        lock(&self.state).shards[usize::from(shard.0)].head()
    }

    /// Where the log of a shard ended each time that somebody took it.
    #[must_use]
    pub fn openings(&self, shard: ShardId) -> Vec<Seq> {
        lock(&self.state).shards[usize::from(shard.0)].openings.clone()
    }

    /// Envelopes that nobody has consumed.
    #[must_use]
    pub fn unconsumed(&self) -> Vec<Envelope> {
        let state = lock(&self.state);
        self.map.all().flat_map(|shard| state.unconsumed(shard)).cloned().collect()
    }

    /// Envelopes that were set aside.
    #[must_use]
    pub fn set_aside(&self) -> Vec<DeadLetterItem> {
        lock(&self.state).dead.clone()
    }

    /// How often something was read that did not fit into memory before.
    #[must_use]
    pub fn paged(&self) -> Paged {
        lock(&self.state).paged
    }

    fn read(&self) -> Result<MutexGuard<'_, State>, Fault> {
        self.counts.read();
        let mut state = lock(&self.state);
        state.script.meet_read()?;
        Ok(state)
    }

    fn check_going(&self) -> Result<(), Fault> {
        if self.stopped {
            let message = "a sync failed before: this store is not written to again; open it anew";
            return Err(Fault::new(FaultKind::Fatal, message));
        }
        Ok(())
    }

    /// After a write met `fault`: what the caller is told.
    fn tell(&mut self, fault: Option<WriteFault>) -> Result<(), Fault> {
        fault.map_or(Ok(()), |fault| Err(self.met(fault)))
    }

    fn met(&mut self, fault: WriteFault) -> Fault {
        self.stopped = fault.kind() == FaultKind::Fatal;
        fault.fault()
    }
}

/// Another handle on the same contents, as another process would have: it shares no ownership and no fault.
impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self {
            map: self.map,
            state: self.state.clone(),
            counts: Arc::default(),
            stopped: false,
            clock: self.clock.clone(),
            attendant: None,
        }
    }
}

impl Store for MemoryStore {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        self.begin_opening()?;
        self.counts.write();
        let mut state = lock(&self.state);
        if let Some(now) = self.now() {
            state.check_free(shard, owner, now)?;
        }
        if let Some(fault) = state.script.next_ownership() {
            if fault.writes() {
                state.open_shard(shard, owner)?;
            }
            drop(state);
            return Err(self.met(fault));
        }
        let opened = state.open_shard(shard, owner)?;
        if let Some(clock) = &self.clock {
            clock.fetch_add(state.script.opening_ms, Ordering::AcqRel);
        }
        drop(state);
        self.end_opening()?;
        Ok(opened)
    }

    fn cluster(&mut self) -> Option<&mut dyn Cluster> {
        self.clock.is_some().then_some(self as &mut dyn Cluster)
    }

    fn import(&mut self) -> &mut dyn Import {
        self
    }

    fn append(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        self.begin_write()?;
        let mut state = lock(&self.state);
        let verdicts = state.fence(group, self.now());
        state.stale_writes += verdicts.iter().filter(|verdict| **verdict == Verdict::Stale).count() as u64;
        if !verdicts.contains(&Verdict::Durable) {
            return Ok(verdicts);
        }
        self.counts.write();
        let fault = state.script.next_append(group.len());
        if fault.is_none_or(WriteFault::writes) {
            let torn = matches!(fault, Some(WriteFault::UnknownTorn | WriteFault::FatalTorn));
            let whole = if torn { group.len().div_ceil(2) } else { group.len() };
            let (rows, bytes) = state.append(&group[..whole], &verdicts[..whole])?;
            self.counts.commit(rows, bytes);
        }
        drop(state);
        self.tell(fault)?;
        self.end_write()?;
        Ok(verdicts)
    }

    fn flush(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault> {
        group.iter().map(|flush| self.flush_one(flush)).collect()
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        self.read()?.scan(shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        self.read()?.read_run(run)
    }

    fn read_key(&mut self, identity: &str) -> Result<Option<RunId>, Fault> {
        Ok(self.read()?.read_key(identity))
    }

    fn read_due(&mut self, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault> {
        let mut state = self.read()?;
        state.paged.deadlines += u64::from(from > Timestamp(i64::MIN));
        Ok(state.read_due(shard, from, most))
    }

    fn read_claimed(&mut self, shard: ShardId) -> Result<Vec<RunId>, Fault> {
        Ok(self.read()?.read_claimed(shard))
    }

    fn read_lines(&mut self, shard: ShardId) -> Result<Vec<String>, Fault> {
        Ok(self.read()?.read_lines(shard))
    }

    fn read_ready(
        &mut self,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        most: usize,
    ) -> Result<ReadyPage, Fault> {
        let mut state = self.read()?;
        state.paged.lines += u64::from(after.is_some());
        Ok(state.read_ready(shard, line, after, now, most))
    }

    fn read_envelopes(&mut self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
        self.read()?.read_envelopes(to, most)
    }

    fn write_token(&mut self, token: &StoredToken) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        lock(&self.state).tokens.insert(token.id.clone(), token.body.clone());
        Ok(())
    }

    fn remove_token(&mut self, id: &str) -> Result<bool, Fault> {
        self.check_going()?;
        self.counts.write();
        Ok(lock(&self.state).tokens.remove(id).is_some())
    }

    fn keep(&mut self, all: &[Kept]) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let entries = all.iter().map(|kept| ((kept.kind.clone(), kept.id.clone()), kept.body.clone()));
        lock(&self.state).kept.extend(entries);
        Ok(())
    }

    fn forget(&mut self, kind: &str, id: &str) -> Result<bool, Fault> {
        self.check_going()?;
        self.counts.write();
        Ok(lock(&self.state).kept.remove(&(kind.to_owned(), id.to_owned())).is_some())
    }

    fn forget_below(&mut self, kind: &str, id: &str, most: usize) -> Result<u64, Fault> {
        self.check_going()?;
        self.counts.write();
        let mut state = lock(&self.state);
        let (from, to) = ((kind.to_owned(), String::new()), (kind.to_owned(), id.to_owned()));
        let below: Vec<_> = state.kept.range(from..to).take(most).map(|(place, _)| place.clone()).collect();
        below.iter().for_each(|place| drop(state.kept.remove(place)));
        Ok(below.len() as u64)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, Fault> {
        Ok(Box::new(MemoryReader::new(self.map, self.state.clone(), self.counts.clone(), self.clock.clone())))
    }

    fn counters(&self) -> Counters {
        self.counts.snapshot()
    }
}

impl MemoryStore {
    fn flush_one(&mut self, flush: &Flush) -> Result<Verdict, Fault> {
        self.begin_write()?;
        let mut state = lock(&self.state);
        if !state.owns(flush.shard, flush.epoch, self.now()) {
            return Ok(Verdict::Stale);
        }
        self.counts.write();
        let fault = state.script.next_flush();
        if fault.is_none_or(WriteFault::writes) {
            state.flush(flush);
        }
        drop(state);
        self.tell(fault)?;
        self.end_write()?;
        Ok(Verdict::Durable)
    }
}

/// A panic elsewhere leaves the contents whole: they change only in calls that do not panic half-way.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
