//! Durable points: the futures that code awaits. Each is known by its name in its scope, and is the same in every
//! replay.

use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_kernel::transition::record::Wanted;
use abide_kernel::{ErrorInfo, OpState, Payload, Policy, RetryPolicy, Str, limits};
use abide_runtime::Instead;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{Answer, InFunction};
use super::drive::panic_text;
use super::retry::{Calls, Retry};
use super::review::Reviewing;
use super::{Ledger, Local, Next};
use crate::control::Ruling;
use crate::{Operation, StepError};

/// What an effect gives, how long what it borrows lives, and where it is.
pub(crate) type Returns<'a, R, T, W> = fn(&'a ()) -> (R, T, W);

/// A future of this crate, boxed.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A piece of outside work that is recorded: executed once, and its result is there for every attempt after.
///
/// It begins when it is awaited. Its policy says what happens when nobody knows whether it took place; see
/// [`Policy`]. The default is [`Policy::Idempotent`].
#[must_use = "an effect takes place when it is awaited"]
pub struct Effect<'a, F, R, T, W = InFunction> {
    ledger: Arc<Ledger>,
    scope: String,
    name: String,
    base: Str,
    policy: Policy,
    input: Result<Option<Payload>, StepError>,
    retry: Option<Retry<F>>,
    place: &'static Location<'static>,
    call: F,
    returns: PhantomData<Returns<'a, R, T, W>>,
}

impl<F, R, T, W> Effect<'_, F, R, T, W> {
    /// An effect of this name in its scope, whose idempotency key begins with `base`.
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        (scope, name): (&str, &str),
        base: Str,
        place: &'static Location<'static>,
        call: F,
    ) -> Self {
        Self {
            ledger,
            scope: scope.into(),
            name: name.into(),
            base,
            policy: Policy::default(),
            input: Ok(None),
            retry: None,
            place,
            call,
            returns: PhantomData,
        }
    }

    /// Says what happens when nobody knows whether it took place.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Deterministic, and nobody sees it: repeated at will, and never waited for.
    pub fn pure(self) -> Self {
        self.policy(Policy::Pure)
    }

    /// Repeating it is safe and wasteful: repeated only when its result is lost.
    pub fn dedupe(self) -> Self {
        self.policy(Policy::Dedupe)
    }

    /// Someone else knows whether it took place: after a crash it waits to be told.
    pub fn reconcile(self) -> Self {
        self.policy(Policy::Reconcile)
    }

    /// Twice is harmful: after a crash it is in doubt, and waits to be resolved.
    pub fn unsafe_once(self) -> Self {
        self.policy(Policy::UnsafeOnce)
    }

    /// What it is about: a replay that comes here with another input has diverged. A reviewer is shown it.
    pub fn input<I: Serialize + ?Sized>(mut self, input: &I) -> Self {
        self.input = Payload::encode(input).map(Some).map_err(StepError::from);
        self
    }

    /// When it is tried again if it fails, in the place of the policy that the function or step has. Errors that may be
    /// cured are recorded and counted, over crashes and deploys; in between the effect rests, and needs no worker. The
    /// last error stands, and is not cured by trying the function again.
    ///
    /// ```
    /// use abide::{Failure, FnCtx, Function, RetryPolicy, StepError};
    ///
    /// let fetch = Function::new("fetch", async |ctx: FnCtx, url: String| {
    ///     let often = RetryPolicy { retries_max: Some(5), ..RetryPolicy::exponential(1_000) };
    ///     ctx.effect("fetch", async |_| Ok::<_, StepError>(url.len())).retry(often).await
    /// });
    /// ```
    pub fn retry(mut self, policy: RetryPolicy) -> Self
    where
        F: Clone,
    {
        self.retry = Some(Retry { policy, call: F::clone });
        self
    }
}

/// What the code of an effect is given.
#[derive(Clone, Debug)]
pub struct Call {
    key: String,
}

impl Call {
    /// A key for the other side that is the same over all attempts at this effect, and differs from every other effect.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl<'a, F, R, T, E, W> IntoFuture for Effect<'a, F, R, T, W>
where
    F: FnOnce(Call) -> R + Send + 'a,
    R: Future<Output = Result<T, E>> + Send + 'a,
    T: Serialize + DeserializeOwned + Send + 'a,
    E: Into<StepError> + 'a,
    W: 'a,
{
    type Output = Result<T, StepError>;
    type IntoFuture = Boxed<'a, Result<T, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { run(self).await?.value() })
    }
}

pub(super) async fn run<F, R, T, E, W>(effect: Effect<'_, F, R, T, W>) -> Result<Answer<T>, StepError>
where
    F: FnOnce(Call) -> R + Send,
    R: Future<Output = Result<T, E>> + Send,
    T: Serialize + DeserializeOwned + Send,
    E: Into<StepError>,
{
    let Effect { ledger, scope, name, base, policy, input, retry, place, call, .. } = effect;
    let operation = Operation { name, policy };
    let point = [&*scope, &*operation.name].concat();
    let ruling = match ledger.controls.check(&operation) {
        Err(refused) if !ledger.stands(&point) => return Err(refused),
        ruling => ruling.unwrap_or(Ruling::Free),
    };
    retry.as_ref().map_or(Ok(()), |retry| retry.check(&operation))?;
    let input = input?;
    let hash = input.as_ref().map_or(0, |input| input.canonical_hash().max(1));
    let local = ledger.point(&point, &Wanted::Effect(policy), hash, place)?;
    let asking = ledger.review(local, &ruling);
    let _held = asking.is_some().then(|| Held { ledger: &ledger, local });
    if let Some(asking) = asking {
        let key = [&*base, "/", &*ledger.key(local)].concat();
        let reviewing = Reviewing { ledger: &ledger, effect: local, operation: &operation, key, hash, place };
        // Boxed, so that effects without a review do not carry its size.
        Box::pin(reviewing.approved(asking, input)).await?;
    }
    execute(&ledger, local, &base, Calls::new(call, retry)).await
}

/// Undoes what was done: an effect that was registered before.
pub(crate) async fn undo(ledger: &Ledger, base: &str, undo: super::Undo) -> Result<(), StepError> {
    let undone: Answer<Payload> = execute(ledger, undo.local, base, Calls::once(undo.call)).await?;
    undone.value().map(|_| ())
}

/// Executes an effect, or gives what is recorded of it.
async fn execute<F, R, T, E>(
    ledger: &Ledger,
    local: Local,
    base: &str,
    mut calls: Calls<F>,
) -> Result<Answer<T>, StepError>
where
    F: FnOnce(Call) -> R + Send,
    R: Future<Output = Result<T, E>> + Send,
    T: Serialize + DeserializeOwned + Send,
    E: Into<StepError>,
{
    let held = Held { ledger, local };
    let outcome = loop {
        let ended = poll_fn(|cx| match ledger.next(local, cx.waker()) {
            Next::Wait => Poll::Pending,
            Next::Go => Poll::Ready(None),
            Next::Ended(state) => Poll::Ready(Some(state)),
        });
        if let Some(state) = ended.await {
            if let OpState::Failed { error, .. } = &state
                && *error.code == *PANICKED
            {
                resume_unwind(Box::new(error.message.to_string()));
            }
            return decode_end(ledger, local, state).map(Answer::Recorded);
        }
        if ledger.is_lost() {
            return Ok(Answer::Elsewhere);
        }
        let key = [base, "/", &*ledger.key(local)].concat();
        let called = match ledger.instead(local, &key) {
            Instead::End(outcome) => Ok(outcome.map_err(said)),
            Instead::Never => std::future::pending().await,
            Instead::Nothing => {
                let call = calls.next();
                // The call itself, and what becomes of its outcome, may panic too.
                let calling = async {
                    match call(Call { key }).await {
                        Ok(value) => encode("the effect's result", &value),
                        Err(error) => Err(said(error.into().info)),
                    }
                };
                Calling { ledger, local, call: pin!(calling) }.await
            }
        };
        let outcome = match called {
            Ok(outcome) => outcome,
            Err(panic) => {
                if calls.records_panics && ledger.may_come_again(local) {
                    let error = ErrorInfo::retryable(PANICKED, &panic_text(&panic));
                    let _ = record(ledger, local, &Err(error)).await;
                }
                resume_unwind(panic)
            }
        };
        if let Some(outcome) = calls.judge(ledger, local, outcome) {
            break outcome;
        }
    };
    let recorded = record(ledger, local, &outcome).await;
    drop(held);
    // What is recorded is what a replay will see, so it is what the code sees now.
    decode(&ledger.key(local), &recorded?).map(Answer::Executed)
}

/// Records how an effect ended.
async fn record(ledger: &Ledger, local: Local, outcome: &Result<Payload, ErrorInfo>) -> Result<Payload, StepError> {
    poll_fn(|cx| ledger.end(local, outcome, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await
}

/// The code of the error as which a panic of an effect in a function is recorded. A replay panics where it was.
const PANICKED: &str = "effect_panicked";

/// An error that the code of an effect gave: it does not pass for a panic.
fn said(error: ErrorInfo) -> ErrorInfo {
    if *error.code == *PANICKED { ErrorInfo { code: "error".into(), ..error } } else { error }
}

/// The call of an effect, polled with a waker of its own.
struct Calling<'a, R> {
    ledger: &'a Ledger,
    local: Local,
    call: Pin<&'a mut R>,
}

impl<R: Future> Future for Calling<'_, R> {
    type Output = std::thread::Result<R::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = self.ledger.call_waker(self.local, cx.waker());
        let inside = self.ledger.link.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| self.call.as_mut().poll(&mut Context::from_waker(&waker))));
        drop(inside);
        let polled = polled.map_or_else(|panic| Poll::Ready(Err(panic)), |polled| polled.map(Ok));
        // Soon enough: that the call may go on is heard in a later poll of the task.
        if polled.is_pending() {
            self.ledger.calling(self.local, cx.waker());
        }
        polled
    }
}

/// Lets go of an effect whose future is gone.
struct Held<'a> {
    ledger: &'a Ledger,
    local: Local,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ledger.release(self.local);
    }
}

/// A value as it is recorded.
pub(crate) fn encode<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<Payload, ErrorInfo> {
    let payload = Payload::encode(value)
        .map_err(|error| ErrorInfo::terminal("unencodable", &format!("{what} has no JSON form: {error}")))?;
    let (most, found) = (limits::PAYLOAD_BYTES_MAX, payload.bytes());
    if found > most {
        let message = format!("{what} is too large: at most {most} bytes, found {found}");
        return Err(ErrorInfo::terminal("too_large", &message));
    }
    Ok(payload)
}

fn decode<T: DeserializeOwned>(key: &str, payload: &Payload) -> Result<T, StepError> {
    payload.decode().map_err(|error| {
        let expected = std::any::type_name::<T>();
        let message = format!("what is recorded at {key:?} does not decode as {expected}: {error}");
        StepError::new(message).code("undecodable").terminal()
    })
}

pub(super) fn decode_end<T: DeserializeOwned>(ledger: &Ledger, local: Local, state: OpState) -> Result<T, StepError> {
    match state {
        OpState::Done { value, .. } => decode(&ledger.key(local), &value),
        OpState::Failed { error, .. } => Err(StepError { info: (*error).clone(), op: ledger.op(local) }),
        OpState::Elapsed { .. } | OpState::Open => decode(&ledger.key(local), &Payload::null()),
    }
}

/// Waits for an instant or a signal; what is dropped before is withdrawn.
pub(crate) async fn wait(
    ledger: &Ledger,
    name: &str,
    wanted: Wanted,
    input: u64,
    place: &'static Location<'static>,
) -> Result<OpState, StepError> {
    let local = ledger.point(name, &wanted, input, place)?;
    Ok(ledger.outcome(local).await)
}

/// Waits for one signal; with a deadline, perhaps in vain.
#[must_use = "a wait begins when it is awaited"]
pub struct SignalWait<T> {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) point: String,
    pub(crate) name: String,
    pub(crate) place: &'static Location<'static>,
    pub(crate) payload: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send> SignalWait<T> {
    /// Waits no longer than this; `None` when the signal has not come by then.
    pub async fn within(self, limit: std::time::Duration) -> Result<Option<T>, StepError> {
        let deadline = Some(super::moment(limit));
        let wanted = Wanted::Signal { name: self.name.as_str().into(), deadline };
        match wait(&self.ledger, &self.point, wanted, 0, self.place).await? {
            OpState::Done { value, .. } => decode(&self.point, &value).map(Some),
            OpState::Failed { .. } | OpState::Elapsed { .. } | OpState::Open => Ok(None),
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for SignalWait<T> {
    type Output = Result<T, StepError>;
    type IntoFuture = Boxed<'static, Result<T, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let wanted = Wanted::Signal { name: self.name.as_str().into(), deadline: None };
            match wait(&self.ledger, &self.point, wanted, 0, self.place).await? {
                OpState::Done { value, .. } => decode(&self.point, &value),
                OpState::Failed { error, .. } => Err(StepError::of((*error).clone())),
                OpState::Elapsed { .. } | OpState::Open => {
                    let message = format!("the wait for signal {:?} ended without one", self.name);
                    Err(StepError::new(message).code("withdrawn"))
                }
            }
        })
    }
}
