//! What the engine executes: programs that turn an attempt into a verdict.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::progress::Progressing;
use abide_kernel::transition::record::{Entry, Recording};
use abide_kernel::{
    ClaimId, Consume, ErrorInfo, Op, OpId, Outcome, Payload, Refusal, RetryPolicy, RunId, Scheduled, StartSpec,
    Timestamp, TokenHash,
};
use abide_store::Fault;
use abide_store::transaction::{Place, Transacted};
use parking_lot::Mutex;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::Notify;

use crate::admission::Unanswered;
use crate::driver::Shared;
use crate::observer::Observer;

/// A workflow's code.
pub trait Program: Send + Sync {
    /// What it is.
    fn definition(&self) -> Definition;

    /// Executes one attempt at a step.
    fn execute(&self, attempt: Attempt) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

    /// Whether an attempt does nothing outside that its ledger does not know of, so that it can be repeated over a recorded
    /// one.
    fn replays(&self) -> bool {
        false
    }

    /// Whether it has a step of this name.
    fn has_step(&self, _step: &str) -> bool {
        true
    }
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
        /// What the step writes to the ledger beside it.
        entries: Vec<Entry>,
    },
    /// The step failed and no handler answered.
    Failed {
        /// What went wrong.
        error: ErrorInfo,
        /// Whether and when to try again.
        retry: Option<RetryPolicy>,
        /// What the step writes to the ledger beside it.
        entries: Vec<Entry>,
        /// Effects whose errors made the step fail.
        reopen: Vec<OpId>,
    },
    /// The code does not fit the run's ledger: the attempt is set aside, for other code to go on with.
    SetAside {
        /// What does not fit.
        error: ErrorInfo,
    },
    /// There is nothing to record: the claim ended without the step, or it is not known whether its last words were
    /// recorded.
    Abandoned {
        /// Whether the claim may still stand, and goes back.
        give_back: bool,
    },
}

impl Verdict {
    /// The step failed, and wrote nothing to the ledger.
    #[must_use]
    pub fn failed(error: ErrorInfo, retry: Option<RetryPolicy>) -> Self {
        Self::Failed { error, retry, entries: Vec::new(), reopen: Vec::new() }
    }
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
    pub(crate) way: Way,
    pub(crate) claim: ClaimId,
    pub(crate) token: TokenHash,
    pub(crate) news: Arc<News>,
}

/// Where an attempt's words go.
#[derive(Clone)]
pub(crate) enum Way {
    /// To the engine that dispatched it.
    Engine(Arc<Shared>),
    /// To an engine in another process.
    Carried(Arc<dyn Courier>),
    /// Nowhere: the attempt shows what the code would do, and nothing comes of it.
    Nowhere { now: Timestamp, observer: Arc<dyn Observer>, life: Life },
}

/// A command that is under way, and its answer.
pub type Carrying = Pin<Box<dyn Future<Output = Result<Answer, Unanswered>> + Send>>;

/// Brings what attempts say to an engine in another process.
pub trait Courier: Send + Sync {
    /// Sends a command. It is under way when this returns; of one claim they arrive in the order in which they were sent.
    fn carry(&self, command: Command) -> Carrying;

    /// The current instant, by the clock of this process.
    fn now(&self) -> Timestamp;

    /// The runtime inside which effects are called.
    fn handle(&self) -> &Handle;
}

/// Which life of a run an attempt without an engine repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// One that goes on: what the code does beyond what is recorded is new.
    Open,
    /// One that is over: its code has been wherever it comes.
    Over,
}

/// What an attempt is told while it executes.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Set when its claim ended without it.
    revoked: AtomicBool,
    told: Mutex<Told>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Told {
    /// Entries of its ledger that ended, or began as children, in order.
    entries: VecDeque<(OpId, Op)>,
    /// Who wants to hear of the next, or of the claim's end.
    listener: Option<Waker>,
}

impl News {
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        self.notify.notify_waiters();
        let listener = self.told.lock().listener.take();
        listener.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn tell(&self, id: OpId, op: Op) {
        let mut told = self.told.lock();
        told.entries.push_back((id, op));
        let listener = told.listener.take();
        drop(told);
        listener.into_iter().for_each(Waker::wake);
    }

    fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

impl AttemptLink {
    /// A link that leads nowhere: what is written to it is never answered, and the time stands still. A program that is
    /// executed with it shows what it would do next, and nothing comes of it.
    #[must_use]
    pub fn detached(claim: ClaimId, now: Timestamp, observer: Arc<dyn Observer>, life: Life) -> Self {
        Self { way: Way::Nowhere { now, observer, life }, claim, token: TokenHash(0), news: Arc::default() }
    }

    /// A link to an engine in another process, for the holder of a claim.
    #[must_use]
    pub fn carried(claim: ClaimId, token: TokenHash, courier: Arc<dyn Courier>) -> Self {
        Self { way: Way::Carried(courier), claim, token, news: Arc::default() }
    }

    /// Says that the claim has ended without the attempt.
    pub fn revoke(&self) {
        self.news.revoke();
    }

    /// Who is told of the attempt's effects.
    #[must_use]
    pub fn observer(&self) -> Option<&Arc<dyn Observer>> {
        match &self.way {
            Way::Engine(shared) => shared.observer.as_ref(),
            Way::Carried(_) => None,
            Way::Nowhere { observer, .. } => Some(observer),
        }
    }

    /// Whether the attempt repeats a life that is over, in which nothing is new.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.way, Way::Nowhere { life: Life::Over, .. })
    }

    async fn ask(&self, command: Command) -> Result<Answer, Unanswered> {
        match &self.way {
            Way::Engine(shared) => shared.ask(self.claim.run.slot(), command).await,
            Way::Carried(courier) => courier.carry(command).await,
            Way::Nowhere { .. } => std::future::pending().await,
        }
    }

    /// Goes inside the runtime of the engine, for as long as the guard is held: code that is replayed is polled outside
    /// of any, and the calls of its effects inside.
    #[must_use]
    pub fn enter(&self) -> Option<EnterGuard<'_>> {
        match &self.way {
            Way::Engine(shared) => Some(shared.handle.enter()),
            Way::Carried(courier) => Some(courier.handle().enter()),
            Way::Nowhere { .. } => None,
        }
    }

    /// Whether the claim ended: the run was cancelled, or the lease was lost. What the step returns is not recorded.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.news.is_revoked()
    }

    /// The claim.
    #[must_use]
    pub fn claim(&self) -> ClaimId {
        self.claim
    }

    /// The current instant by the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.way {
            Way::Engine(shared) => shared.now(),
            Way::Carried(courier) => courier.now(),
            Way::Nowhere { now, .. } => *now,
        }
    }

    /// Writes to the run's ledger. What is written is decided at once; the answer comes when it is durable.
    ///
    /// # Errors
    /// When the claim has ended, or the entries contradict what is recorded.
    pub fn record(&self, entries: Vec<Entry>) -> impl Future<Output = Result<(), Unanswered>> + Send + use<> {
        let run = self.claim.run;
        let recording = Recording { claim: self.claim.number, token: self.token, entries };
        let command = Command::Record { run, recording: Box::new(recording) };
        // Asked now, not when the answer is awaited.
        let (here, elsewhere) = match &self.way {
            Way::Engine(shared) => (Some(shared.ask(run.slot(), command)), None),
            Way::Carried(courier) => (None, Some(courier.carry(command))),
            Way::Nowhere { .. } => (None, None),
        };
        async move {
            let answer = match (here, elsewhere) {
                (Some(asked), _) => asked.await?,
                (None, Some(carrying)) => carrying.await?,
                (None, None) => std::future::pending().await,
            };
            match answer {
                Answer::Recorded { .. } => Ok(()),
                Answer::Refused(refusal) => Err(refusal.into()),
                other => Err(Unanswered::unexpected(&other)),
            }
        }
    }

    /// Says how far the step has come.
    ///
    /// # Errors
    /// When the claim has ended, or what is said is out of bounds.
    pub async fn progress(&self, name: &str, value: Payload) -> Result<(), Unanswered> {
        let progressing = Box::new(Progressing { name: name.into(), value });
        match self.ask(Command::Progress { claim: self.claim, token: self.token, progressing }).await? {
            Answer::Extended { .. } => Ok(()),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => Err(Unanswered::unexpected(&other)),
        }
    }

    /// The next entry of the ledger that ended, or began as a child, while the step executes.
    #[must_use]
    pub fn told(&self) -> Option<(OpId, Op)> {
        self.news.told.lock().entries.pop_front()
    }

    /// Whether there is something to be told, or the claim has ended without the step; else the waker is kept and woken
    /// when that is so. One task listens: the waker that came last counts.
    #[must_use]
    pub fn poll_news(&self, cx: &Context<'_>) -> bool {
        let mut told = self.news.told.lock();
        if self.news.is_revoked() || !told.entries.is_empty() {
            return true;
        }
        match &mut told.listener {
            Some(listener) => listener.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        false
    }

    /// Waits until the claim ends without the step.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.news.notify.notified();
            if self.news.is_revoked() {
                return;
            }
            notified.await;
        }
    }

    /// Where a transaction of the user's own belongs that is known by `key`. When the run's shard is not served here any
    /// more, whoever serves it is asked whether the claim still stands, and that owner's fence is the transaction's; while
    /// nobody serves it, this waits. Nowhere when the claim has ended, or the engine is in another process.
    pub async fn place(&self, key: &str) -> Option<Place> {
        let shared = match &self.way {
            Way::Engine(shared) => shared,
            Way::Carried(_) => return None,
            Way::Nowhere { .. } => return std::future::pending().await,
        };
        let run = self.claim.run;
        let shard = shared.core.lock().map.home(run.slot());
        let at = |epoch| Some(Place { run, key: key.to_owned(), shard, epoch });
        if let Some(epoch) = shared.epoch_here(shard) {
            return at(epoch);
        }
        loop {
            match self.ask(Command::Heartbeat { claim: self.claim, token: self.token }).await {
                Ok(Answer::Extended { .. }) => return shared.epoch_known(shard).and_then(at),
                Ok(Answer::Refused(Refusal::Unknown)) => {}
                _ => {
                    self.revoke();
                    return None;
                }
            }
        }
    }

    /// Where such transactions go, where they have connections of their own: known to whoever knows the store.
    #[must_use]
    pub fn pool(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        match &self.way {
            Way::Engine(shared) => shared.pool.clone(),
            Way::Carried(_) | Way::Nowhere { .. } => None,
        }
    }

    /// Carries out a transaction of the user's own on the connection that writes.
    ///
    /// # Errors
    /// When the store cannot be written, or has no SQL of its own.
    pub async fn transact(
        &self,
        place: Place,
        limit: Duration,
        mut work: impl FnMut(&dyn Any) -> Option<String> + Send + 'static,
    ) -> Result<Transacted, Fault> {
        let Way::Engine(shared) = &self.way else { return std::future::pending().await };
        let writing = shared.clone();
        let transacted = shared.handle.spawn_blocking(move || writing.visit().transact(&place, limit, &mut work)).await;
        match transacted {
            Ok(transacted) => transacted,
            Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            Err(_) => std::future::pending().await,
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
        let mut tries = 0_u32;
        loop {
            let command = Command::StartChild { run, starting: Box::new(starting.clone()) };
            match self.ask(command).await? {
                Answer::Child(child) => return Ok(child),
                Answer::Refused(Refusal::Unknown) => {
                    tries = tries.saturating_add(1);
                    if let Way::Engine(shared) = &self.way {
                        shared.pause(tries).await;
                    }
                }
                Answer::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Unanswered::unexpected(&other)),
            }
        }
    }
}
