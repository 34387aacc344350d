//! The statuses of a run, and sets of them.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A step is due, or will be at its `visible_at`, and nobody has claimed it.
    Runnable,
    /// A worker holds a claim on a step.
    Executing,
    /// Parked until a named signal arrives or the wait's deadline passes.
    AwaitingSignal,
    /// Parked until an instant.
    Sleeping,
    /// Parked on a join barrier.
    AwaitingChildren,
    /// Set aside as a dead letter; requeue or discard it.
    DeadLettered,
    /// Ended with a result.
    Done,
    /// Ended with an error.
    Failed,
    /// Ended from outside.
    Cancelled,
    /// Parked on an effect that may or may not have happened; resolve it.
    InDoubt,
    /// Parked until a person decides, or the deadline for that passes.
    AwaitingDecision,
}

impl Status {
    /// All statuses, in order.
    pub const ALL: [Self; 11] = [
        Self::Runnable,
        Self::Executing,
        Self::AwaitingSignal,
        Self::Sleeping,
        Self::AwaitingChildren,
        Self::AwaitingDecision,
        Self::InDoubt,
        Self::DeadLettered,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether nothing more can happen within this epoch of the run.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    /// The word used everywhere: in JSON, SQL, the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Runnable => "runnable",
            Self::Executing => "executing",
            Self::AwaitingSignal => "awaiting_signal",
            Self::Sleeping => "sleeping",
            Self::AwaitingChildren => "awaiting_children",
            Self::AwaitingDecision => "awaiting_decision",
            Self::InDoubt => "in_doubt",
            Self::DeadLettered => "dead_lettered",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL.into_iter().find(|status| status.name() == text).ok_or(UnknownStatus)
    }
}

/// A word that is no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownStatus;

impl fmt::Display for UnknownStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected one of runnable, executing, awaiting_signal, sleeping, awaiting_children, awaiting_decision, in_doubt, dead_lettered, done, failed, cancelled")
    }
}

impl core::error::Error for UnknownStatus {}

/// A set of statuses: those in which a unique key counts as occupied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StatusSet(u16);

impl StatusSet {
    /// No status: the key is never occupied.
    pub const NONE: Self = Self(0);
    /// Every status that is not terminal: the default scope of a unique key.
    pub const OPEN: Self = Self(0b110_0011_1111);
    /// Every status: the key stays occupied until the run is purged.
    pub const ALL: Self = Self(0b111_1111_1111);

    /// The set of the given statuses.
    #[must_use]
    pub fn of(statuses: &[Status]) -> Self {
        Self(statuses.iter().fold(0, |set, status| set | (1 << (*status as u16))))
    }

    /// Whether `status` is in the set.
    #[must_use]
    pub fn contains(self, status: Status) -> bool {
        self.0 & (1 << (status as u16)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GD-53: one word per status, the same everywhere.
    #[test]
    fn statuses_have_one_word_each_and_sets_hold_them() {
        for status in Status::ALL {
            assert_eq!(status.name().parse(), Ok(status));
            assert_eq!(StatusSet::OPEN.contains(status), !status.is_terminal());
            assert!(StatusSet::ALL.contains(status));
            assert!(!StatusSet::NONE.contains(status));
        }
        assert!(StatusSet::of(&[Status::Done]).contains(Status::Done));
        assert!("running".parse::<Status>().is_err());
    }
}
