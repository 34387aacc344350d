//! The waist between the engine and whatever keeps its facts.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Batch, Flush, LinePlace};
use abide_kernel::{Row, Run, RunId, Seq, ShardEpoch, ShardId, ShardMap, Timestamp};

use crate::transaction::{Outcome, Place, Transacted, Work};
use crate::{
    Cluster, DeadLetterItem, Depth, Fault, FaultKind, Filter, Import, Intake, Kept, Listed, Membership, Page, Serving,
    Stats, StoredToken,
};

/// What a shard's owner needs to know to go on.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The new ownership.
    pub epoch: ShardEpoch,
    /// The last position in the log.
    pub head: Seq,
    /// Index rows are complete up to here.
    pub watermark: Seq,
    /// The last envelope sent to each shard.
    pub sent: Vec<u64>,
    /// The last envelope consumed from each shard.
    pub consumed: Vec<u64>,
    /// The instant of the last row: the shard's clock never runs below it.
    pub last_at: Timestamp,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is durable.
    Durable,
    /// Nothing of it was written: another owns the shard now, its owner's lease has ended, or the position is taken.
    Stale,
}

/// A row of a log, or what is wrong with it.
pub type Scanned = Result<Row, Fault>;

/// A run as the index has it.
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// The folded run.
    pub run: Run,
    /// The position of its last row.
    pub head: Seq,
}

/// A page of deadlines.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// Instants and runs, in order.
    pub entries: Vec<(Timestamp, RunId)>,
    /// Where the next page begins, if there is more.
    pub more_from: Option<Timestamp>,
}

/// A page of a line of waiting attempts.
#[derive(Clone, Debug, Default)]
pub struct ReadyPage {
    /// Their runs by their places, in the order in which they would be claimed.
    pub places: Vec<LinePlace>,
    /// Whether there are more.
    pub more: bool,
}

/// How often a store was read and written, for those who claim that an idle engine does neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads of any kind.
    pub reads: u64,
    /// Writes of any kind.
    pub writes: u64,
    /// Batches made durable.
    pub commits: u64,
    /// Journal rows made durable.
    pub rows: u64,
    /// Bytes of facts made durable.
    pub fact_bytes: u64,
    /// Nanoseconds spent in commits of batches, where they are told apart from what comes before.
    pub sync_ns: u64,
}

/// Where a node's shards keep what they know. One owner writes at a time.
pub trait Store: Send {
    /// Which shard serves which slot, as the store is configured.
    fn map(&self) -> ShardMap;

    /// Takes ownership of a shard: every earlier owner's appends are refused from now on. In a store that nodes share,
    /// `owner` is the process under which the node renews its lease.
    ///
    /// # Errors
    /// When the store cannot be read or written, or the shard belongs to another node that lives.
    fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault>;

    /// What several nodes need, if they can share this store.
    fn cluster(&mut self) -> Option<&mut dyn Cluster> {
        None
    }

    /// What was asked by SQL inside of the users' own transactions, if the store can be asked like that.
    ///
    /// # Errors
    /// When the way there cannot be made.
    fn intake(&self) -> Result<Option<Box<dyn Intake>>, Fault> {
        Ok(None)
    }

    /// Where the users' own transactions go, if they have connections of their own: known to whoever knows this store.
    fn pool(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Carries out the users' own work on the connection that writes, and writes its outcome with it, unless an attempt
    /// before has. It is undone when it takes longer than `limit`.
    ///
    /// # Errors
    /// When the store cannot be written, or has no SQL of its own.
    fn transact(&mut self, place: &Place, limit: Duration, work: Work<'_>) -> Result<Transacted, Fault> {
        let _ = (place, limit, work);
        let message = "this store has no such transactions: they need an engine on sqlite:";
        Err(Fault::new(FaultKind::Unusable, message.to_owned()))
    }

    /// Appends the batches of several shards as one group. Each is written whole or not at all. An envelope whose number
    /// is taken, or a dead letter that is not there, refuses the whole group.
    ///
    /// # Errors
    /// When nothing was written, or when that is not known; the fault's kind tells which.
    fn append(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault>;

    /// Writes index rows and checkpoints of several shards behind, each shard at most once, and moves their watermarks. A
    /// stale owner's are ignored.
    ///
    /// # Errors
    /// When they could not be written, or not all of them. The log is not touched.
    fn flush(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault>;

    /// Rows of a shard's log after a position, in order: about `most`, and none only at the end of the log. A row
    /// that is damaged, or is missing between others, stands in its place as a fault that names its position, so
    /// that other runs can be read on. A row without facts was emptied, because its run was purged or compacted
    /// later in the log.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault>;

    /// A run by its index row.
    ///
    /// # Errors
    /// When the record cannot be read or is damaged.
    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault>;

    /// The run whose index row occupies a business key.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn read_key(&mut self, identity: &str) -> Result<Option<RunId>, Fault>;

    /// Runs of a shard by the instant at which something happens to them, from `from` on.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn read_due(&mut self, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault>;

    /// Runs of a shard that are held by a worker.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn read_claimed(&mut self, shard: ShardId) -> Result<Vec<RunId>, Fault>;

    /// The lines in which attempts of a shard wait, in order.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn read_lines(&mut self, shard: ShardId) -> Result<Vec<String>, Fault>;

    /// Runs that wait in a line behind a place and can be claimed at `now`, in claim order.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn read_ready(
        &mut self,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        most: usize,
    ) -> Result<ReadyPage, Fault>;

    /// Envelopes for a shard that it has not consumed, in order per sender.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read_envelopes(&mut self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault>;

    /// Says what the owner can execute, where those who read the store from outside find it. A store that nobody can
    /// read from outside has no such place.
    ///
    /// # Errors
    /// When it could not be written. Nothing depends on it.
    fn announce(&mut self, _: &Serving) -> Result<(), Fault> {
        Ok(())
    }

    /// What whoever fills an empty store needs.
    fn import(&mut self) -> &mut dyn Import;

    /// Keeps a token by which clients of a server are known, in place of one with the same id.
    ///
    /// # Errors
    /// When it could not be written.
    fn write_token(&mut self, token: &StoredToken) -> Result<(), Fault>;

    /// Forgets a token. Whether there was one.
    ///
    /// # Errors
    /// When that could not be written.
    fn remove_token(&mut self, id: &str) -> Result<bool, Fault>;

    /// Keeps what a server wrote down, all of it or nothing, in place of what has the same kind and id.
    ///
    /// # Errors
    /// When it could not be written.
    fn keep(&mut self, all: &[Kept]) -> Result<(), Fault>;

    /// Forgets something that was kept. Whether there was such a thing.
    ///
    /// # Errors
    /// When that could not be written.
    fn forget(&mut self, kind: &str, id: &str) -> Result<bool, Fault>;

    /// Forgets what was kept of a kind under ids below one, the lowest first and at most so many. How many that were.
    ///
    /// # Errors
    /// When that could not be written.
    fn forget_below(&mut self, kind: &str, id: &str, most: usize) -> Result<u64, Fault>;

    /// Another view of the same store, for inspection beside the owner.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn reader(&self) -> Result<Box<dyn Reader>, Fault>;

    /// How often the store was read and written so far, by this owner and its readers.
    fn counters(&self) -> Counters;

    /// Leaves the store in good order: nothing more is written.
    ///
    /// # Errors
    /// When something could not be brought in order; nothing is lost.
    fn close(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Opens views of a store, for as long as the store is there.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Reader>, Fault> + Send + Sync>;

/// A view of a store for inspection. It never writes.
pub trait Reader: Send {
    /// Which shard serves which slot, as the store is configured.
    fn map(&self) -> ShardMap;

    /// Makes more views of the same store, to be read beside this one.
    fn opener(&self) -> Opener;

    /// How far index rows are complete, for each shard.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn watermarks(&mut self) -> Result<Vec<(ShardId, Seq)>, Fault>;

    /// Rows of a shard's log after a position, in order: about `most`, and none only at the end of the log. A row
    /// that is damaged, or is missing between others, stands in its place as a fault that names its position, so
    /// that other runs can be read on. A row without facts was emptied, because its run was purged or compacted
    /// later in the log.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault>;

    /// A run by its index row.
    ///
    /// # Errors
    /// When the record cannot be read or is damaged.
    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault>;

    /// A run's journal: the rows from `head` back to the one it begins with, in order, without those before `from`. It
    /// begins with a `started` or a `compacted` row. From a head that was purged or compacted away since, rows come
    /// without facts.
    ///
    /// # Errors
    /// When the log cannot be read or a row is damaged.
    fn journal(&mut self, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault>;

    /// Where the rows of that journal lie from revision `from` on, in order: the first `most` of them. However long it is,
    /// no more than that is kept on the way back through it.
    ///
    /// # Errors
    /// When the log cannot be read or the run's rows do not lead back to each other.
    fn trail(&mut self, run: RunId, head: Seq, from: u64, most: usize) -> Result<Vec<Seq>, Fault>;

    /// Rows of a run by their positions, in order, until their facts take up `bytes`: at least one, if there is any. What
    /// was purged or compacted away since comes without facts.
    ///
    /// # Errors
    /// When the log cannot be read, or a row is damaged, missing or not the run's.
    fn rows(&mut self, run: RunId, places: &[Seq], bytes: usize) -> Result<Vec<Row>, Fault>;

    /// Runs whose index rows match, newest first.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault>;

    /// Envelopes that were set aside.
    ///
    /// # Errors
    /// When they cannot be read.
    fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault>;

    /// Sizes and counts.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn stats(&mut self) -> Result<Stats, Fault>;

    /// Tokens by which clients of a server are known, by id.
    ///
    /// # Errors
    /// When they cannot be read, or one is damaged.
    fn tokens(&mut self) -> Result<Vec<StoredToken>, Fault>;

    /// A token by its id.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    fn token(&mut self, id: &str) -> Result<Option<StoredToken>, Fault>;

    /// What was kept of a kind, the largest ids first, and only those below `before`.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    fn kept(&mut self, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault>;

    /// What was kept of a kind under an id.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    fn kept_as(&mut self, kind: &str, id: &str) -> Result<Option<Kept>, Fault>;

    /// How much waits in the queues of a namespace, as index rows have it, by queue.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn depths(&mut self, namespace: Option<&str>) -> Result<Vec<Depth>, Fault>;

    /// How many bytes the store takes up.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn bytes(&mut self) -> Result<u64, Fault>;

    /// Run ids that begin with `prefix` (hex digits, without `run_`), at most `most`.
    ///
    /// # Errors
    /// When the index cannot be read.
    fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault>;

    /// What transactions of the users' own came to, in the order of their places, after one of them.
    ///
    /// # Errors
    /// When they cannot be read, or one is damaged.
    fn outcomes(&mut self, after: Option<&Outcome>, most: usize) -> Result<Vec<Outcome>, Fault> {
        let _ = (after, most);
        Ok(Vec::new())
    }

    /// Who lives, who is gone, and who owns what; `None` of a store for one owner at a time.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn membership(&mut self) -> Result<Option<Membership>, Fault> {
        Ok(None)
    }
}
