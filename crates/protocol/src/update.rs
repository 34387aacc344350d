//! Updates: what a run is asked to do, and answers.

use abide_kernel::{Payload, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that a run is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// Its name.
    pub name: String,
    /// The input; `null` if absent.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub input: Payload,
    /// A key under which the run is asked once: whoever asks again with it gets the first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<String>,
    /// How long to wait for the answer, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What came of it so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Updated {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Its number within the run.
    #[serde(default)]
    pub update: u64,
    /// Whether the run has answered. If not, it is asked and durable: ask again with the same key for the answer.
    pub answered: bool,
    /// Whether it had been asked before, under the same key or by the same request.
    #[serde(default)]
    pub duplicate: bool,
    /// What it answered.
    #[schemars(with = "serde_json::Value")]
    pub answer: Option<Payload>,
}
