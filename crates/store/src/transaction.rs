//! Transactions of the users' own: their SQL and the outcome of it are written together, so that whoever tries again after
//! a crash finds what was done, and does not do it twice.

use std::any::Any;

use abide_kernel::{RunId, ShardEpoch, ShardId};

use crate::sum::Sum;

/// Where a transaction belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The run.
    pub run: RunId,
    /// What it is known by: the same in every attempt, and no other's.
    pub key: String,
    /// The run's shard.
    pub shard: ShardId,
    /// The ownership under which it is attempted: a node that has lost it commits nothing.
    pub epoch: ShardEpoch,
}

impl Place {
    /// The checksum of an outcome.
    pub(crate) fn sum(&self, at: i64, outcome: &str) -> i64 {
        let sum = Sum::of("transaction_outcome").bytes(Some(&self.run.0.to_be_bytes()));
        sum.text(Some(&self.key)).number(at).text(Some(outcome)).end()
    }
}

/// The users' work in an embedded store: what it does with the connection, which is that store's own type, and its outcome
/// as JSON, or nothing when it is to be undone.
pub type Work<'a> = &'a mut (dyn FnMut(&dyn Any) -> Option<String> + Send);

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transacted {
    /// It was committed, now or by an attempt before, with this outcome.
    Outcome(String),
    /// The work failed, and was undone.
    Undone,
    /// Another owns the run's shard now: nothing was done.
    Stale,
    /// The work took too long, and was undone.
    Late,
    /// The work ended the transaction by itself: what it did is not known to belong to an outcome.
    Ended,
}
