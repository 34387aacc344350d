//! Signals to runs.

use abide_kernel::Payload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A named message to a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// Its name.
    pub name: String,
    /// What it says; `null` if absent.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
    /// A key under which the run accepts it once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<String>,
}

/// A signal that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Signalled {
    /// Its number within the run.
    #[serde(default)]
    pub signal: u64,
    /// Whether the run had it before, by the same key or the same request.
    pub duplicate: bool,
}
