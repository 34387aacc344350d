//! Randomness: the system's, or numbers that follow from a seed where everything must come out the same again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_kernel::mix;

/// Where the engine's random numbers come from: ids of requests, and the identity of its process.
#[derive(Clone, Debug, Default)]
pub enum Entropy {
    /// The system.
    #[default]
    System,
    /// A seed: the same numbers in the same order. Only for tests, since whoever knows the seed knows the numbers.
    Seeded(Arc<AtomicU64>),
}

impl Entropy {
    /// Numbers that follow from a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Arc::new(AtomicU64::new(seed)))
    }

    /// The next number.
    ///
    /// # Panics
    /// When the system gives none: without it two of a kind could be taken for one, so there is no going on.
    #[must_use]
    pub fn next(&self) -> u128 {
        match self {
            Self::System => {
                let mut bytes = [0; 16];
                getrandom::fill(&mut bytes).expect("the system gives random bytes");
                u128::from_le_bytes(bytes)
            }
            Self::Seeded(state) => {
                let half = || mix(state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
                u128::from(half()) << 64 | u128::from(half())
            }
        }
    }
}
