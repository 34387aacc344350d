//! Expiry: leases of local attempts are extended while they execute, and what is due happens.

use std::time::{Duration, Instant};

use crate::driver::Shared;

impl Shared {
    /// Lets due deadlines happen and extends local claims. Says how long nothing more is due.
    pub(crate) fn pass_time(&self) -> Option<Duration> {
        let now = self.now();
        let mut core = self.core.lock();
        if core.closed.is_some() {
            return None;
        }
        if core.next_beat.is_some_and(|beat| beat <= Instant::now()) {
            core.beat(now, self.token, self.lease);
        }
        if core.next_wake().is_some_and(|at| at <= now) {
            core.tick(now);
        }
        let deadline = core.next_wake().map(|at| Duration::from_millis(at.since(now).max(1)));
        let beat = core.next_beat.map(|beat| beat.saturating_duration_since(Instant::now()));
        [deadline, beat].into_iter().flatten().min()
    }
}
