//! Faults: the world failing, as opposed to a refusal, which is an answer.

use abide_kernel::{RunId, Seq, ShardId};

/// A store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind of failure.
    pub kind: FaultKind,
    /// What was tried, what happened, and what to do.
    pub message: String,
    /// The error underneath.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure a fault is, and so what may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing was written, and trying again later may help: the disk is full, a lock is held.
    Refused,
    /// It is not known whether the write is durable. Reload and look.
    Unknown,
    /// The store must not be written to again by this process: a sync failed.
    Fatal,
    /// A record does not match its checksum or does not decode.
    Corrupt {
        /// The run, if it is known.
        run: Option<RunId>,
        /// The shard and position of the journal row, if it is one.
        position: Option<(ShardId, Seq)>,
    },
    /// The shard belongs to another node that lives. Nothing was written.
    Held,
    /// The store is being filled from elsewhere, or that did not come to its end: nobody works on it.
    Importing,
    /// The store cannot be opened: held by another, of a newer format, not a store, read-only.
    Unusable,
}

impl Fault {
    /// A fault with a message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A fault with a message and the error underneath.
    pub fn because(
        kind: FaultKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// A record that is not as it was written.
    pub fn corrupt(run: Option<RunId>, position: Option<(ShardId, Seq)>, message: impl Into<String>) -> Self {
        Self::new(FaultKind::Corrupt { run, position }, message)
    }

    /// The position of the journal row that is damaged, if that is what is wrong.
    #[must_use]
    pub fn position(&self) -> Option<Seq> {
        match self.kind {
            FaultKind::Corrupt { position, .. } => position.map(|(_, seq)| seq),
            FaultKind::Refused
            | FaultKind::Unknown
            | FaultKind::Fatal
            | FaultKind::Held
            | FaultKind::Importing
            | FaultKind::Unusable => None,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        matches!(self.kind, FaultKind::Refused | FaultKind::Unknown | FaultKind::Held)
    }
}
