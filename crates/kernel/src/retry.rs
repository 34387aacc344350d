//! Retry policies: when a failed step is tried again. The schedule computed here is journaled as a fact.

use serde::{Deserialize, Serialize};

use crate::ids::mix;
use crate::limits::DELAY_MS_MAX;

/// How the delay grows from one retry to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// The same delay every time.
    Constant,
    /// The delay times the number of the retry.
    Linear,
    /// The delay doubled with every retry.
    Exponential,
}

/// When and how often a failed step is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How the delay grows.
    pub backoff: Backoff,
    /// The delay before the first retry.
    pub delay_ms: u64,
    /// No delay is longer than this.
    pub delay_ms_max: u64,
    /// Part of the delay that is drawn at random, in percent: 0 is none, 100 is all of it.
    pub jitter_percent: u8,
    /// How many retries there may be; none means no end.
    pub retries_max: Option<u32>,
}

impl RetryPolicy {
    /// Doubling delays from `delay_ms`, at most an hour, without an end.
    #[must_use]
    pub fn exponential(delay_ms: u64) -> Self {
        Self { backoff: Backoff::Exponential, delay_ms, delay_ms_max: 3_600_000, jitter_percent: 0, retries_max: None }
    }

    /// The delay before the retry that follows `retries` earlier ones, or `None` when there may be no more.
    /// `seed` is the only source of chance.
    #[must_use]
    pub fn delay(&self, retries: u32, seed: u64) -> Option<u64> {
        if self.retries_max.is_some_and(|max| retries >= max) {
            return None;
        }
        let grown = match self.backoff {
            Backoff::Constant => self.delay_ms,
            Backoff::Linear => self.delay_ms.saturating_mul(u64::from(retries) + 1),
            Backoff::Exponential => self.delay_ms.saturating_mul(1u64.checked_shl(retries).unwrap_or(u64::MAX)),
        };
        let delay = grown.min(self.delay_ms_max).min(DELAY_MS_MAX);
        let drawn = delay / 100 * u64::from(self.jitter_percent.min(100))
            + delay % 100 * u64::from(self.jitter_percent.min(100)) / 100;
        let kept = delay - drawn;
        Some(if drawn == 0 { kept } else { kept + mix(seed) % (drawn + 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BU-17: retries follow the step's own policy.
    #[test]
    fn delays_grow_as_the_policy_says_and_end() {
        let policy = RetryPolicy { delay_ms_max: 500, retries_max: Some(4), ..RetryPolicy::exponential(100) };
        let delays: alloc::vec::Vec<_> = (0..5).map(|retries| policy.delay(retries, 1)).collect();
        assert_eq!(delays, [Some(100), Some(200), Some(400), Some(500), None]);
        let linear = RetryPolicy { backoff: Backoff::Linear, ..policy };
        assert_eq!(linear.delay(2, 1), Some(300));
        let constant = RetryPolicy { backoff: Backoff::Constant, ..policy };
        assert_eq!(constant.delay(3, 1), Some(100));
        assert!(RetryPolicy::exponential(u64::MAX).delay(200, 1).is_some());
    }

    #[test]
    fn jitter_depends_on_the_seed_alone_and_stays_within_its_part() {
        let policy = RetryPolicy { jitter_percent: 50, ..RetryPolicy::exponential(1_000) };
        assert_eq!(policy.delay(0, 7), policy.delay(0, 7));
        let mut drawn: alloc::vec::Vec<_> = (0..100).map(|seed| policy.delay(0, seed).expect("no end")).collect();
        assert!(drawn.iter().all(|delay| (500..=1_000).contains(delay)));
        drawn.dedup();
        assert!(drawn.len() > 50);
    }

    /// BU-17: jitter draws from every delay of its part, both ends included, and from no other.
    #[test]
    fn jitter_reaches_both_ends_of_its_part() {
        let policy = RetryPolicy { jitter_percent: 50, ..RetryPolicy::exponential(10) };
        let drawn: alloc::collections::BTreeSet<u64> = (0..200).filter_map(|seed| policy.delay(0, seed)).collect();
        assert_eq!(drawn.into_iter().collect::<alloc::vec::Vec<_>>(), [5, 6, 7, 8, 9, 10]);
        let long = RetryPolicy { jitter_percent: 100, ..RetryPolicy::exponential(250) };
        assert_eq!((0..20_000).filter_map(|seed| long.delay(0, seed)).max(), Some(250));
    }
}
