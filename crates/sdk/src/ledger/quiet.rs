//! Quiet: while code is brought to where it was before, what it logs goes nowhere. It was logged when it happened.

use std::cell::RefCell;

use tracing::Dispatch;
use tracing::dispatcher::{DefaultGuard, set_default};
use tracing::level_filters::LevelFilter;

use super::{Ledger, Mode, State};

thread_local! {
    /// Held by this thread while the code that it polls is quiet.
    static HUSHED: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// Quiet on this thread, until it is dropped or the code has come to where it was.
pub(super) struct Hush;

impl Drop for Hush {
    fn drop(&mut self) {
        speak();
    }
}

/// What is logged on this thread is heard again.
fn speak() {
    let hushed = HUSHED.with(RefCell::take);
    drop(hushed);
}

impl Ledger {
    /// Whether the code is being brought to where it was before.
    pub(crate) fn is_replaying(&self) -> bool {
        !self.state.lock().has_caught_up()
    }

    /// Keeps what is logged during a poll to itself, if the code is being brought to where it was.
    pub(super) fn hush(&self) -> Option<Hush> {
        // Where nobody listens there is nothing to keep from them.
        let heard = self.mode == Mode::Function && LevelFilter::current() != LevelFilter::OFF;
        if !heard || !self.is_replaying() {
            return None;
        }
        HUSHED.set(Some(set_default(&Dispatch::none())));
        Some(Hush)
    }
}

impl State {
    /// Whether the code is where nothing recorded lies ahead of it any more.
    pub(super) fn has_caught_up(&mut self) -> bool {
        self.caught_up |= self.replay.is_empty() && self.unasked == 0;
        self.caught_up
    }

    /// The code asks for an entry that was recorded.
    pub(super) fn ask(&mut self, local: usize) {
        let known = &mut self.entries[local];
        if !known.asked {
            known.asked = true;
            self.unasked -= 1;
        }
        if self.has_caught_up() {
            speak();
        }
    }

    /// The code is beyond what was recorded.
    pub(super) fn go_beyond(&mut self) {
        if !self.caught_up {
            self.caught_up = true;
            speak();
        }
    }
}
