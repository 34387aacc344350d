//! The engine's clock: wall time that never runs backwards, or a hand-moved one for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use abide_kernel::Timestamp;

/// Where the engine's instants come from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Monotonic time, tied to the wall clock once.
    System {
        /// The wall clock then.
        wall_ms: i64,
        /// The monotonic clock then.
        since: Instant,
    },
    /// Moved by hand.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::System { wall_ms: wall.as_millis() as i64, since: Instant::now() }
    }

    /// The current instant.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System { wall_ms, since } => Timestamp(wall_ms + since.elapsed().as_millis() as i64),
            Self::Manual(ms) => Timestamp(ms.load(Ordering::Acquire)),
        }
    }
}

/// What is to be added to the clock to get the store's, which was looked at between two instants. An answer that came late says
/// little, and moves nothing that it does not contradict: timers must not go by how busy the machine was.
pub(crate) fn offset(known: Option<i64>, store: Timestamp, before: Timestamp, after: Timestamp) -> i64 {
    let (most, least) = (store.0 - before.0, store.0 - after.0);
    match known {
        // A clock that was set back in between says nothing of what it was.
        Some(known) => known.clamp(least.min(most), most),
        None => i64::midpoint(least, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D37: answers of the store that came late moved the time of a node back and forth, and timers with it.
    #[test]
    fn an_answer_that_came_late_does_not_move_the_time() {
        let at = |store, before, after| offset(Some(40), Timestamp(store), Timestamp(before), Timestamp(after));
        assert_eq!(at(1_040, 1_000, 1_000), 40, "at once");
        assert_eq!(at(1_040, 1_000, 1_200), 40, "on its way back for long");
        assert_eq!(at(1_240, 1_000, 1_200), 40, "on its way there for long");
        assert_eq!(at(1_060, 1_000, 1_005), 55, "the clock is 15 ms behind at the least");
        assert_eq!(at(1_030, 1_000, 1_005), 30, "the clock is 10 ms ahead at the least");
        assert_eq!(at(1_540, 1_000, 900), 540, "the clock was set back meanwhile");
        assert_eq!(offset(None, Timestamp(1_050), Timestamp(1_000), Timestamp(1_020)), 40, "nothing is known yet");
    }
}
