//! Faults on demand: a test says what goes wrong next, and where.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use abide_kernel::{RunId, Seq, ShardEpoch, ShardId};

use super::lock;
use super::state::State;
use crate::{Fault, FaultKind};

/// How a write goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteFault {
    /// Nothing is written, and the caller is told so: the disk is full.
    Refused,
    /// It is written, but the caller cannot know: the connection broke before the answer.
    UnknownWritten,
    /// It is not written, and the caller cannot know.
    UnknownLost,
    /// The first half of the shards' batches are written and the others are not, and the caller cannot know.
    UnknownTorn,
    /// The sync failed, and what was to be written is there when the store is opened anew.
    FatalWritten,
    /// The sync failed, and what was to be written is gone when the store is opened anew.
    FatalLost,
}

impl WriteFault {
    /// Every way, for tests that try all.
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::UnknownWritten,
        Self::UnknownLost,
        Self::UnknownTorn,
        Self::FatalWritten,
        Self::FatalLost,
    ];

    /// What the caller is told.
    #[must_use]
    pub fn kind(self) -> FaultKind {
        match self {
            Self::Refused => FaultKind::Refused,
            Self::UnknownWritten | Self::UnknownLost | Self::UnknownTorn => FaultKind::Unknown,
            Self::FatalWritten | Self::FatalLost => FaultKind::Fatal,
        }
    }

    /// Whether the write, or some of it, is there afterwards.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::UnknownWritten | Self::UnknownTorn | Self::FatalWritten => true,
            Self::Refused | Self::UnknownLost | Self::FatalLost => false,
        }
    }

    /// What it comes to for a write of so many pieces: one piece is never torn.
    pub(super) fn on(self, pieces: usize) -> Self {
        if self == Self::UnknownTorn && pieces < 2 { Self::UnknownWritten } else { self }
    }

    pub(super) fn fault(self) -> Fault {
        let message = match self {
            Self::Refused => "the disk is full: nothing was written",
            Self::UnknownWritten | Self::UnknownLost | Self::UnknownTorn => {
                "the answer to a write was lost: reload and look"
            }
            Self::FatalWritten | Self::FatalLost => "a sync failed: this store is not written to again",
        };
        Fault::new(self.kind(), message)
    }
}

/// What went wrong, each counted when somebody met it.
#[derive(Clone, Debug, Default)]
pub struct Struck {
    /// Appends, by how they went wrong.
    pub appends: BTreeMap<WriteFault, u64>,
    /// Flushes.
    pub flushes: u64,
    /// Shards that were to be taken or released, and nodes that were to leave.
    pub ownerships: u64,
    /// Reads.
    pub reads: u64,
}

/// What is to go wrong, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    appends: VecDeque<Option<WriteFault>>,
    flushes: VecDeque<Option<WriteFault>>,
    ownerships: VecDeque<WriteFault>,
    reads: u64,
    pub(super) struck: Struck,
    /// How long it takes to open a shard, by the store's clock.
    pub(super) opening_ms: i64,
    /// The contents as they were when syncing stopped.
    synced: Option<Box<State>>,
}

impl Script {
    pub(super) fn next_append(&mut self, pieces: usize) -> Option<WriteFault> {
        let fault = self.appends.pop_front().flatten()?.on(pieces);
        *self.struck.appends.entry(fault).or_default() += 1;
        Some(fault)
    }

    pub(super) fn next_flush(&mut self) -> Option<WriteFault> {
        let fault = self.flushes.pop_front().flatten()?;
        self.struck.flushes += 1;
        Some(fault)
    }

    pub(super) fn next_ownership(&mut self) -> Option<WriteFault> {
        let fault = self.ownerships.pop_front()?;
        self.struck.ownerships += 1;
        Some(fault)
    }

    pub(super) fn meet_read(&mut self) -> Result<(), Fault> {
        if self.reads == 0 {
            return Ok(());
        }
        self.reads -= 1;
        self.struck.reads += 1;
        Err(Fault::new(FaultKind::Refused, "the store cannot be read now"))
    }
}

/// Makes a store in memory fail on demand.
#[derive(Clone, Debug)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

impl Faults {
    pub(super) fn new(state: Arc<Mutex<State>>) -> Self {
        Self { state }
    }

    /// The next append that is not scripted yet fails.
    pub fn fail_append(&self, fault: WriteFault) {
        self.fail_append_after(0, fault);
    }

    /// Of the appends that are not scripted yet, so many go well and the one after them fails.
    pub fn fail_append_after(&self, appends: usize, fault: WriteFault) {
        let script = &mut lock(&self.state).script;
        script.appends.extend(std::iter::repeat_n(None, appends));
        script.appends.push_back(Some(fault));
    }

    /// The next flush that is not scripted yet fails.
    pub fn fail_flush(&self, fault: WriteFault) {
        lock(&self.state).script.flushes.push_back(Some(fault));
    }

    /// The next time that a shard is to be taken or released, or a node is to leave, it fails.
    pub fn fail_ownership(&self, fault: WriteFault) {
        lock(&self.state).script.ownerships.push_back(fault);
    }

    /// What went wrong so far.
    #[must_use]
    pub fn struck(&self) -> Struck {
        lock(&self.state).script.struck.clone()
    }

    /// The next `reads` reads of the owner fail.
    pub fn fail_reads(&self, reads: u64) {
        lock(&self.state).script.reads = reads;
    }

    /// Each shard takes so long to open from now on, by the clock of a store that nodes share.
    pub fn slow_opening(&self, ms: i64) {
        lock(&self.state).script.opening_ms = ms;
    }

    /// How many batches were refused because their owner is not, or no longer, the shard's.
    #[must_use]
    pub fn stale_writes(&self) -> u64 {
        lock(&self.state).stale_writes
    }

    /// A batch that was written though its ownership had ended: the shard, that ownership and the one that had followed.
    /// Whatever refuses such batches is not what looks for them here.
    #[must_use]
    pub fn usurped(&self) -> Option<(ShardId, ShardEpoch, ShardEpoch)> {
        lock(&self.state).usurped
    }

    /// Nothing that was to go wrong does.
    pub fn heal(&self) {
        let script = &mut lock(&self.state).script;
        *script = Script { struck: std::mem::take(&mut script.struck), ..Script::default() };
    }

    /// Deletes every index row, checkpoint and watermark. The log stays.
    pub fn lose_index(&self) {
        lock(&self.state).lose_index();
    }

    /// From now on writes are acknowledged but not synced.
    pub fn stop_syncing(&self) {
        let mut state = lock(&self.state);
        let copy = state.clone();
        state.script.synced = Some(Box::new(copy));
    }

    /// The power fails: everything since [`stop_syncing`](Self::stop_syncing) is gone.
    pub fn lose_unsynced(&self) {
        let mut state = lock(&self.state);
        if let Some(synced) = state.script.synced.take() {
            *state = *synced;
        }
    }

    /// Damages a journal row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn corrupt_row(&self, shard: ShardId, seq: Seq) {
        let mut state = lock(&self.state);
        let row = &mut state.shards[usize::from(shard.0)].rows[seq.0 as usize - 1];
        row.facts[0] ^= 1;
    }

    /// Damages what is kept of a shard beside its log: it can neither be opened nor released.
    pub fn corrupt_shard(&self, shard: ShardId) {
        lock(&self.state).shards[usize::from(shard.0)].row_damaged = true;
    }

    /// Damages the first envelope for a shard that it has not consumed, whenever there is one.
    pub fn corrupt_mail(&self, shard: ShardId) {
        lock(&self.state).shards[usize::from(shard.0)].mail_damaged = true;
    }

    /// Damages a run's checkpoint.
    ///
    /// # Panics
    /// When the run has no index row.
    pub fn corrupt_checkpoint(&self, run: RunId) {
        let mut state = lock(&self.state);
        let indexed = state.runs.get_mut(&run).expect("the run has an index row");
        indexed.record.checkpoint[0] ^= 1;
    }
}
