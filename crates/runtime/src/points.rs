//! Named points at which a process can be killed on purpose, to show that it does not matter when. They exist
//! only with the feature `crash-points`; without it they cost nothing.

/// All points, in the order of the flow.
pub const POINTS: [&str; 9] =
    ["shard-opened", "opened", "admitted", "sealed", "appended", "released", "step-begun", "step-returned", "flushed"];

/// Points of the users' own transactions, in the order of the flow.
pub const TRANSACTION_POINTS: [&str; 5] =
    ["transaction-begun", "transaction-worked", "transaction-written", "transaction-committed", "transaction-returned"];

/// A point is reached.
#[cfg(not(feature = "crash-points"))]
pub fn reach(_: &str) {}

#[cfg(not(feature = "crash-points"))]
pub(crate) fn acknowledges_early() -> bool {
    false
}

#[cfg(feature = "crash-points")]
pub(crate) use armed::acknowledges_early;
#[cfg(feature = "crash-points")]
pub use armed::{arm, reach, sabotage_ack_before_commit};

#[cfg(feature = "crash-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    /// How long an answer takes at the longest to whoever keeps count of answers.
    const HEARSAY: Duration = Duration::from_millis(50);

    static ARMED: OnceLock<(String, AtomicU64)> = OnceLock::new();
    static EARLY: AtomicBool = AtomicBool::new(false);

    /// Kills this process with SIGKILL when the point has been reached `count` times.
    pub fn arm(point: &str, count: u64) {
        let _ = ARMED.set((point.to_owned(), AtomicU64::new(count)));
    }

    /// Lets answers leave before they are durable: a fault on purpose, which the harness must find.
    pub fn sabotage_ack_before_commit() {
        EARLY.store(true, Ordering::Release);
    }

    pub(crate) fn acknowledges_early() -> bool {
        EARLY.load(Ordering::Acquire)
    }

    /// A point is reached.
    pub fn reach(point: &str) {
        if let Some((armed, left)) = ARMED.get()
            && armed == point
            && left.fetch_sub(1, Ordering::AcqRel) == 1
        {
            if acknowledges_early() {
                // Whoever got an answer too early must have the time to say so, or the fault goes unseen.
                std::thread::sleep(HEARSAY);
            }
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // The signal arrives before this thread goes on; should it not, nothing else may happen.
            loop {
                std::thread::park();
            }
        }
    }
}
