//! Where a function stands: its run, its attempt and its trace, its time and its luck.

use abide_kernel::{RunId, Timestamp, TraceContext, mix, stable_hash};

use crate::FnCtx;

impl FnCtx {
    /// The run.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.inner.run
    }

    /// The attempt's place in its run's trace, for spans that an effect makes below it, here or elsewhere.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        self.inner.trace
    }

    /// How many attempts came before since the last progress: retries and lost workers together, from 0.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// Whether the code is being brought to where it was before: the time for logs and metrics to be quiet.
    #[must_use]
    pub fn is_replaying(&self) -> bool {
        self.inner.ledger.is_replaying()
    }

    /// The time of the last thing the function took notice of; the same in every replay.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.ledger.now()
    }

    /// A number that looks random and is the same in every replay, one for each name.
    #[must_use]
    pub fn random(&self, name: &str) -> u64 {
        mix(stable_hash(format!("{}\u{0}{}", self.inner.identity, self.named(name)).as_bytes()))
    }
}
