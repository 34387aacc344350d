//! What a step sees of its run.

use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use abide_kernel::shard::Dispatch;
use abide_kernel::{ChildEnd, Payload, RunId, StartSpec, Status, Timestamp, TraceContext, WakeReason};
use abide_runtime::{Attempt, AttemptLink, UNSAID};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::Controls;
use crate::ledger::answer::InStep;
use crate::ledger::points::{Call, Effect};
use crate::ledger::{Ledger, Mode};
use crate::transaction::Stand;
use crate::{ClientError, StepError};

/// A step's view of its run and of this attempt.
#[derive(Clone)]
pub struct Ctx {
    inner: Arc<Inner>,
}

struct Inner {
    dispatch: Box<Dispatch>,
    link: AttemptLink,
    controls: Arc<Controls>,
    /// Made when the step does something durable; most steps do not.
    ledger: OnceLock<Arc<Ledger>>,
}

impl Ctx {
    pub(crate) fn new(attempt: Attempt, controls: Arc<Controls>) -> Self {
        let Attempt { dispatch, link } = attempt;
        Self { inner: Arc::new(Inner { dispatch, link, controls, ledger: OnceLock::new() }) }
    }

    pub(crate) fn dispatch(&self) -> &Dispatch {
        &self.inner.dispatch
    }

    /// The ledger, if the step has done something durable.
    pub(crate) fn used_ledger(&self) -> Option<&Arc<Ledger>> {
        self.inner.ledger.get()
    }

    fn ledger(&self) -> Arc<Ledger> {
        let inner = &self.inner;
        let make = || Arc::new(Ledger::new(&inner.dispatch, inner.link.clone(), Mode::Step, inner.controls.clone()));
        self.inner.ledger.get_or_init(make).clone()
    }

    /// Where an effect of this step stands.
    pub(crate) fn stand(&self) -> Stand<'static> {
        (self.ledger(), "", self.idempotency_key().into())
    }

    /// A piece of outside work, recorded: executed once, and its result is there for every later attempt at this step.
    #[track_caller]
    pub fn effect<'a, F, R, T, E>(&self, name: &str, call: F) -> Effect<'a, F, R, T, InStep>
    where
        F: FnOnce(Call) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let (ledger, scope, base) = self.stand();
        Effect::new(ledger, (scope, name), base, Location::caller(), call)
    }

    /// The run.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.dispatch().claim.run
    }

    /// The workflow's name.
    #[must_use]
    pub fn workflow(&self) -> &str {
        &self.dispatch().started.spec.workflow
    }

    /// The workflow's version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.dispatch().started.spec.version
    }

    /// The step.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.dispatch().step
    }

    /// The attempt's place in its run's trace, for spans that the step makes below it, here or elsewhere.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        TraceContext::of_attempt(self.dispatch().claim, &self.dispatch().started)
    }

    /// How many attempts of this step came before: retries and lost workers together, from 0.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.retries() + self.reclaims()
    }

    /// Attempts of this step that failed or asked to be replayed.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.dispatch().retries
    }

    /// Attempts of this step whose worker was lost.
    #[must_use]
    pub fn reclaims(&self) -> u32 {
        self.dispatch().reclaims
    }

    /// The input the run was started with.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, StepError> {
        decode("the run's input", &self.dispatch().started.spec.input)
    }

    /// A key for outside work that stays the same over all attempts of this step, and differs from visit to visit.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let dispatch = self.dispatch();
        format!("{}-{}-{}-{}", dispatch.claim.run, dispatch.epoch, dispatch.step, dispatch.visit)
    }

    /// The first signal of this name that waits in the inbox. It stays there until the step progresses.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn signal<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StepError> {
        let found = self.dispatch().signals.iter().find(|signal| &*signal.name == name);
        found.map(|signal| decode(&format!("signal {name:?}"), &signal.payload)).transpose()
    }

    /// All signals of this name that wait in the inbox, in the order they arrived.
    ///
    /// # Errors
    /// When one does not have the shape of `T`.
    pub fn signals<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, StepError> {
        let found = self.dispatch().signals.iter().filter(|signal| &*signal.name == name);
        found.map(|signal| decode(&format!("signal {name:?}"), &signal.payload)).collect()
    }

    /// What ended the wait before this attempt, if there was one.
    #[must_use]
    pub fn woken_by(&self) -> Option<WakeReason> {
        self.dispatch().woken_by
    }

    /// Whether the wait before this attempt ended by its deadline.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.woken_by() == Some(WakeReason::Deadline)
    }

    /// The run's children, in the order they were asked for.
    #[must_use]
    pub fn children(&self) -> Vec<Child> {
        self.dispatch().children.iter().cloned().map(Child).collect()
    }

    /// Whether the claim on this attempt has ended: what the step returns will not be recorded.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.link.is_cancelled()
    }

    /// Waits until the claim on this attempt ends without it.
    pub async fn cancelled(&self) {
        self.inner.link.cancelled().await;
    }

    /// When the lease ends unless it is extended, which happens by itself while the step executes.
    #[must_use]
    pub fn lease_until(&self) -> Timestamp {
        self.dispatch().lease_until
    }

    /// Says how far the step has come: the latest value of each name is shown with the run, and told to the next attempt at
    /// this step. It is best effort, and writes nothing by itself.
    ///
    /// # Errors
    /// When the claim has ended, or what is said is too large.
    pub async fn progress<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Result<(), StepError> {
        let value = Payload::encode(value).map_err(StepError::from)?;
        self.inner.link.progress(name, value).await.map_err(|error| StepError::from(ClientError::from(error)))
    }

    /// What an attempt before this one said last under a name, at this step.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn last_progress<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StepError> {
        let found = self.dispatch().progress.iter().find(|event| &*event.name == name);
        found.map(|event| decode(&format!("progress {name:?}"), &event.value)).transpose()
    }

    /// Starts a child without waiting for it. The same key gives the same child, over all attempts.
    ///
    /// # Errors
    /// When the claim has ended, or the child cannot be started.
    pub async fn start_child<I: Serialize + ?Sized>(
        &self,
        workflow: &str,
        key: &str,
        input: &I,
    ) -> Result<RunId, StepError> {
        let input = Payload::encode(input).map_err(StepError::from)?;
        let mut spec = StartSpec { version: UNSAID, ..StartSpec::new(workflow, input) };
        spec.namespace = self.dispatch().started.spec.namespace.clone();
        let started = self.inner.link.start_child(key, spec, None).await;
        started.map_err(|error| StepError::from(ClientError::from(error)))
    }
}

fn decode<T: DeserializeOwned>(what: &str, payload: &Payload) -> Result<T, StepError> {
    payload.decode().map_err(|error| {
        StepError::new(format!("{what} does not decode as {}: {error}", std::any::type_name::<T>()))
            .code("undecodable")
            .terminal()
    })
}

/// A child, as its parent sees it.
#[derive(Clone, Debug)]
pub struct Child(abide_kernel::Child);

impl Child {
    /// The child.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.0.id
    }

    /// Its workflow.
    #[must_use]
    pub fn workflow(&self) -> &str {
        &self.0.workflow
    }

    /// Its key, if it was started inside a step.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// How it ended; `None` while it is open, or when it was never inserted.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match &self.0.end {
            Some(ChildEnd::Ended { status, .. }) => Some(*status),
            Some(ChildEnd::Answered(_)) | None => None,
        }
    }

    /// Whether it was not inserted, because its key was taken.
    #[must_use]
    pub fn was_inserted(&self) -> bool {
        !matches!(self.0.end, Some(ChildEnd::Answered(_)))
    }

    /// Its result, if it ended well.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>, StepError> {
        match &self.0.end {
            Some(ChildEnd::Ended { result: Some(result), .. }) => decode("a child's result", result).map(Some),
            _ => Ok(None),
        }
    }

    /// Its last state, once it has ended.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>, StepError> {
        match &self.0.end {
            Some(ChildEnd::Ended { state, .. }) => decode("a child's state", state).map(Some),
            _ => Ok(None),
        }
    }

    /// Its error, if it did not end well.
    #[must_use]
    pub fn error(&self) -> Option<&abide_kernel::ErrorInfo> {
        match &self.0.end {
            Some(ChildEnd::Ended { error, .. }) => error.as_deref(),
            _ => None,
        }
    }
}
