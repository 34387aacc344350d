//! What a server keeps beside the runs: an id in a kind, and what the server wrote down. The store reads nothing in it.

use crate::Fault;
use crate::sum::Sum;

/// Something that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What kind of thing it is.
    pub kind: String,
    /// Its id among those of its kind.
    pub id: String,
    /// What was written down, as JSON.
    pub body: String,
}

impl Kept {
    pub(crate) fn sum(&self) -> i64 {
        Sum::of("kept").text(Some(&self.kind)).text(Some(&self.id)).text(Some(&self.body)).end()
    }

    /// It, if it is as it was written.
    pub(crate) fn check(self, checksum: i64) -> Result<Self, Fault> {
        if self.sum() == checksum {
            return Ok(self);
        }
        Err(Fault::corrupt(None, None, format!("{} {}: its checksum does not match", self.kind, self.id)))
    }
}

/// How much waits in a queue and how much of it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// The queue.
    pub queue: String,
    /// Runs with an attempt that waits to be claimed.
    pub waiting: u64,
    /// Since when the oldest of them could be claimed.
    pub oldest: Option<abide_kernel::Timestamp>,
    /// Runs with an attempt that executes.
    pub running: u64,
}
