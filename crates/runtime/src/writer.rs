//! The writer: a second thread that commits large batches, so that steps go on while the disk syncs.
//!
//! With few attempts in flight the driver commits by itself: a hop to another thread would cost more than it
//! hides. With many, half of them are written while the other half executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bell::Bell;
use crate::commit::{Releasing, Turn};
use crate::core::Core;
use crate::driver::Shared;

/// Batches below this are committed by the driver itself.
const BATCH_MIN: usize = 24;

#[derive(Debug, Default)]
pub(crate) struct Writer {
    bell: Bell,
    busy: AtomicBool,
}

impl Writer {
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Whether it commits now, and rings the driver's bell afterwards.
    pub(crate) fn is_at_it(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) || self.bell.is_rung()
    }
}

impl Shared {
    /// Whether enough is gathered to be written while the rest executes, and the writer is free for it.
    pub(crate) fn should_hand_over(&self, core: &Core) -> bool {
        !self.writer.busy.load(Ordering::Acquire) && self.is_large(core)
    }

    pub(crate) fn is_large(&self, core: &Core) -> bool {
        core.gathered() >= (core.running() / 2).max(BATCH_MIN)
    }

    /// Commits, or has the writer do it when the batch is large. Says what the caller may do next.
    pub(crate) fn commit_here_or_there(&self, flush_now: bool) -> Turn {
        let gathered = self.core.lock().gathered();
        if gathered < BATCH_MIN {
            return self.commit(flush_now);
        }
        self.writer.ring();
        Turn::Busy
    }
}

/// Commits large batches until the engine stops.
pub(crate) fn write(shared: &Arc<Shared>) {
    while !shared.is_stopping() {
        shared.writer.bell.wait(None);
        shared.writer.busy.store(true, Ordering::Release);
        while !shared.is_stopping() && shared.commit_next(false, Releasing::Driver) == Turn::Worked {
            // Small rests are left to gather: the driver rings again at half, or when it is quiet.
            let core = shared.core.lock();
            let quiet = core.durable.is_empty() && shared.steps.is_empty();
            if !(quiet && core.wants_append() || shared.is_large(&core)) {
                break;
            }
        }
        shared.writer.busy.store(false, Ordering::Release);
        // The driver may have come to rest meanwhile, with something gathered.
        shared.bell.ring();
    }
}
