//! Functions: workflows that are ordinary async Rust.

use std::fmt::Display;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    Consume, ErrorInfo, Fingerprint, ManualKind, Moment, Outcome, Payload, Policy, RetryPolicy, RunId, Str, Timestamp,
    TraceContext, stable_hash,
};
use abide_runtime::{Attempt, Program, Verdict};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Control, Controls, Operation, Plan, PlanError};
use crate::ledger::children::{ChildCall, Children};
use crate::ledger::drive::{Drive, Driven};
use crate::ledger::manual::{self, ManualWait, TaskWait};
use crate::ledger::points::{self, Call, Effect, SignalWait};
use crate::ledger::update::UpdateWait;
use crate::ledger::{Ledger, Mode, Undo, UndoCall, moment};
use crate::machine::Workflow;
use crate::transaction::Stand;
use crate::{ChildStart, Failure, StepError};

type Code = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;
type CodeFn = Arc<dyn Fn(FnCtx, &Payload) -> Code + Send + Sync>;

/// The one step of a function, as the journal names it.
const STEP: &str = "run";

/// How long to wait before undoing is tried again, where the function has no retry policy that says so.
const UNDO_RETRY_MS: u64 = 1_000;

/// A workflow that is an async function. It is brought back after a crash, a deploy or a long wait by running it again
/// from its beginning: everything durable it did before is answered from the journal.
#[must_use = "a function runs only once it is registered with an engine"]
pub struct Function {
    name: String,
    version: u32,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
    operations: Vec<Operation>,
    controls: Controls,
    code: CodeFn,
}

impl Function {
    /// A function of this name, at version 1.
    pub fn new<F, R, I, O>(name: &str, code: F) -> Self
    where
        F: Fn(FnCtx, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Failure>> + Send + 'static,
        I: DeserializeOwned + 'static,
        O: Serialize + 'static,
    {
        let called = move |ctx: FnCtx, input: &Payload| -> Code {
            let input: I = match input.decode() {
                Ok(input) => input,
                Err(error) => {
                    let expected = std::any::type_name::<I>();
                    let error = StepError::new(format!("the input does not decode as {expected}: {error}"));
                    return Box::pin(std::future::ready(Err(error.code("undecodable").terminal())));
                }
            };
            let running = code(ctx, input);
            Box::pin(async move {
                let output = running.await?;
                Payload::encode(&output).map_err(|error| {
                    StepError::new(format!("the result has no JSON form: {error}")).code("unencodable").terminal()
                })
            })
        };
        Self {
            name: name.into(),
            version: 1,
            retry: None,
            compact_after: None,
            operations: Vec::new(),
            controls: Controls::default(),
            code: Arc::new(called),
        }
    }

    /// Its version. Runs stay with the version they were started with.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// When a function that failed is tried again. What it had recorded stays; effects that failed are begun again.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Declares an operation that the function does, so that it is planned before anything runs.
    pub fn operation(mut self, name: &str, policy: Policy) -> Self {
        self.operations.push(Operation { name: name.into(), policy });
        self
    }

    /// Adds a control; the first that matches an operation decides.
    pub fn control(mut self, control: Control) -> Self {
        self.controls.push(control);
        self
    }

    /// What the function will do, as far as it declares it.
    ///
    /// # Errors
    /// When it declares an operation that needs a control and has none.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.controls.plan(&self.operations)?;
        Ok(Plan { workflow: self.name.clone(), version: self.version, operations: self.operations.clone() })
    }

    /// Compacts a run whenever its journal has so many rows.
    pub fn compact_after(mut self, rows: u64) -> Self {
        self.compact_after = Some(rows);
        self
    }
}

impl Workflow for Function {
    fn into_program(self) -> Result<Arc<dyn Program>, (String, String)> {
        if let Err(refused) = self.plan() {
            return Err((self.name, refused.to_string()));
        }
        let controls = Arc::new(self.controls.clone());
        let text = format!("function\u{0}{}\u{0}{}", self.name, self.version);
        let definition = Definition {
            workflow: self.name.as_str().into(),
            version: self.version,
            fingerprint: Fingerprint(stable_hash(text.as_bytes())),
            first_step: STEP.into(),
        };
        Ok(Arc::new(Compiled { definition, controls, function: self }))
    }
}

struct Compiled {
    definition: Definition,
    controls: Arc<Controls>,
    function: Function,
}

impl Program for Compiled {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn replays(&self) -> bool {
        true
    }

    fn execute(&self, attempt: Attempt) -> Pin<Box<dyn Future<Output = Verdict> + Send>> {
        let Attempt { dispatch, link } = attempt;
        let ledger = Arc::new(Ledger::new(&dispatch, link, Mode::Function, self.controls.clone()));
        let input = dispatch.state.clone();
        let identity = format!("{}-{}-{}-{}", dispatch.claim.run, dispatch.epoch, dispatch.step, dispatch.visit);
        let inner = Inner {
            ledger: ledger.clone(),
            run: dispatch.claim.run,
            attempt: dispatch.retries + dispatch.reclaims,
            trace: TraceContext::of_attempt(dispatch.claim, &dispatch.started),
            namespace: dispatch.started.spec.namespace.clone(),
            identity: identity.into(),
        };
        let ctx = FnCtx { inner: Arc::new(inner), scope: String::new() };
        let running = Running {
            drive: Drive::new(ledger.clone(), (self.function.code)(ctx.clone(), &input)),
            base: ctx.inner.identity.clone(),
            ledger,
            cancelling: dispatch.cancelling,
            retries: dispatch.retries,
            retry: self.function.retry,
            compact_after: self.function.compact_after,
        };
        Box::pin(running.run())
    }
}

/// A function in one attempt.
struct Running {
    drive: Drive<Result<Payload, Failure>>,
    base: Str,
    ledger: Arc<Ledger>,
    cancelling: bool,
    retries: u32,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
}

impl Running {
    async fn run(mut self) -> Verdict {
        let driven = (&mut self.drive).await;
        let failure = match &driven {
            Driven::Returned(_, _) if self.ledger.is_beginning_again() => None,
            Driven::Returned(Err(failure), _) if self.is_final(failure) => Some(failure.clone()),
            Driven::Panicked(text, _) => Some(StepError::of(panicked(text))).filter(|failure| self.is_final(failure)),
            _ => None,
        };
        if failure.is_none() && !self.cancelling {
            return verdict(&self.ledger, driven, self.retry, self.compact_after);
        }
        let entries = match driven {
            Driven::Returned(_, entries) | Driven::Suspended { entries, .. } | Driven::Panicked(_, entries) => entries,
            other => return verdict(&self.ledger, other, self.retry, self.compact_after),
        };
        self.undo(failure, entries).await
    }

    /// Whether a failure is not tried again.
    fn is_final(&self, failure: &Failure) -> bool {
        let tried_again = self.retry.and_then(|policy| policy.delay(self.retries, 0));
        !failure.info.retryable || tried_again.is_none()
    }

    /// Undoes what was done, the last first, and ends the run as it must end.
    async fn undo(self, failure: Option<Failure>, entries: Vec<Entry>) -> Verdict {
        let (ledger, base) = (self.ledger, self.base);
        let undos = ledger.take_undos();
        let end = |entries: Vec<Entry>| match failure.clone() {
            Some(failure) if !self.cancelling => {
                Verdict::Failed { error: failure.info, retry: None, entries, reopen: Vec::new() }
            }
            _ => Verdict::Outcome {
                outcome: Outcome::Cancelled,
                consume: Consume::Presented,
                error: None,
                compact_after: None,
                entries,
            },
        };
        if undos.is_empty() {
            return end(entries);
        }
        ledger.put_back(entries);
        let inside = ledger.clone();
        let code: Pin<Box<dyn Future<Output = Result<(), StepError>> + Send>> = Box::pin(async move {
            for undo in undos {
                points::undo(&inside, &base, undo).await?;
            }
            Ok(())
        });
        // The function may have used up its retries before: what undoes it has no end of them.
        let often = self.retry.unwrap_or_else(|| RetryPolicy::exponential(UNDO_RETRY_MS));
        let not_undone = |error: StepError, entries: Vec<Entry>| {
            let message = format!("what was done could not be undone: {error}");
            Verdict::Failed {
                reopen: error.op.into_iter().collect(),
                error: ErrorInfo { message: message.into(), ..error.info },
                retry: Some(RetryPolicy { retries_max: None, ..often }),
                entries,
            }
        };
        match self.drive.then(code).await {
            Driven::Returned(Ok(()), entries) => end(entries),
            Driven::Returned(Err(error), entries) => not_undone(error, entries),
            Driven::Suspended { seen, entries } => Verdict::Outcome {
                outcome: Outcome::Suspend { seen },
                consume: Consume::Presented,
                error: None,
                compact_after: None,
                entries,
            },
            Driven::SetAside(error) => Verdict::SetAside { error },
            Driven::Lost => Verdict::Abandoned { give_back: false },
            Driven::GivenBack => Verdict::Abandoned { give_back: true },
            Driven::Panicked(text, entries) => not_undone(StepError::of(panicked(&text)), entries),
        }
    }
}

fn panicked(text: &str) -> ErrorInfo {
    ErrorInfo::retryable("panic", text)
}

fn verdict(
    ledger: &Ledger,
    driven: Driven<Result<Payload, Failure>>,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
) -> Verdict {
    let outcome = |outcome: Outcome, entries: Vec<Entry>| Verdict::Outcome {
        outcome,
        consume: Consume::Presented,
        error: None,
        compact_after,
        entries,
    };
    match driven {
        Driven::Returned(_, entries) if ledger.is_beginning_again() => {
            let input = ledger.take_again().unwrap_or_default();
            outcome(Outcome::ContinueAsNew { input }, entries)
        }
        Driven::Returned(Ok(result), entries) => outcome(Outcome::Done { result }, entries),
        Driven::Returned(Err(failure), entries) => {
            let reopen = failure.op.map_or_else(|| ledger.curable(), |op| vec![op]);
            Verdict::Failed { error: failure.info, retry, entries: manual::still_asking(entries), reopen }
        }
        Driven::Suspended { seen, entries } => outcome(Outcome::Suspend { seen }, entries),
        Driven::SetAside(error) => Verdict::SetAside { error },
        Driven::Lost => Verdict::Abandoned { give_back: false },
        Driven::GivenBack => Verdict::Abandoned { give_back: true },
        Driven::Panicked(text, entries) => {
            Verdict::Failed { error: panicked(&text), retry, entries, reopen: ledger.curable() }
        }
    }
}

/// What a function sees of its run, and everything durable it can do.
///
/// Between two durable points the code must do the same whenever it is replayed: time, randomness and everything from
/// outside come from here, or from inside an effect.
#[derive(Clone)]
pub struct FnCtx {
    pub(crate) inner: Arc<Inner>,
    /// Before every name, so that equal names in different branches do not meet.
    scope: String,
}

pub(crate) struct Inner {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) trace: TraceContext,
    namespace: Str,
    pub(crate) identity: Str,
}

impl FnCtx {
    /// An identifier in the form of a UUID that is the same in every replay, one for each name.
    #[must_use]
    pub fn uuid(&self, name: &str) -> String {
        let (high, low) = (self.random(name), self.random(&format!("{name}\u{0}")));
        let (high, low) = ((high & !0xf000) | 0x4000, (low & (u64::MAX >> 2)) | 1 << 63);
        let hex = format!("{high:016x}{low:016x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The same context under a name: what is done with it keeps apart from equal names elsewhere.
    #[must_use]
    pub fn scope(&self, name: &str) -> Self {
        Self { inner: self.inner.clone(), scope: format!("{}{name}/", self.scope) }
    }

    pub(crate) fn named(&self, name: &str) -> String {
        [&*self.scope, name].concat()
    }

    /// A piece of outside work, recorded: executed once, and its result is there for every replay after.
    #[track_caller]
    pub fn effect<'a, F, R, T, E>(&self, name: &str, call: F) -> Effect<'a, F, R, T>
    where
        F: FnOnce(Call) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let (ledger, scope, base) = self.stand();
        Effect::new(ledger, (scope, name), base, Location::caller(), call)
    }

    /// Where an effect of this function stands.
    pub(crate) fn stand(&self) -> Stand<'_> {
        (self.inner.ledger.clone(), &self.scope, self.inner.identity.clone())
    }

    /// Registers what undoes something that was done: it takes place, the last registered first, when the function fails
    /// for good or the run is cancelled. It is an idempotent effect of its own, known by its name. An error that may be
    /// cured is tried again without end. [`continue_as_new`](Self::continue_as_new) forgets it.
    ///
    /// # Errors
    /// When the name cannot be recorded.
    #[track_caller]
    pub fn undo<F, R, E>(&self, name: &str, call: F) -> Result<(), StepError>
    where
        F: FnOnce(Call) -> R + Send + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<StepError>,
    {
        let wanted = Wanted::Undo(Policy::Idempotent);
        let local = self.inner.ledger.point(&self.named(name), &wanted, 0, Location::caller())?;
        let call: UndoCall = Box::new(move |given| {
            let undoing = call(given);
            Box::pin(async move { undoing.await.map(|()| Payload::null()).map_err(Into::into) })
        });
        self.inner.ledger.push_undo(Undo { local, call });
        Ok(())
    }

    /// Waits for so long; a crash or a deploy in between does not make it longer.
    ///
    /// # Errors
    /// When the scope is used in a way that cannot be recorded.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = Result<(), StepError>> + Send + use<> {
        self.timer(moment(duration), Location::caller())
    }

    /// Waits until an instant.
    ///
    /// # Errors
    /// When the scope is used in a way that cannot be recorded.
    #[track_caller]
    pub fn sleep_until(&self, at: Timestamp) -> impl Future<Output = Result<(), StepError>> + Send + use<> {
        self.timer(Moment::At(at), Location::caller())
    }

    fn timer(
        &self,
        moment: Moment,
        place: &'static Location<'static>,
    ) -> impl Future<Output = Result<(), StepError>> + Send + use<> {
        let (ledger, name) = (self.inner.ledger.clone(), self.named("sleep"));
        async move { points::wait(&ledger, &name, Wanted::Timer(moment), 0, place).await.map(|_| ()) }
    }

    /// Waits for one signal of this name: signals are taken one at a time, in the order they came. A wait that is dropped
    /// takes none.
    #[track_caller]
    pub fn signal<T: DeserializeOwned + Send>(&self, name: &str) -> SignalWait<T> {
        SignalWait {
            ledger: self.inner.ledger.clone(),
            point: self.named(&format!("signal {name}")),
            name: name.into(),
            place: Location::caller(),
            payload: PhantomData,
        }
    }

    /// Waits to be asked for an update of this name: updates are taken one at a time, in the order they came. Answer what
    /// this gives; whoever asked with [`RunHandle::update`](crate::RunHandle::update) waits for it.
    ///
    /// One whose input does not decode as `T` is rejected by itself, and the wait goes on.
    ///
    /// ```
    /// use abide::testing::TestEngine;
    /// use abide::{Failure, FnCtx, Function};
    ///
    /// let counter = Function::new("counter", async |ctx: FnCtx, mut count: u32| {
    ///     while count < 10 {
    ///         ctx.set_state(&count)?;
    ///         let asked = ctx.update::<u32>("add").await?;
    ///         match *asked.input() {
    ///             0 => asked.reject("nothing to add"),
    ///             some => {
    ///                 count += some;
    ///                 asked.answer(&count)?;
    ///             }
    ///         }
    ///     }
    ///     Ok::<_, Failure>(count)
    /// });
    /// let engine = TestEngine::new().register(counter);
    /// let run = engine.start("counter", &0);
    /// assert_eq!(run.update::<u32, _>("add", &4).unwrap(), 4);
    /// assert!(run.update::<u32, _>("add", &0).unwrap_err().to_string().contains("nothing to add"));
    /// assert_eq!(run.state::<u32>(), 4);
    /// ```
    #[track_caller]
    pub fn update<T: DeserializeOwned + Send>(&self, name: &str) -> UpdateWait<T> {
        let point = self.named(&format!("update {name}"));
        UpdateWait::new(self.inner.ledger.clone(), point, name, Location::caller())
    }

    /// Sets the state that is seen from outside, by [`RunHandle::state`](crate::RunHandle::state) and `abide run show`. It
    /// is written with what the function writes next, and is there for others when that is durable. A replay, which sets
    /// it again, changes nothing.
    ///
    /// # Errors
    /// When it has no JSON form, or is too large.
    pub fn set_state<S: Serialize + ?Sized>(&self, state: &S) -> Result<(), StepError> {
        let state = points::encode("the state", state).map_err(StepError::of)?;
        self.inner.ledger.publish(state);
        Ok(())
    }

    /// Waits for a person to approve or reject. A run asks for one person at a time.
    #[track_caller]
    pub fn approval(&self, name: &str) -> ManualWait {
        self.manual(name, ManualKind::Approval, Location::caller())
    }

    /// Waits for a person to let the function go on.
    #[track_caller]
    pub fn pause(&self, name: &str) -> ManualWait {
        self.manual(name, ManualKind::Pause, Location::caller())
    }

    /// Waits for a person to do what the form says, and gives what they hand in.
    #[track_caller]
    pub fn task<T>(&self, name: &str, form: &(impl Serialize + ?Sized)) -> TaskWait<T> {
        TaskWait::new(self.manual(name, ManualKind::Task, Location::caller()).payload(form))
    }

    fn manual(&self, name: &str, kind: ManualKind, place: &'static Location<'static>) -> ManualWait {
        ManualWait::new(self.inner.ledger.clone(), self.named(name), kind, place)
    }

    /// Starts a child; awaiting it waits for its result, [`ChildCall::started`] only for its beginning.
    #[track_caller]
    pub fn child<T, I: Serialize + ?Sized>(&self, name: &str, workflow: &str, input: &I) -> ChildCall<T> {
        self.start_child(name, crate::child(workflow, input))
    }

    /// Starts a child with a version, a queue or a business key of its own: see [`child`](crate::child()).
    #[track_caller]
    pub fn start_child<T>(&self, name: &str, start: ChildStart) -> ChildCall<T> {
        let (ledger, place) = (self.inner.ledger.clone(), Location::caller());
        ChildCall::new(ledger, self.named(name), &self.inner.namespace, start, place)
    }

    /// Starts many children at once and waits for them: for all, or as [`Children::join`] says. Each is known by its key,
    /// and keys must differ.
    ///
    /// ```
    /// use abide::testing::TestEngine;
    /// use abide::{Failure, FnCtx, Function, Join, child};
    ///
    /// let quote = Function::new("quote", async |_: FnCtx, price: u32| {
    ///     if price > 100 { Err(Failure::new("too dear").terminal()) } else { Ok(price) }
    /// });
    /// let buy = Function::new("buy", async |ctx: FnCtx, prices: Vec<u32>| {
    ///     let shops = prices.iter().enumerate().map(|(shop, price)| (shop, child("quote", price)));
    ///     let quotes = ctx.children::<u32, _>("quotes", shops).join(Join::Quorum(2)).await?;
    ///     Ok::<_, Failure>(quotes.succeeded().into_iter().min())
    /// });
    /// let engine = TestEngine::new().register(quote).register(buy);
    /// let run = engine.start("buy", &[80, 300, 70]);
    /// assert_eq!(run.result::<Option<u32>>().unwrap(), Some(70));
    /// ```
    #[track_caller]
    pub fn children<T, K: Display>(
        &self,
        name: &str,
        children: impl IntoIterator<Item = (K, ChildStart)>,
    ) -> Children<T> {
        let (ledger, place) = (self.inner.ledger.clone(), Location::caller());
        Children::new(ledger, self.named(name), &self.inner.namespace, children, place)
    }

    /// Guards an edit that open runs must not meet half-way: true for a run that comes here for the first time, false for
    /// one whose history has passed this point without it. What it said once it says in every replay, and at every place
    /// of the same name in the same scope.
    ///
    /// Once no open run is older than the edit, remove the call and keep the new way: the mark that a run got is left
    /// alone. See `docs/changing.md`.
    #[track_caller]
    #[must_use]
    pub fn patched(&self, id: &str) -> bool {
        self.inner.ledger.patched(&self.named(&format!("patch {id}")), Location::caller())
    }

    /// Begins again from the first line with a new input and an empty ledger; the run keeps its identity. Return what
    /// this gives.
    ///
    /// # Errors
    /// Always: it is how the function ends here.
    pub fn continue_as_new<T, I: Serialize + ?Sized>(&self, input: &I) -> Result<T, Failure> {
        let input = Payload::encode(input)?;
        self.inner.ledger.begin_again(input);
        Err(StepError::new("the function begins again").code("continue_as_new"))
    }
}
