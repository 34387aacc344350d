//! Outcomes: what a step returns, and so what happens to its run next.

use alloc::format;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::spec::{check_count, check_key, check_name, check_payload, is_zero};
use crate::{ErrorInfo, Moment, Payload, Refusal, StartSpec, Str};

/// What a step returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Go on with another step.
    Next {
        /// The step to run next.
        step: Str,
        /// The new state.
        state: Payload,
    },
    /// Run the same step again, after a delay.
    Replay {
        /// The new state.
        state: Payload,
        /// How long to wait first.
        #[serde(default, skip_serializing_if = "is_zero")]
        delay_ms: u64,
    },
    /// Park until a named signal arrives.
    Await {
        /// The names to listen to; any of them wakes.
        signals: Vec<Str>,
        /// The step to run then; the same one again if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Str>,
        /// Wake then even without a signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
        /// The new state.
        state: Payload,
    },
    /// Park until a moment.
    Sleep {
        /// When to wake.
        until: Moment,
        /// The step to run then; the same one again if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Str>,
        /// The new state.
        state: Payload,
    },
    /// Start children and park until they have joined.
    Spawn {
        /// The children to start.
        children: Vec<ChildSpec>,
        /// The step to run when the join is satisfied.
        then: Str,
        /// When the join is satisfied.
        #[serde(default, skip_serializing_if = "is_zero")]
        join: Join,
        /// Wake then even if the join is not satisfied.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
        /// The new state.
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
        result: Payload,
    },
    /// End as cancelled, now that what was done is undone.
    Cancelled,
    /// End with an error.
    Stop {
        /// The error.
        error: ErrorInfo,
    },
    /// Begin again at the first step with a new input; the run keeps its identity, keys and inbox.
    ContinueAsNew {
        /// The input of the new beginning.
        input: Payload,
    },
}

/// A child to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildSpec {
    /// What to start.
    pub spec: StartSpec,
}

/// When a join barrier is satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Which waiting signals a progressing step uses up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consume {
    /// Exactly the awaited ones that were presented to it.
    #[default]
    Presented,
    /// All of the awaited names, also those that arrived while it ran.
    ByName,
}

impl Outcome {
    /// Checks names and sizes before anything is written.
    ///
    /// # Errors
    /// The first thing that is not acceptable.
    pub fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Next { step, state } => {
                check_name("step", step)?;
                check_payload("state", state)
            }
            Self::Replay { state, .. } => check_payload("state", state),
            Self::Await { signals, then, state, .. } => {
                if signals.is_empty() {
                    return Err(Refusal::invalid("await", "at least one signal name", "none"));
                }
                check_count("awaited names", signals.len(), limits::AWAIT_NAMES_MAX)?;
                signals.iter().try_for_each(|name| check_name("signal name", name))?;
                then.iter().try_for_each(|step| check_name("step", step))?;
                check_payload("state", state)
            }
            Self::Sleep { then, state, .. } => {
                then.iter().try_for_each(|step| check_name("step", step))?;
                check_payload("state", state)
            }
            Self::Spawn { children, then, state, join, .. } => {
                check_name("step", then)?;
                check_count("children", children.len(), limits::CHILDREN_MAX)?;
                children.iter().try_for_each(|child| child.spec.validate())?;
                check_quorum(*join, children.len())?;
                check_payload("state", state)
            }
            Self::Suspend { .. } | Self::Cancelled => Ok(()),
            Self::Done { result } => check_payload("result", result),
            Self::Stop { error } => error.validate(),
            Self::ContinueAsNew { input } => check_payload("input", input),
        }
    }

    /// The word for this outcome, as in the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Next { .. } => "next",
            Self::Replay { .. } => "replay",
            Self::Await { .. } => "await",
            Self::Sleep { .. } => "sleep",
            Self::Spawn { .. } => "spawn",
            Self::Suspend { .. } => "suspend",
            Self::Done { .. } => "done",
            Self::Cancelled => "cancelled",
            Self::Stop { .. } => "stop",
            Self::ContinueAsNew { .. } => "continue_as_new",
        }
    }
}

fn check_quorum(join: Join, children: usize) -> Result<(), Refusal> {
    match join {
        Join::Quorum(k) if k == 0 || k as usize > children.max(1) => {
            Err(Refusal::invalid("quorum", "from 1 to the number of children", format!("{k} of {children}")))
        }
        _ => Ok(()),
    }
}

/// Checks what a child start inside a step needs beyond its spec.
pub(crate) fn validate_child_key(key: &str) -> Result<(), Refusal> {
    check_key("child key", key)
}
