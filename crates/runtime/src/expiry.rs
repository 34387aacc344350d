//! Expiry: leases of local attempts are extended while they execute, and what is due happens.

use std::time::Duration;

use crate::dispatch::tell;
use crate::driver::Shared;
use crate::membership::tell_unknown;

impl Shared {
    /// Lets due deadlines happen and extends local claims. Says how long nothing more is due.
    pub(crate) fn pass_time(&self) -> Option<Duration> {
        let now = self.now();
        let mut core = self.core.lock();
        if core.closed.is_some() {
            return None;
        }
        let mut told = Vec::new();
        let mut replies = Vec::new();
        core.lapse(now, &mut told);
        core.ask_again(now, &mut replies);
        if core.next_beat.is_some_and(|beat| beat <= now) {
            core.beat(now, self.token, self.lease_ms());
        }
        if core.next_wake().is_some_and(|at| at <= now) {
            core.tick(now);
        }
        let next = core.next_wake().into_iter().chain(core.next_beat).min();
        drop(core);
        tell_unknown(told);
        tell(replies);
        next.map(|at| Duration::from_millis(at.since(now).max(1)))
    }
}
