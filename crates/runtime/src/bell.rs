//! The bell that wakes the driver. Ringing costs next to nothing while the driver is awake.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a sleeper stays awake in case something comes at once, as the next question of a caller does who was just
/// answered: being woken takes the system about as long.
const AWAKE: Duration = Duration::from_micros(100);

/// A bell that any thread may ring and any may wait for. A ring that nobody waits for is kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    /// Wakes whoever sleeps, or keeps the next one from falling asleep.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) && self.sleepers.load(Ordering::SeqCst) > 0 {
            // Taking the lock makes sure that a sleeper is waiting, not on its way there. Each sleeper looks for itself.
            drop(self.lock.lock());
            self.wake.notify_all();
        }
    }

    /// Whether somebody has rung and nobody has heard it yet.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Sleeps until the bell rings, or for at most `most`.
    pub(crate) fn wait(&self, most: Option<Duration>) {
        if self.rung.swap(false, Ordering::SeqCst) {
            return;
        }
        let now = Instant::now();
        let until = most.map(|most| now + most);
        while now.elapsed() < AWAKE {
            if self.rung.swap(false, Ordering::SeqCst) {
                return;
            }
            std::thread::yield_now();
        }
        let mut held = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.rung.swap(false, Ordering::SeqCst) {
            match until {
                Some(until) if Instant::now() >= until => break,
                Some(until) => {
                    self.wake.wait_until(&mut held, until);
                }
                None => self.wake.wait(&mut held),
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_sleep_is_not_lost() {
        let bell = Bell::default();
        bell.ring();
        bell.wait(None);
        std::thread::scope(|scope| {
            scope.spawn(|| bell.wait(None));
            scope.spawn(|| bell.ring());
        });
    }

    /// A driver that was replaced may still sleep here beside its successor: both must come out.
    #[test]
    fn two_sleepers_both_wake() {
        let bell = Bell::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    bell.wait(None);
                    bell.ring();
                });
            }
            scope.spawn(|| bell.ring());
        });
    }
}
