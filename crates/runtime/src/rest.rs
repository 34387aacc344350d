//! Rest: whether an engine has anything left to do by itself. A clock that is moved by hand is moved when it has not.

use std::time::{Duration, Instant};

use abide_kernel::Timestamp;

use crate::Engine;
use crate::driver::Shared;

/// What an engine has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Something is being executed, committed or loaded.
    Working {
        /// Attempts that local workers execute.
        executing: usize,
    },
    /// Nothing happens by itself before this instant, if ever.
    Until(Option<Timestamp>),
    /// It takes no more commands, for this reason.
    Closed(String),
}

impl Engine {
    /// Waits until the engine has nothing left to do at this instant, or has closed; not longer than `limit`, after
    /// which it may still be working.
    #[must_use]
    pub fn settle_down(&self, limit: Duration) -> Rest {
        let until = Instant::now() + limit;
        loop {
            let rest = self.shared.rest();
            let left = until.saturating_duration_since(Instant::now());
            if !matches!(rest, Rest::Working { .. }) || left.is_zero() {
                return rest;
            }
            self.shared.rested.wait(Some(left));
        }
    }

    /// Tells the engine that a clock which is moved by hand was moved.
    pub fn clock_moved(&self) {
        self.shared.bell.ring();
    }

    /// Ends the engine as a crash would: nothing more is written, answered or begun.
    pub fn crash(&self) {
        self.shared.close("the engine was ended as by a crash");
    }
}

impl Shared {
    fn rest(&self) -> Rest {
        let before = self.role.look();
        let core = self.core.lock();
        if let Some(reason) = &core.closed {
            return Rest::Closed(reason.clone());
        }
        let executing = core.executing.len();
        let next = core.next_wake();
        let nothing = executing == 0
            && self.steps.is_empty()
            && !core.wants_append()
            && next.is_none_or(|at| at > self.now())
            && !self.writer.is_busy();
        drop(core);
        // The driver slept all the while: a beat in between would be something that was not seen here.
        if nothing && before.1 && self.role.look() == before && !self.bell.is_rung() {
            return Rest::Until(next);
        }
        Rest::Working { executing }
    }
}
