//! The journal of a run.

use abide_kernel::Facts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// A part of a run's journal, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Journal {
    /// The rows.
    pub rows: Vec<JournalRow>,
    /// Give it as `from` for the next part; absent at the end.
    pub next: Option<u64>,
}

/// What one transition of a run made true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalRow {
    /// The run's revision after it.
    pub rev: u64,
    /// Its position in the log of the run's shard.
    #[serde(default)]
    pub seq: u64,
    /// When.
    pub at: Instant,
    /// The facts, in the published format of the journal.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub facts: Facts,
}
