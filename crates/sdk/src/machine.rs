//! Machines: workflows of named steps.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use abide_kernel::transition::claim::Definition;
use abide_kernel::{ErrorInfo, Fingerprint, Policy, RetryPolicy, stable_hash};
use abide_runtime::{Attempt, Program, Verdict};
use serde::de::DeserializeOwned;

use crate::control::{Control, Controls, Operation, Plan, PlanError};
use crate::stepping::{Stepped, Stepping, Written};
use crate::{Ctx, Outcome, StepError};

type StepFuture = Pin<Box<dyn Future<Output = Result<Outcome, StepError>> + Send>>;
type HandlerFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type StepFn = Arc<dyn Fn(Ctx) -> StepFuture + Send + Sync>;
type HandlerFn = Arc<dyn Fn(StepError, Ctx) -> Result<HandlerFuture, StepError> + Send + Sync>;

/// A workflow that an engine can run.
pub trait Workflow: Send + Sync + 'static {
    /// What the engine executes.
    ///
    /// # Errors
    /// What is wrong with the workflow.
    fn into_program(self) -> Result<Arc<dyn Program>, (String, String)>;
}

/// A workflow of named steps over a state of type `S`. The first step given is where a run begins.
#[must_use = "a machine runs only once it is registered with an engine"]
pub struct Machine<S> {
    name: String,
    version: u32,
    order: Vec<String>,
    steps: HashMap<String, StepFn>,
    duplicate: Option<String>,
    on_error: Option<HandlerFn>,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
    operations: Vec<Operation>,
    controls: Controls,
    state: std::marker::PhantomData<fn(S)>,
}

impl<S: DeserializeOwned + Send + 'static> Machine<S> {
    /// A machine of this name, at version 1.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            version: 1,
            order: Vec::new(),
            steps: HashMap::new(),
            duplicate: None,
            on_error: None,
            retry: None,
            compact_after: None,
            operations: Vec::new(),
            controls: Controls::default(),
            state: std::marker::PhantomData,
        }
    }

    /// Its version. Runs stay with the version they were started with.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Adds a step. It gets the run's state and returns what happens next.
    pub fn step<F, R>(mut self, name: &str, step: F) -> Self
    where
        F: Fn(Ctx, S) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Outcome, StepError>> + Send + 'static,
    {
        let called = move |ctx: Ctx| -> StepFuture {
            match decode_state::<S>(&ctx) {
                Ok(state) => Box::pin(step(ctx, state)),
                Err(error) => Box::pin(std::future::ready(Err(error))),
            }
        };
        if self.steps.insert(name.into(), Arc::new(called)).is_some() {
            self.duplicate = Some(name.into());
        }
        self.order.push(name.into());
        self
    }

    /// Answers the errors and panics of all steps with an outcome of its own. It is not called when a worker is lost.
    pub fn on_error<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(StepError, Ctx, S) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.on_error = Some(Arc::new(move |error, ctx| {
            let state = decode_state::<S>(&ctx)?;
            Ok(Box::pin(handler(error, ctx, state)))
        }));
        self
    }

    /// When a failed step is tried again, if there is no `on_error`.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Declares an operation that a step does, so that it is planned before anything runs.
    pub fn operation(mut self, name: &str, policy: Policy) -> Self {
        self.operations.push(Operation { name: name.into(), policy });
        self
    }

    /// Adds a control; the first that matches an operation decides.
    pub fn control(mut self, control: Control) -> Self {
        self.controls.push(control);
        self
    }

    /// What the machine will do, as far as it declares it.
    ///
    /// # Errors
    /// When it declares an operation that needs a control and has none.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.controls.plan(&self.operations)?;
        Ok(Plan { workflow: self.name.clone(), version: self.version, operations: self.operations.clone() })
    }

    /// Compacts a run whenever its journal has so many rows: it begins anew with the run as it stands, and what was
    /// before goes. For runs that live long and take many steps; their history is then short.
    pub fn compact_after(mut self, rows: u64) -> Self {
        self.compact_after = Some(rows);
        self
    }
}

fn decode_state<S: DeserializeOwned>(ctx: &Ctx) -> Result<S, StepError> {
    ctx.dispatch().state.decode().map_err(|error| {
        let message = format!(
            "the state does not decode as {} at step {:?}: {error}; register the version that wrote it",
            std::any::type_name::<S>(),
            ctx.step()
        );
        StepError::new(message).code("undecodable_state").terminal()
    })
}

impl<S: Send + Sync + 'static> Workflow for Machine<S> {
    fn into_program(self) -> Result<Arc<dyn Program>, (String, String)> {
        let problem = match (&self.duplicate, self.order.first()) {
            (Some(step), _) => Some(format!("step {step:?} is defined twice; give each step a name of its own")),
            (None, None) => Some("it has no steps; add one with .step(name, …)".to_owned()),
            (None, Some(_)) => self.controls.plan(&self.operations).err().map(|refused| refused.to_string()),
        };
        if let Some(problem) = problem {
            return Err((self.name, problem));
        }
        let text = format!("{}\u{0}{}\u{0}{}", self.name, self.version, self.order.join("\u{0}"));
        let definition = Definition {
            workflow: self.name.as_str().into(),
            version: self.version,
            fingerprint: Fingerprint(stable_hash(text.as_bytes())),
            first_step: self.order[0].as_str().into(),
        };
        Ok(Arc::new(Compiled {
            definition,
            order: self.order,
            steps: self.steps,
            on_error: self.on_error,
            retry: self.retry,
            compact_after: self.compact_after,
            controls: Arc::new(self.controls),
        }))
    }
}

struct Compiled {
    definition: Definition,
    order: Vec<String>,
    steps: HashMap<String, StepFn>,
    on_error: Option<HandlerFn>,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
    controls: Arc<Controls>,
}

impl Program for Compiled {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn has_step(&self, step: &str) -> bool {
        self.steps.contains_key(step)
    }

    fn execute(&self, attempt: Attempt) -> Pin<Box<dyn Future<Output = Verdict> + Send>> {
        let ctx = Ctx::new(attempt, self.controls.clone());
        let Some(step) = self.steps.get(ctx.step()) else {
            let message = format!(
                "workflow {:?} version {} has no step {:?}; its steps are {}",
                self.definition.workflow,
                self.definition.version,
                ctx.step(),
                self.order.join(", ")
            );
            let error = ErrorInfo::terminal("unknown_step", &message);
            return Box::pin(std::future::ready(Verdict::failed(error, None)));
        };
        let (retry, compact_after) = (self.retry, self.compact_after);
        let Some(on_error) = self.on_error.clone() else {
            let code = step(ctx.clone());
            return Box::pin(async move {
                match Stepping::new(ctx, code).await {
                    Stepped::Returned(returned, written) => verdict(returned, retry, compact_after, written),
                    Stepped::Ended(verdict) => verdict,
                }
            });
        };
        let step = CatchPanic(step(ctx.clone()));
        let inside = ctx.clone();
        let code: Pin<Box<dyn Future<Output = Answered> + Send>> = Box::pin(async move {
            let error = match step.await {
                Ok(outcome) => return Answered::Returned(Ok(outcome)),
                Err(error) => error,
            };
            match on_error(error.clone(), inside) {
                Ok(handler) => Answered::Handled(handler.await, error),
                Err(undecodable) => Answered::Returned(Err(undecodable)),
            }
        });
        Box::pin(async move {
            match Stepping::new(ctx, code).await {
                Stepped::Returned(Answered::Returned(returned), written) => {
                    verdict(returned, None, compact_after, written)
                }
                Stepped::Returned(Answered::Handled(outcome, error), written) => {
                    answered(outcome, error, compact_after, written)
                }
                Stepped::Ended(verdict) => verdict,
            }
        })
    }
}

/// What a step, or its error handler, came to.
enum Answered {
    Returned(Result<Outcome, StepError>),
    Handled(Outcome, StepError),
}

fn verdict(
    returned: Result<Outcome, StepError>,
    retry: Option<RetryPolicy>,
    compact_after: Option<u64>,
    written: Written,
) -> Verdict {
    let Written { entries, curable } = written;
    match returned {
        Ok(Outcome { decided: Ok(outcome), consume }) => {
            Verdict::Outcome { outcome, consume, error: None, compact_after, entries }
        }
        Ok(Outcome { decided: Err(error), .. }) => Verdict::Failed { error, retry: None, entries, reopen: Vec::new() },
        Err(error) => {
            let reopen = error.op.map_or(curable, |op| vec![op]);
            Verdict::Failed { error: error.info, retry, entries, reopen }
        }
    }
}

fn answered(outcome: Outcome, error: StepError, compact_after: Option<u64>, written: Written) -> Verdict {
    let entries = written.entries;
    match outcome.decided {
        Ok(decided) => {
            let (consume, error) = (outcome.consume, Some(error.info));
            Verdict::Outcome { outcome: decided, consume, error, compact_after, entries }
        }
        Err(error) => Verdict::Failed { error, retry: None, entries, reopen: Vec::new() },
    }
}

/// A step whose panic is an error, so that the handler can answer it.
struct CatchPanic(StepFuture);

impl Future for CatchPanic {
    type Output = Result<Outcome, StepError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        let step = &mut self.0;
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = text.unwrap_or_else(|| "the step panicked with something that is no text".into());
            std::task::Poll::Ready(Err(StepError::new(message).code("panic")))
        })
    }
}
