//! Transactions of the users' own: their SQL and the outcome of it are written together, so that whoever tries again after
//! a crash finds what was done, and does not do it twice.

use std::any::Any;

use abide_kernel::{RunId, ShardEpoch, ShardId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Fault;
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
        sum(self.run, &self.key, at, outcome)
    }
}

fn sum(run: RunId, key: &str, at: i64, outcome: &str) -> i64 {
    let sum = Sum::of("transaction_outcome").bytes(Some(&run.0.to_be_bytes()));
    sum.text(Some(key)).number(at).text(Some(outcome)).end()
}

/// What a transaction came to, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// What the transaction is known by.
    pub key: String,
    /// When it was committed.
    pub at: Timestamp,
    /// Its outcome, as JSON.
    pub outcome: String,
}

impl Outcome {
    pub(crate) fn sum(&self) -> i64 {
        sum(self.run, &self.key, self.at.0, &self.outcome)
    }

    /// The same, if it is as it was written.
    pub(crate) fn checked(self, checksum: i64) -> Result<Self, Fault> {
        if self.sum() == checksum {
            return Ok(self);
        }
        let message = format!("the outcome of {:?} is damaged: its checksum does not match", self.key);
        Err(Fault::corrupt(Some(self.run), None, message))
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
