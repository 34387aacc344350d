//! What the engine executes: programs that turn an attempt into a verdict.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::claim::Definition;
use abide_kernel::{
    ClaimId, Consume, ErrorInfo, Outcome, Payload, Refusal, RetryPolicy, RunId, Scheduled, StartSpec, TokenHash,
};
use tokio::sync::Notify;

use crate::admission::Unanswered;
use crate::driver::Shared;

/// A workflow's code.
pub trait Program: Send + Sync {
    /// What it is.
    fn definition(&self) -> Definition;

    /// Executes one attempt at a step.
    fn execute(&self, attempt: Attempt) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;
}

/// What came of an attempt.
#[derive(Debug)]
pub enum Verdict {
    /// The step, or its error handler, returned an outcome.
    Outcome {
        /// What it returned.
        outcome: Outcome,
        /// Which waiting signals it uses up.
        consume: Consume,
        /// The error that the error handler answered.
        error: Option<ErrorInfo>,
        /// Compact the run once its journal has so many rows.
        compact_after: Option<u64>,
    },
    /// The step failed and no handler answered.
    Failed {
        /// What went wrong.
        error: ErrorInfo,
        /// Whether and when to try again.
        retry: Option<RetryPolicy>,
    },
}

/// Told of attempts that can be claimed, after they are durable. A hint: what it does with it changes nothing.
pub trait Notifier: Send + Sync {
    /// An attempt of `run` can be claimed from `queue`.
    ///
    /// # Errors
    /// When the hint could not be passed on. The attempt stays claimable.
    fn notify(
        &self,
        run: RunId,
        queue: &str,
        intent: &Scheduled,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// An attempt at a step, as its program gets it.
pub struct Attempt {
    /// What to execute.
    pub dispatch: Box<Dispatch>,
    /// The way back to the engine.
    pub link: AttemptLink,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("dispatch", &self.dispatch).finish_non_exhaustive()
    }
}

/// An attempt's way back to the engine.
#[derive(Clone)]
pub struct AttemptLink {
    pub(crate) shared: Arc<Shared>,
    pub(crate) claim: ClaimId,
    pub(crate) token: TokenHash,
    pub(crate) revoked: Arc<Revoked>,
}

/// Set when an attempt's claim ended without it.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    flag: AtomicBool,
    notify: Notify,
}

impl Revoked {
    pub(crate) fn set(&self) {
        self.flag.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

impl AttemptLink {
    /// Whether the claim ended: the run was cancelled, or the lease was lost. What the step returns is not recorded.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.revoked.is_set()
    }

    /// Waits until the claim ends without the step.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.revoked.notify.notified();
            if self.revoked.is_set() {
                return;
            }
            notified.await;
        }
    }

    /// Starts a child of the run under a key; the same key gives the same child.
    ///
    /// # Errors
    /// When the claim has ended, or the child cannot be started.
    pub async fn start_child(
        &self,
        key: &str,
        spec: StartSpec,
        metadata: Option<Payload>,
    ) -> Result<RunId, Unanswered> {
        let starting = StartingChild { claim: self.claim.number, token: self.token, key: key.into(), spec, metadata };
        let run = self.claim.run;
        loop {
            let command = Command::StartChild { run, starting: Box::new(starting.clone()) };
            match self.shared.ask(run.slot(), command).await? {
                Answer::Child(child) => return Ok(child),
                Answer::Refused(Refusal::Unknown) => {}
                Answer::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Unanswered::unexpected(&other)),
            }
        }
    }
}
