//! Starting runs.

use std::collections::BTreeMap;

use abide_kernel::{Payload, RunId, Status, TraceContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Instant, Problem};

/// A run that is to begin.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The workflow's name.
    pub workflow: String,
    /// The input; `null` if absent.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub input: Payload,
    /// The workflow's version; without it the newest that the server knows, else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// A business key: at most one open run of the workflow has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What to answer when the key is taken.
    #[serde(default)]
    pub on_conflict: OnConflict,
    /// The statuses in which the run has its key; all that are not over if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<crate::shape::Standing>")]
    pub occupied: Vec<Status>,
    /// The queue whose workers may claim it; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Lower comes first.
    #[serde(default)]
    pub priority: i32,
    /// At most so many attempts of runs with this key at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// Not before so many milliseconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eligible_at: Option<Instant>,
    /// The whole run must have ended within so many milliseconds, or it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Words to find the run by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Deliveries of one attempt without an answer before it becomes a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliveries_max: Option<u32>,
    /// The place in a trace at which it is asked for, as W3C's `traceparent`; that of the request's header if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Traceparent>")]
    pub traceparent: Option<TraceContext>,
}

impl Start {
    /// A run of `workflow`.
    #[must_use]
    pub fn new(workflow: &str, input: Payload) -> Self {
        Self {
            workflow: workflow.into(),
            input,
            version: None,
            key: None,
            on_conflict: OnConflict::Reject,
            occupied: Vec::new(),
            queue: None,
            priority: 0,
            concurrency: None,
            delay_ms: None,
            eligible_at: None,
            deadline_ms: None,
            labels: BTreeMap::new(),
            deliveries_max: None,
            traceparent: None,
        }
    }
}

/// What to answer when a business key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Say that it was rejected, and by which run.
    #[default]
    Reject,
    /// Answer with the run that has the key, if its input is the same.
    Reuse,
}

/// At most `limit` attempts of `key` at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The key shared by all runs that take turns.
    pub key: String,
    /// How many may execute at once.
    #[serde(default = "one")]
    pub limit: u32,
}

fn one() -> u32 {
    1
}

/// Runs that are to begin, in one commit where they live together.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartMany {
    /// The runs.
    pub runs: Vec<Start>,
}

/// A run that began, now or before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Whether it is new.
    pub admission: Admission,
}

/// How a start got its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// The run is new, or was when this request came first.
    Created,
    /// The run had the key already, with the same input.
    Reused,
}

/// What became of one of many starts: it began, or there is a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartAnswer {
    /// The run that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Started>,
    /// Why none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

/// What became of many starts, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartedMany {
    /// One answer each.
    pub answers: Vec<StartAnswer>,
}
