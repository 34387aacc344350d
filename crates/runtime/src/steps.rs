//! Steps: user code is polled here, outside every lock. A step that returns at once costs no task; one that
//! waits becomes a task whose waker puts it back in the queue.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_kernel::ErrorInfo;
use abide_kernel::shard::Dispatch;
use async_task::Runnable;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::driver::Shared;
use crate::points;
use crate::program::{Attempt, AttemptLink, News, Verdict, Way};
use crate::telemetry::attempt_span;

/// Something to poll.
pub(crate) enum Job {
    /// An attempt that was just dispatched.
    Fresh(Box<Dispatch>, Arc<News>),
    /// A step that waited and was woken.
    Woken(Runnable),
}

/// The queue of things to poll.
#[derive(Default)]
pub(crate) struct Steps {
    queue: Mutex<VecDeque<Job>>,
}

impl Steps {
    pub(crate) fn push_all(&self, jobs: Vec<Job>) {
        self.queue.lock().extend(jobs);
    }

    pub(crate) fn push(&self, job: Job) {
        self.queue.lock().push_back(job);
    }

    pub(crate) fn pop(&self) -> Option<Job> {
        self.queue.lock().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

pub(crate) type Step = Pin<Box<dyn Future<Output = Verdict> + Send>>;

impl Shared {
    /// Polls one job.
    pub(crate) fn poll(self: &Arc<Self>, job: Job) {
        match job {
            Job::Fresh(dispatch, news) => self.begin_step(dispatch, news),
            Job::Woken(runnable) => {
                runnable.run();
            }
        }
    }

    fn begin_step(self: &Arc<Self>, dispatch: Box<Dispatch>, news: Arc<News>) {
        let claim = dispatch.claim;
        let spec = &dispatch.started.spec;
        let Some(program) = self.programs.find(&spec.workflow, spec.version) else {
            // The picker gives a worker only what it has; without the program the lease ends and another may have it.
            self.core.lock().finished(claim);
            return;
        };
        let retries = dispatch.retries;
        let link = AttemptLink { way: Way::Engine(self.clone()), claim, token: self.token, news };
        let span = attempt_span(&dispatch);
        let attempt = Attempt { dispatch, link };
        let program = program.clone();
        points::reach("step-begun");
        let home = (!program.replays()).then(|| self.handle.clone());
        let first = catch_unwind(AssertUnwindSafe(|| {
            let _inside = home.as_ref().map(Handle::enter);
            let _logged = span.enter();
            let mut step = program.execute(attempt);
            let polled = step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (step, polled)
        }));
        match first {
            Ok((_, Poll::Ready(verdict))) => self.complete(claim, retries, verdict),
            Ok((step, Poll::Pending)) => self.spawn_step(claim, retries, CatchPanic { step, home, span }),
            Err(panic) => self.complete(claim, retries, panicked(&panic)),
        }
    }

    /// The step waits for something: from here on its own waker brings it back. The first poll had none, so it is
    /// polled again at once.
    fn spawn_step(self: &Arc<Self>, claim: abide_kernel::ClaimId, retries: u32, step: CatchPanic) {
        let shared = self.clone();
        let task = async move {
            let verdict = step.await;
            shared.complete(claim, retries, verdict);
            shared.bell.ring();
        };
        let shared = Arc::downgrade(self);
        let schedule = move |runnable| {
            if let Some(shared) = shared.upgrade() {
                shared.steps.push(Job::Woken(runnable));
                shared.bell.ring();
            }
        };
        let (runnable, task) = async_task::spawn(task, schedule);
        task.detach();
        runnable.schedule();
    }
}

/// A step whose panic is a verdict.
pub(crate) struct CatchPanic {
    pub(crate) step: Step,
    /// The runtime inside which it is polled. Code that is replayed is polled outside of any: there, a timer or a task of
    /// the runtime cannot even be made, and only the calls of its effects are polled inside.
    pub(crate) home: Option<Handle>,
    /// The span that what it logs belongs to.
    pub(crate) span: tracing::Span,
}

impl Future for CatchPanic {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        let Self { step, home, span } = &mut *self;
        let _inside = home.as_ref().map(Handle::enter);
        let _logged = span.enter();
        catch_unwind(AssertUnwindSafe(|| step.as_mut().poll(context)))
            .unwrap_or_else(|panic| Poll::Ready(panicked(&panic)))
    }
}

pub(crate) fn panicked(panic: &Box<dyn std::any::Any + Send>) -> Verdict {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the step panicked with something that is no text".into());
    Verdict::failed(ErrorInfo::retryable("panic", &message), None)
}
