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
