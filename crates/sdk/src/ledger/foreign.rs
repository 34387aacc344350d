//! The waker of a function: it tells what the function's own durable points wake from what anything else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

/// Who polls the function now, and what was heard.
#[derive(Default)]
pub(super) struct Watch {
    polling: Mutex<Option<ThreadId>>,
    /// The function woke itself while it was polled.
    again: AtomicBool,
    /// Something woke the function that is none of its durable points.
    foreign: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Watch {
    /// From now on `task` is woken when something foreign is heard.
    pub(super) fn attach(&self, task: &Waker) {
        attach(&self.task, task);
    }

    /// The polling begins.
    pub(super) fn enter(&self) {
        *self.polling.lock() = Some(thread::current().id());
    }

    /// The polling ends.
    pub(super) fn leave(&self) {
        *self.polling.lock() = None;
    }

    /// Whether the function woke itself, and so must be polled again.
    pub(super) fn take_again(&self) -> bool {
        self.again.swap(false, Ordering::AcqRel)
    }

    /// Whether something foreign woke it.
    pub(super) fn heard_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire)
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if *self.polling.lock() == Some(thread::current().id()) {
            self.again.store(true, Ordering::Release);
            return;
        }
        self.foreign.store(true, Ordering::Release);
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }
}

/// Wakes the task that drives an attempt, and says which effect's call may go on.
pub(super) struct CallWake {
    pub(super) local: super::Local,
    pub(super) calls: Arc<Calls>,
}

/// Effects whose calls may go on.
#[derive(Default)]
pub(super) struct Calls {
    woken: Mutex<Vec<super::Local>>,
    task: Mutex<Option<Waker>>,
}

impl Calls {
    pub(super) fn attach(&self, task: &Waker) {
        attach(&self.task, task);
    }

    /// Wakes the task that drives the attempt.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    pub(super) fn take(&self) -> Vec<super::Local> {
        std::mem::take(&mut *self.woken.lock())
    }
}

/// Keeps the waker of a task, unless it is the one that is kept.
fn attach(kept: &Mutex<Option<Waker>>, task: &Waker) {
    match &mut *kept.lock() {
        Some(known) => known.clone_from(task),
        none => *none = Some(task.clone()),
    }
}

impl Wake for CallWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.calls.woken.lock().push(self.local);
        self.calls.wake();
    }
}
