//! The bell that wakes the driver. Ringing costs next to nothing while the driver is awake.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

const QUIET: u32 = 0;
const RUNG: u32 = 1;
const ASLEEP: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    /// Wakes whoever sleeps, or keeps the next one from falling asleep.
    pub(crate) fn ring(&self) {
        if self.state.load(Ordering::Relaxed) == RUNG
            && self.state.compare_exchange(RUNG, RUNG, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return;
        }
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            // Taking the lock makes sure that the sleeper is waiting, not on its way there.
            drop(self.lock.lock());
            self.wake.notify_one();
        }
    }

    /// Sleeps until the bell rings, or for at most `most`.
    pub(crate) fn wait(&self, most: Option<Duration>) {
        let mut held = self.lock.lock();
        if self.state.compare_exchange(QUIET, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while self.state.load(Ordering::Acquire) == ASLEEP {
                match most {
                    Some(most) => {
                        self.wake.wait_for(&mut held, most);
                        break;
                    }
                    None => self.wake.wait(&mut held),
                }
            }
        }
        self.state.store(QUIET, Ordering::Release);
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
}
