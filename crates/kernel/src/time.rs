//! Instants, as milliseconds since 1970 in UTC. They always arrive as arguments.

use serde::{Deserialize, Serialize};

use crate::limits::DELAY_MS_MAX;

/// An instant in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The instant `ms` milliseconds later. Delays beyond the limit end at the limit.
    #[must_use]
    pub fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.min(DELAY_MS_MAX) as i64))
    }

    /// Milliseconds from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0).max(0) as u64
    }
}

/// A point in time as a workflow names it: from now, or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// So many milliseconds after the outcome is recorded.
    In(u64),
    /// At this instant; a past one means at once.
    At(Timestamp),
}

impl Moment {
    /// The instant meant, seen from `now`.
    #[must_use]
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(ms) => now.after(ms),
            Self::At(at) => at.min(now.after(DELAY_MS_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_counts_from_now_and_is_bounded() {
        let now = Timestamp(1_000);
        assert_eq!(Moment::In(5).from(now), Timestamp(1_005));
        assert_eq!(Moment::At(Timestamp(7)).from(now), Timestamp(7));
        assert_eq!(Moment::At(Timestamp(i64::MAX)).from(now), now.after(u64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), 0);
    }
}
