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
    /// The sync failed, and the first half of the shards' batches is there when the store is opened anew.
    FatalTorn,
}

impl WriteFault {
    /// Every way, for tests that try all.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::UnknownWritten,
        Self::UnknownLost,
        Self::UnknownTorn,
        Self::FatalWritten,
        Self::FatalLost,
        Self::FatalTorn,
    ];

    /// What the caller is told.
    #[must_use]
    pub fn kind(self) -> FaultKind {
        match self {
            Self::Refused => FaultKind::Refused,
            Self::UnknownWritten | Self::UnknownLost | Self::UnknownTorn => FaultKind::Unknown,
            Self::FatalWritten | Self::FatalLost | Self::FatalTorn => FaultKind::Fatal,
        }
    }

    /// Whether the write, or some of it, is there afterwards.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::UnknownWritten | Self::UnknownTorn | Self::FatalWritten | Self::FatalTorn => true,
            Self::Refused | Self::UnknownLost | Self::FatalLost => false,
        }
    }

    /// What it comes to for a write of so many pieces: one piece is never torn.
    pub(super) fn on(self, pieces: usize) -> Self {
        match self {
            Self::UnknownTorn if pieces < 2 => Self::UnknownWritten,
            Self::FatalTorn if pieces < 2 => Self::FatalWritten,
            whole => whole,
        }
    }

    pub(super) fn fault(self) -> Fault {
        let message = match self {
            Self::Refused => "the disk is full: nothing was written",
            Self::UnknownWritten | Self::UnknownLost | Self::UnknownTorn => {
                "the answer to a write was lost: reload and look"
            }
            Self::FatalWritten | Self::FatalLost | Self::FatalTorn => {
                "a sync failed: this store is not written to again"
            }
        };
        Fault::new(self.kind(), message)
    }
}

/// What may go wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Appending to logs.
    Append,
    /// Writing index rows.
    Flush,
    /// Taking or releasing a shard, or leaving.
    Ownership,
    /// Renewing the lease of a node.
    Renewal,
    /// A read of the owner. It changes nothing, so that it is refused, whatever the fault is.
    Read,
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
    /// Leases of nodes that were to be renewed.
    pub renewals: u64,
    /// Reads.
    pub reads: u64,
}

impl Struck {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.appends.values().sum::<u64>() + self.flushes + self.ownerships + self.renewals + self.reads
    }
}

/// What is to go wrong, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    appends: VecDeque<Option<WriteFault>>,
    flushes: VecDeque<Option<WriteFault>>,
    ownerships: VecDeque<Option<WriteFault>>,
    renewals: VecDeque<Option<WriteFault>>,
    /// Reads that go well before those that do not.
    reads_before: u64,
    reads: u64,
    pub(super) struck: Struck,
    /// How long it takes to open a shard, by the store's clock.
    pub(super) opening_ms: i64,
    /// What has rotted.
    rotten: Vec<Rotten>,
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
        let fault = self.ownerships.pop_front().flatten()?;
        self.struck.ownerships += 1;
        Some(fault)
    }

    pub(super) fn next_renewal(&mut self) -> Option<WriteFault> {
        let fault = self.renewals.pop_front().flatten()?;
        self.struck.renewals += 1;
        Some(fault)
    }

    pub(super) fn meet_read(&mut self) -> Result<(), Fault> {
        if self.reads == 0 {
            return Ok(());
        }
        if self.reads_before > 0 {
            self.reads_before -= 1;
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
        self.fail_after(Operation::Append, 0, fault);
    }

    /// Of the appends that are not scripted yet, so many go well and the one after them fails.
    pub fn fail_append_after(&self, appends: usize, fault: WriteFault) {
        self.fail_after(Operation::Append, appends, fault);
    }

    /// Of the operations of a kind that are not scripted yet, so many go well and the one after them fails.
    pub fn fail_after(&self, operation: Operation, well: usize, fault: WriteFault) {
        let script = &mut lock(&self.state).script;
        let queue = match operation {
            Operation::Append => &mut script.appends,
            Operation::Flush => &mut script.flushes,
            Operation::Ownership => &mut script.ownerships,
            Operation::Renewal => &mut script.renewals,
            Operation::Read => {
                (script.reads_before, script.reads) = (well as u64, 1);
                return;
            }
        };
        queue.extend(std::iter::repeat_n(None, well));
        queue.push_back(Some(fault));
    }

    /// The next flush that is not scripted yet fails.
    pub fn fail_flush(&self, fault: WriteFault) {
        self.fail_after(Operation::Flush, 0, fault);
    }

    /// The next time that a shard is to be taken or released, or a node is to leave, it fails.
    pub fn fail_ownership(&self, fault: WriteFault) {
        self.fail_after(Operation::Ownership, 0, fault);
    }

    /// What went wrong so far.
    #[must_use]
    pub fn struck(&self) -> Struck {
        lock(&self.state).script.struck.clone()
    }

    /// The next `reads` reads of the owner fail.
    pub fn fail_reads(&self, reads: u64) {
        let script = &mut lock(&self.state).script;
        (script.reads_before, script.reads) = (0, reads);
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

    /// Nothing that was to go wrong does. What has rotted stays so.
    pub fn heal(&self) {
        let script = &mut lock(&self.state).script;
        let (struck, rotten) = (std::mem::take(&mut script.struck), std::mem::take(&mut script.rotten));
        *script = Script { struck, rotten, ..Script::default() };
    }

    /// Deletes every index row, checkpoint and watermark. The log stays.
    pub fn lose_index(&self) {
        lock(&self.state).lose_index();
    }

    /// One bit of something that is kept flips. Whether there was such a thing.
    pub fn rot(&self, what: Rot, bit: usize) -> bool {
        let mut state = lock(&self.state);
        let Some(kept) = kept(&mut state, what) else { return false };
        match kept {
            Keeping::Bytes(bytes) if bytes.is_empty() => return false,
            Keeping::Bytes(bytes) => {
                let (at, mask) = (bit / 8 % bytes.len(), 1 << (bit % 8));
                let sound = bytes.clone();
                bytes[at] ^= mask;
                let rotten = Rotten { what, sound, found: bytes.clone() };
                state.script.rotten.push(rotten);
            }
            Keeping::Flag(damaged) => *damaged = true,
        }
        true
    }

    /// Whatever has rotted, and was not written anew since, is as it was.
    pub fn mend(&self) {
        let mut state = lock(&self.state);
        while let Some(Rotten { what, sound, found }) = state.script.rotten.pop() {
            if let Some(Keeping::Bytes(bytes)) = kept(&mut state, what).filter(|kept| kept.is(&found)) {
                *bytes = sound;
            }
        }
        for shard in &mut state.shards {
            (shard.row_damaged, shard.mail_damaged) = (false, false);
        }
    }
}

/// What may rot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// The facts of a journal row.
    Row(ShardId, Seq),
    /// The checkpoint in the index row of a run.
    Checkpoint(RunId),
    /// What is kept of a shard beside its log: it can neither be opened nor released.
    Shard(ShardId),
    /// The first envelope for a shard that it has not consumed, whenever there is one.
    Mail(ShardId),
}

/// Something that has rotted.
#[derive(Clone, Debug)]
struct Rotten {
    what: Rot,
    sound: Vec<u8>,
    found: Vec<u8>,
}

/// Where something is kept.
enum Keeping<'a> {
    Bytes(&'a mut Vec<u8>),
    Flag(&'a mut bool),
}

impl Keeping<'_> {
    fn is(&self, found: &[u8]) -> bool {
        matches!(self, Self::Bytes(bytes) if **bytes == found)
    }
}

fn kept(state: &mut State, what: Rot) -> Option<Keeping<'_>> {
    match what {
        Rot::Row(shard, seq) => {
            let rows = &mut state.shards.get_mut(usize::from(shard.0))?.rows;
            rows.get_mut((seq.0 as usize).wrapping_sub(1)).map(|row| Keeping::Bytes(&mut row.facts))
        }
        Rot::Checkpoint(run) => state.runs.get_mut(&run).map(|indexed| Keeping::Bytes(&mut indexed.record.checkpoint)),
        Rot::Shard(shard) => {
            state.shards.get_mut(usize::from(shard.0)).map(|shard| Keeping::Flag(&mut shard.row_damaged))
        }
        Rot::Mail(shard) => {
            state.shards.get_mut(usize::from(shard.0)).map(|shard| Keeping::Flag(&mut shard.mail_damaged))
        }
    }
}
