//! Hands: threads that execute attempts of an engine in another process. As in the engine itself, code that is replayed is
//! polled outside of any runtime, and a step that waits is brought back by its own waker.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use abide_kernel::shard::Command;
use async_task::Runnable;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

use crate::completion::command;
use crate::program::{Attempt, Program, Verdict};
use crate::steps::{CatchPanic, panicked};
use crate::telemetry::attempt_span;

/// Threads that execute attempts. Dropping it lets go of what was not polled to its end.
pub struct Hands {
    jobs: Arc<Jobs>,
    home: Handle,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Jobs {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    runnable: VecDeque<Runnable>,
    closed: bool,
}

impl Jobs {
    fn push(&self, runnable: Runnable) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            // Without the lock: what it holds may wake others.
            drop(runnable);
            return;
        }
        queue.runnable.push_back(runnable);
        drop(queue);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Runnable> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(runnable) = queue.runnable.pop_front() {
                return Some(runnable);
            }
            self.wake.wait(&mut queue);
        }
    }
}

impl Hands {
    /// So many threads, beside a runtime inside which steps and effects are polled.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(threads: usize, home: Handle) -> io::Result<Self> {
        let jobs = Arc::<Jobs>::default();
        let mut hands = Self { jobs: jobs.clone(), home, threads: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let jobs = jobs.clone();
            let work = move || {
                while let Some(runnable) = jobs.next() {
                    runnable.run();
                }
            };
            hands.threads.push(std::thread::Builder::new().name(format!("abide-hand-{number}")).spawn(work)?);
        }
        Ok(hands)
    }

    /// Executes an attempt. `done` is told on one of the threads what is to be said of it, if anything is.
    pub fn execute(
        &self,
        program: Arc<dyn Program>,
        attempt: Attempt,
        done: impl FnOnce(Option<Command>) + Send + 'static,
    ) {
        let (claim, token, retries) = (attempt.link.claim, attempt.link.token, attempt.dispatch.retries);
        let home = (!program.replays()).then(|| self.home.clone());
        let step = async move { judge(&*program, attempt, home).await };
        let task = async move { done(command(claim, token, retries, step.await)) };
        let jobs = Arc::downgrade(&self.jobs);
        let schedule = move |runnable| {
            if let Some(jobs) = jobs.upgrade() {
                jobs.push(runnable);
            }
        };
        let (runnable, task) = async_task::spawn(task, schedule);
        task.detach();
        runnable.schedule();
    }
}

/// What came of an attempt, a panic included.
async fn judge(program: &dyn Program, attempt: Attempt, home: Option<Handle>) -> Verdict {
    let span = attempt_span(&attempt.dispatch);
    let begun = catch_unwind(AssertUnwindSafe(|| {
        let _inside = home.as_ref().map(Handle::enter);
        let _logged = span.enter();
        program.execute(attempt)
    }));
    match begun {
        Ok(step) => CatchPanic { step, home, span }.await,
        Err(panic) => panicked(&panic),
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.jobs.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.runnable)
        };
        drop(left);
        self.jobs.wake.notify_all();
        // A step may block its thread for long; whoever drops this does not wait for it.
        self.threads.clear();
    }
}
