//! Outcomes: what a step returned, and so what happens to its run next.

use abide_kernel as kernel;
use abide_kernel::{Payload, Str};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Instant, Start};

/// What a step returned.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Go on with another step.
    Next {
        /// The step to run next.
        step: String,
        /// The new state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
    },
    /// Run the same step again, after a delay.
    Replay {
        /// The new state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
        /// How long to wait first.
        #[serde(default)]
        delay_ms: u64,
    },
    /// Park until a signal of one of these names arrives.
    Await {
        /// The names.
        signals: Vec<String>,
        /// The step to run then; the same one again if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<String>,
        /// Wake then even without a signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
        /// The new state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
    },
    /// Park until a moment.
    Sleep {
        /// When to wake.
        until: Moment,
        /// The step to run then; the same one again if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<String>,
        /// The new state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
    },
    /// Start children and park until they have joined.
    Spawn {
        /// The children.
        children: Vec<Start>,
        /// The step to run when the join is satisfied.
        then: String,
        /// When the join is satisfied.
        #[serde(default)]
        join: Join,
        /// Wake then even if it is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
        /// The new state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
    },
    /// Park until an open entry of the ledger ends.
    Suspend {
        /// How many entries had ended as far as the step has seen: one that ended since wakes it at once.
        seen: u32,
    },
    /// End well.
    Done {
        /// The result.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        result: Payload,
    },
    /// End as cancelled, now that what was done is undone.
    Cancelled {},
    /// End with an error.
    Stop {
        /// The error.
        error: Error,
    },
    /// Begin again at the first step with a new input.
    ContinueAsNew {
        /// The input of the new beginning.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        input: Payload,
    },
}

/// A point in time: from when it is recorded, or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// So many milliseconds from then.
    InMs(u64),
    /// At this instant; a past one means at once.
    At(Instant),
}

/// When a join is satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// When every child has ended, however.
    #[default]
    AllTerminal,
    /// When every child has succeeded, or as soon as one has not.
    AllSucceeded,
    /// When one child has succeeded, or all have ended.
    Any,
    /// When so many children have succeeded, or that has become impossible.
    Quorum(u32),
}

impl From<Moment> for kernel::Moment {
    fn from(moment: Moment) -> Self {
        match moment {
            Moment::InMs(ms) => Self::In(ms),
            Moment::At(at) => Self::At(at.0),
        }
    }
}

impl From<Join> for kernel::Join {
    fn from(join: Join) -> Self {
        match join {
            Join::AllTerminal => Self::AllTerminal,
            Join::AllSucceeded => Self::AllSucceeded,
            Join::Any => Self::Any,
            Join::Quorum(count) => Self::Quorum(count),
        }
    }
}

fn then(step: Option<String>) -> Option<Str> {
    step.map(Into::into)
}

impl Outcome {
    /// As the kernel has it. What children are started with depends on where: `spec` says it.
    pub fn into_kernel(self, spec: impl Fn(Start) -> kernel::StartSpec) -> kernel::Outcome {
        use kernel::Outcome as To;
        match self {
            Self::Next { step, state } => To::Next { step: step.into(), state },
            Self::Replay { state, delay_ms } => To::Replay { state, delay_ms },
            Self::Await { signals, then: step, deadline, state } => To::Await {
                signals: signals.into_iter().map(Into::into).collect(),
                then: then(step),
                deadline: deadline.map(Into::into),
                state,
            },
            Self::Sleep { until, then: step, state } => To::Sleep { until: until.into(), then: then(step), state },
            Self::Spawn { children, then, join, deadline, state } => To::Spawn {
                children: children.into_iter().map(|child| kernel::ChildSpec { spec: spec(child) }).collect(),
                then: then.into(),
                join: join.into(),
                deadline: deadline.map(Into::into),
                state,
            },
            Self::Suspend { seen } => To::Suspend { seen },
            Self::Done { result } => To::Done { result },
            Self::Cancelled {} => To::Cancelled,
            Self::Stop { error } => To::Stop { error: error.into() },
            Self::ContinueAsNew { input } => To::ContinueAsNew { input },
        }
    }
}
