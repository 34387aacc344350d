//! What a step returns: plain functions, one per outcome.

use std::time::Duration;

use abide_kernel::{
    ChildSpec, Concurrency, Consume, ErrorInfo, Join, Moment, OnConflict, Outcome as Decided, Payload, StartSpec,
    StatusSet, Timestamp, UniqueKey,
};
use abide_runtime::UNSAID;
use serde::Serialize;

use crate::StepError;

/// What happens next to a run.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an outcome does nothing unless the step returns it"]
pub struct Outcome {
    pub(crate) decided: Result<Decided, ErrorInfo>,
    pub(crate) consume: Consume,
}

impl Outcome {
    fn new<T: Serialize + ?Sized>(what: &str, value: &T, outcome: impl FnOnce(Payload) -> Decided) -> Self {
        let encoded = Payload::encode(value)
            .map_err(|error| ErrorInfo::terminal("unencodable", &format!("the {what} has no JSON form: {error}")));
        Self { decided: encoded.map(outcome), consume: Consume::Presented }
    }

    /// Wakes the run at this moment, even if what it waits for has not come. For `await_signal` and `spawn`.
    pub fn deadline(mut self, after: Duration) -> Self {
        if let Ok(Decided::Await { deadline, .. } | Decided::Spawn { deadline, .. }) = &mut self.decided {
            *deadline = Some(Moment::In(millis(after)));
        }
        self
    }

    /// The step to run when the wait is over, instead of the same one again. For `await_signal` and `sleep`.
    pub fn then(mut self, step: &str) -> Self {
        if let Ok(Decided::Await { then, .. } | Decided::Sleep { then, .. }) = &mut self.decided {
            *then = Some(step.into());
        }
        self
    }

    /// When the join is satisfied. For `spawn`.
    pub fn join(mut self, policy: Join) -> Self {
        if let Ok(Decided::Spawn { join, .. }) = &mut self.decided {
            *join = policy;
        }
        self
    }

    /// Which waiting signals the step uses up.
    pub fn consume(mut self, consume: Consume) -> Self {
        self.consume = consume;
        self
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Go on with another step.
pub fn next<S: Serialize>(step: &str, state: S) -> Outcome {
    Outcome::new("state", &state, |state| Decided::Next { step: step.into(), state })
}

/// Run the same step again after a delay.
pub fn replay<S: Serialize>(state: S, delay: Duration) -> Outcome {
    Outcome::new("state", &state, |state| Decided::Replay { state, delay_ms: millis(delay) })
}

/// Park until a signal of this name arrives, then run the same step again.
pub fn await_signal<S: Serialize>(name: &str, state: S) -> Outcome {
    await_any(&[name], state)
}

/// Park until a signal of one of these names arrives, then run the same step again.
pub fn await_any<S: Serialize>(names: &[&str], state: S) -> Outcome {
    let signals = names.iter().map(|name| (*name).into()).collect();
    Outcome::new("state", &state, |state| Decided::Await { signals, then: None, deadline: None, state })
}

/// Park for a while, then run the same step again, or the one given by `then`.
pub fn sleep<S: Serialize>(duration: Duration, state: S) -> Outcome {
    Outcome::new("state", &state, |state| Decided::Sleep { until: Moment::In(millis(duration)), then: None, state })
}

/// Start children, park until they have joined, then run `step`.
pub fn spawn<S: Serialize>(children: impl IntoIterator<Item = ChildStart>, step: &str, state: S) -> Outcome {
    let specs: Result<Vec<ChildSpec>, ErrorInfo> = children.into_iter().map(|child| child.spec).collect();
    match specs {
        Ok(children) => Outcome::new("state", &state, |state| Decided::Spawn {
            children,
            then: step.into(),
            join: Join::default(),
            deadline: None,
            state,
        }),
        Err(error) => Outcome { decided: Err(error), consume: Consume::Presented },
    }
}

/// End well, with a result.
pub fn done<R: Serialize + ?Sized>(result: &R) -> Outcome {
    Outcome::new("result", result, |result| Decided::Done { result })
}

/// End with an error.
pub fn stop(error: impl Into<StepError>) -> Outcome {
    Outcome { decided: Ok(Decided::Stop { error: error.into().info }), consume: Consume::Presented }
}

/// Begin again at the first step with a new input. The run keeps its identity, its keys and its inbox.
pub fn continue_as_new<S: Serialize>(input: S) -> Outcome {
    Outcome::new("input", &input, |input| Decided::ContinueAsNew { input })
}

/// A child to be started by [`spawn`].
#[derive(Clone, Debug)]
#[must_use = "a child is started by spawn"]
pub struct ChildStart {
    pub(crate) spec: Result<ChildSpec, ErrorInfo>,
}

/// A child: a run of `workflow` with this input.
pub fn child<I: Serialize + ?Sized>(workflow: &str, input: &I) -> ChildStart {
    let input = Payload::encode(input).map_err(|error| {
        ErrorInfo::terminal("unencodable", &format!("the input of child {workflow:?} has no JSON form: {error}"))
    });
    let spec = |input| StartSpec { version: UNSAID, ..StartSpec::new(workflow, input) };
    ChildStart { spec: input.map(|input| ChildSpec { spec: spec(input) }) }
}

impl ChildStart {
    fn with(mut self, change: impl FnOnce(&mut StartSpec)) -> Self {
        if let Ok(child) = &mut self.spec {
            change(&mut child.spec);
        }
        self
    }

    /// The workflow's version; without it, the newest that is known where the child is started.
    pub fn version(self, version: u32) -> Self {
        self.with(|spec| spec.version = version)
    }

    /// The queue.
    pub fn queue(self, queue: &str) -> Self {
        self.with(|spec| spec.queue = queue.into())
    }

    /// Lower comes first.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// A business key, occupied while the child is open.
    pub fn key(self, key: &str) -> Self {
        self.with(|spec| {
            spec.key = Some(UniqueKey { key: key.into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reject });
        })
    }

    /// The statuses in which the key is occupied.
    pub fn occupied(self, statuses: StatusSet) -> Self {
        self.with(|spec| {
            if let Some(key) = &mut spec.key {
                key.occupied = statuses;
            }
        })
    }

    /// At most `limit` attempts of this key at once.
    pub fn concurrency(self, key: &str, limit: u32) -> Self {
        self.with(|spec| spec.concurrency = Some(Concurrency { key: key.into(), limit }))
    }

    /// Not before this instant.
    pub fn eligible_at(self, at: Timestamp) -> Self {
        self.with(|spec| spec.eligible_at = Some(at))
    }
}

/// So many seconds.
#[must_use]
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// So many minutes.
#[must_use]
pub const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// So many hours.
#[must_use]
pub const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

/// So many days.
#[must_use]
pub const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}
