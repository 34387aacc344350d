//! The watchdog: notices that the driver is stuck in user code or in a slow sync, where others could go on, and
//! hands the crank to another thread. It sleeps while the engine is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::driver::Shared;

/// How long the driver may be away before another takes over, at the least.
const PATIENCE: Duration = Duration::from_millis(5);
/// Idle looks after which the watchdog itself goes to sleep.
const IDLE_LOOKS: u32 = 100;

/// Who turns the crank, and how far it has been turned.
#[derive(Debug, Default)]
pub(crate) struct Role {
    /// The number of the thread that drives; any other that finds itself here steps back.
    holder: AtomicU64,
    /// Moves with every job and commit; standing still means stuck.
    beats: AtomicU64,
    /// Whether the driver sleeps because there is nothing to do.
    idle: AtomicBool,
    /// Whether the shards are being opened anew, for which everybody waits.
    recovering: AtomicBool,
    asleep: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Role {
    pub(crate) fn is_held_by(&self, number: u64) -> bool {
        self.holder.load(Ordering::Acquire) == number
    }

    pub(crate) fn beat(&self) {
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The driver is about to sleep, or has woken.
    pub(crate) fn set_idle(&self, idle: bool) {
        // Store, then load, on both sides: one of the two must see the other.
        self.idle.store(idle, Ordering::SeqCst);
        if !idle && self.asleep.load(Ordering::SeqCst) {
            drop(self.lock.lock());
            self.wake.notify_one();
        }
    }

    /// The shards are about to be opened anew, or have been.
    pub(crate) fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Ordering::Release);
    }

    /// Wakes the watchdog for good.
    pub(crate) fn stop(&self) {
        drop(self.lock.lock());
        self.wake.notify_all();
    }

    /// How far the crank has been turned, and whether the driver sleeps.
    pub(crate) fn look(&self) -> (u64, bool) {
        (self.beats.load(Ordering::Relaxed), self.idle.load(Ordering::Acquire))
    }
}

/// Watches until the engine stops.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let mut last = u64::MAX;
    let mut idle_looks = 0;
    while !shared.is_stopping() {
        let (beats, idle) = shared.role.look();
        if idle {
            idle_looks += 1;
        } else {
            idle_looks = 0;
            if beats == last && !shared.role.recovering.load(Ordering::Acquire) {
                hand_over(shared);
            }
        }
        last = if idle { u64::MAX } else { beats };
        let mut held = shared.role.lock.lock();
        if idle_looks >= IDLE_LOOKS {
            shared.role.asleep.store(true, Ordering::SeqCst);
            while shared.role.idle.load(Ordering::SeqCst) && !shared.is_stopping() {
                shared.role.wake.wait(&mut held);
            }
            shared.role.asleep.store(false, Ordering::Release);
            idle_looks = 0;
        } else {
            shared.role.wake.wait_for(&mut held, PATIENCE);
        }
    }
}

/// Gives the crank to a new thread. The one that is stuck steps back when it returns.
fn hand_over(shared: &Arc<Shared>) {
    let number = shared.role.holder.fetch_add(1, Ordering::AcqRel) + 1;
    tracing::debug!(number, "a step or a sync holds the driver up; another thread takes over");
    crate::driver::spawn_driver(shared, number);
}
