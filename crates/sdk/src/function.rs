//! Functions: workflows that are ordinary async Rust.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    Consume, ErrorInfo, Fingerprint, ManualKind, Moment, Outcome, Payload, Policy, RetryPolicy, RunId, StartSpec,
    Timestamp, mix, stable_hash,
};
use abide_runtime::{Attempt, Program, Verdict};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ledger::drive::{Drive, Driven};
use crate::ledger::manual::{self, ManualWait, TaskWait};
use crate::ledger::points::{self, Call, ChildCall, Effect, SignalWait};
use crate::ledger::{Ledger, Mode, moment};
use crate::machine::Workflow;
use crate::{Failure, StepError};

type Code = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;
type CodeFn = Arc<dyn Fn(FnCtx, &Payload) -> Code + Send + Sync>;

/// The one step of a function, as the journal names it.
const STEP: &str = "run";

/// A workflow that is an async function. It is brought back after a crash, a deploy or a long wait by running it again
/// from its beginning: everything durable it did before is answered from the journal.
#[must_use = "a function runs only once it is registered with an engine"]
pub struct Function {
    name: String,
    version: u32,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
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
        Self { name: name.into(), version: 1, retry: None, compact_after: None, code: Arc::new(called) }
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

    /// Compacts a run whenever its journal has so many rows.
    pub fn compact_after(mut self, rows: u64) -> Self {
        self.compact_after = Some(rows);
        self
    }
}

impl Workflow for Function {
    fn into_program(self) -> Result<Arc<dyn Program>, (String, String)> {
        let text = format!("function\u{0}{}\u{0}{}", self.name, self.version);
        let definition = Definition {
            workflow: self.name.as_str().into(),
            version: self.version,
            fingerprint: Fingerprint(stable_hash(text.as_bytes())),
            first_step: STEP.into(),
        };
        Ok(Arc::new(Compiled { definition, function: self }))
    }
}

struct Compiled {
    definition: Definition,
    function: Function,
}

impl Program for Compiled {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn execute(&self, attempt: Attempt) -> Pin<Box<dyn Future<Output = Verdict> + Send>> {
        let Attempt { dispatch, link } = attempt;
        let ledger = Arc::new(Ledger::new(&dispatch, link, Mode::Function));
        let input = dispatch.state.clone();
        let identity = format!("{}-{}-{}-{}", dispatch.claim.run, dispatch.epoch, dispatch.step, dispatch.visit);
        let ctx = FnCtx {
            inner: Arc::new(Inner {
                ledger: ledger.clone(),
                run: dispatch.claim.run,
                attempt: dispatch.retries + dispatch.reclaims,
                namespace: dispatch.started.spec.namespace.clone(),
                identity,
            }),
            scope: String::new(),
        };
        let code = (self.function.code)(ctx, &input);
        let (retry, compact_after) = (self.function.retry, self.function.compact_after);
        Box::pin(async move {
            let driven = Drive::new(ledger.clone(), code).await;
            verdict(&ledger, driven, retry, compact_after)
        })
    }
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
        Driven::Unknown => Verdict::Abandoned { give_back: true },
        Driven::Panicked(text, entries) => {
            Verdict::Failed { error: ErrorInfo::retryable("panic", &text), retry, entries, reopen: ledger.curable() }
        }
    }
}

/// What a function sees of its run, and everything durable it can do.
///
/// Between two durable points the code must do the same whenever it is replayed: time, randomness and everything from
/// outside come from here, or from inside an effect.
#[derive(Clone)]
pub struct FnCtx {
    inner: Arc<Inner>,
    /// Before every name, so that equal names in different branches do not meet.
    scope: String,
}

struct Inner {
    ledger: Arc<Ledger>,
    run: RunId,
    attempt: u32,
    namespace: abide_kernel::Str,
    identity: String,
}

impl FnCtx {
    /// The run.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.inner.run
    }

    /// How many attempts came before since the last progress: retries and lost workers together, from 0.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// Whether the code is being brought to where it was before: the time for logs and metrics to be quiet.
    #[must_use]
    pub fn is_replaying(&self) -> bool {
        self.inner.ledger.is_replaying()
    }

    /// The time of the last thing the function took notice of; the same in every replay.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.ledger.now()
    }

    /// A number that looks random and is the same in every replay, one for each name.
    #[must_use]
    pub fn random(&self, name: &str) -> u64 {
        mix(stable_hash(format!("{}\u{0}{}", self.inner.identity, self.named(name)).as_bytes()))
    }

    /// An identifier in the form of a UUID that is the same in every replay, one for each name.
    #[must_use]
    pub fn uuid(&self, name: &str) -> String {
        let (high, low) = (self.random(name), self.random(&format!("{name}\u{0}")));
        let high = (high & !0xf000) | 0x4000;
        let low = (low & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        let bits = (u128::from(high) << 64) | u128::from(low);
        let hex = format!("{bits:032x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The same context under a name: what is done with it keeps apart from equal names elsewhere.
    #[must_use]
    pub fn scope(&self, name: &str) -> Self {
        Self { inner: self.inner.clone(), scope: format!("{}{name}/", self.scope) }
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// A piece of outside work, recorded: executed once, and its result is there for every replay after.
    #[track_caller]
    pub fn effect<'a, F, R, T, E>(&self, name: &str, call: F) -> Effect<'a, F, R, T>
    where
        F: FnOnce(Call) -> R,
        R: Future<Output = Result<T, E>>,
    {
        Effect {
            ledger: self.inner.ledger.clone(),
            name: self.named(name),
            base: self.inner.identity.clone(),
            policy: Policy::default(),
            input: Ok(0),
            place: Location::caller(),
            call,
            returns: PhantomData,
        }
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

    /// Waits for one signal of this name: signals are taken one at a time, in the order they came.
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
        let payload = Payload::encode(input).map_err(StepError::from);
        let hash = payload.as_ref().map_or(0, Payload::canonical_hash);
        let wanted = payload.map(|input| {
            let mut spec = StartSpec::new(workflow, input);
            spec.namespace = self.inner.namespace.clone();
            Wanted::Child(Box::new(spec))
        });
        ChildCall {
            ledger: self.inner.ledger.clone(),
            name: self.named(name),
            wanted,
            input: hash.max(1),
            place: Location::caller(),
            result: PhantomData,
        }
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
