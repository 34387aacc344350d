//! Intake: what was asked by SQL inside of the users' own transactions. It is noted in the store when they commit, and one
//! node at a time takes it in: the one that owns the shard [`HOST`]. That ownership is the lock under which it works, as
//! for every job of which there must be one.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{RequestId, RunId, ShardEpoch, ShardId};

use crate::{Fault, Verdict};

/// Whoever owns this shard takes in what is asked by SQL, and looks after the tables.
pub const HOST: ShardId = ShardId(0);

/// Something that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Under which it is known for good: taken in twice, it is done once.
    pub request: RequestId,
    /// `start`, `signal` or `cancel`.
    pub what: String,
    /// What exactly, as JSON.
    pub asked: String,
    /// The input, or what a signal carries, as JSON.
    pub payload: String,
}

/// What it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What was asked.
    pub request: RequestId,
    /// The run that it is about, if there is one.
    pub run: Option<RunId>,
    /// `accepted`, or a stable word for why not.
    pub code: String,
    /// Why not, for people.
    pub message: Option<String>,
}

/// What is known of a start that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It was accepted: this is its run.
    Run(RunId),
    /// It has no answer yet.
    Waiting,
    /// There is none, or it was refused.
    Nothing,
}

/// Rings for whoever waits.
pub type Ring = Arc<dyn Fn() + Send + Sync>;

/// The way in from SQL.
pub trait Intake: Send {
    /// The next that were asked and have no answer, in the order in which they were asked: at most `most`, and fewer where
    /// they are large. None is all there is; from then on only what has come since is read.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&mut self, most: usize) -> Result<Vec<Asked>, Fault>;

    /// Everything that had been read when nothing was left has its answer: it need not be looked at again, by whoever takes
    /// in next neither.
    fn is_through(&mut self);

    /// Everything that has no answer is read again, from the place that is noted on.
    fn begin_anew(&mut self);

    /// Writes answers to what was read. An owner of the past writes nothing.
    ///
    /// # Errors
    /// When they could not be written; what was asked is read again.
    fn answer(&mut self, epoch: ShardEpoch, answers: &[Answered]) -> Result<Verdict, Fault>;

    /// What is known of a start that was asked for.
    ///
    /// # Errors
    /// When it cannot be read.
    fn started(&mut self, request: RequestId) -> Result<Started, Fault>;

    /// Makes room for what is to come and clears away what is of no use any more, as the owner of the host shard.
    ///
    /// # Errors
    /// When it could not be done; it is done another time.
    fn upkeep(&mut self, epoch: ShardEpoch) -> Result<(), Fault>;

    /// Waits until something may have been asked, somebody rings, the connection is lost, or for `most`.
    fn wait(&mut self, most: Option<Duration>);

    /// What ends a wait from another thread.
    fn ring(&self) -> Ring;
}
