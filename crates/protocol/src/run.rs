//! Runs as they are seen: in a list, alone, and why they do not move.

use std::collections::BTreeMap;

use abide_kernel::{BoundaryId, ErrorInfo, Payload, RunId, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// A run in a list, without its payloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Its tenant.
    pub namespace: String,
    /// Its workflow.
    pub workflow: String,
    /// The workflow's version.
    pub version: u32,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    #[schemars(with = "crate::shape::Standing")]
    pub status: Status,
    /// Its step.
    pub step: Option<String>,
    /// Its business key.
    pub key: Option<String>,
    /// Its parent.
    #[schemars(with = "Option<crate::shape::Run>")]
    pub parent: Option<RunId>,
    /// The words it can be found by.
    pub labels: BTreeMap<String, String>,
    /// When it was started.
    pub created_at: Instant,
    /// When it last changed.
    pub updated_at: Instant,
    /// When something happens to it by itself.
    pub due: Option<Instant>,
    /// Its revision.
    pub rev: u64,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Give it as `before` for the next page; absent at the end.
    #[schemars(with = "Option<crate::shape::Run>")]
    pub next: Option<RunId>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// What a list says of it.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Which life of the run.
    pub epoch: u32,
    /// Attempts of its step before this one.
    pub attempt: u32,
    /// What it asks of a person now.
    #[schemars(with = "Option<crate::shape::Boundary>")]
    pub boundary: Option<BoundaryId>,
    /// When it ended.
    pub ended_at: Option<Instant>,
    /// What it was started with.
    #[schemars(with = "serde_json::Value")]
    pub input: Payload,
    /// Its state as it is seen from outside.
    #[schemars(with = "serde_json::Value")]
    pub state: Payload,
    /// What its steps say of their progress: the latest value of each name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub progress: BTreeMap<String, Payload>,
    /// Its result.
    #[schemars(with = "serde_json::Value")]
    pub result: Option<Payload>,
    /// What went wrong last.
    pub last_error: Option<Error>,
    /// How many inputs contradicted its facts.
    pub anomalies: usize,
}

/// A run whole, as its journal folds to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// The record, in the published format of the journal: what a `compacted` fact holds.
    #[schemars(with = "serde_json::Value")]
    pub record: abide_kernel::Run,
}

/// What went wrong in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// A stable word for the kind of error.
    pub code: String,
    /// What happened, for a person.
    pub message: String,
    /// Whether trying again may help.
    pub retryable: bool,
    /// Anything more the author kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub details: Option<Payload>,
}

impl From<Error> for ErrorInfo {
    fn from(error: Error) -> Self {
        let Error { code, message, retryable, details } = error;
        Self { code: code.into(), message: message.into(), retryable, details }
    }
}

impl From<&ErrorInfo> for Error {
    fn from(info: &ErrorInfo) -> Self {
        Self {
            code: info.code.to_string(),
            message: info.message.to_string(),
            retryable: info.retryable,
            details: info.details.clone(),
        }
    }
}

/// Why a run does not move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The stable word for the reason.
    pub reason: String,
    /// One sentence with the chain of causes.
    pub sentence: String,
    /// What it was read from.
    pub evidence: BTreeMap<String, String>,
    /// What can be done about it.
    pub next_actions: Vec<String>,
}

/// The state of a run at a revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The revision.
    pub rev: u64,
    /// Where it stood then.
    #[schemars(with = "crate::shape::Standing")]
    pub status: Status,
    /// Its state as it was seen from outside.
    #[schemars(with = "serde_json::Value")]
    pub state: Payload,
}

/// A run that is to end.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Whether its open children end too.
    #[serde(default)]
    pub cascade: bool,
}
