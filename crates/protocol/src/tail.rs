//! Tails: what becomes true, told as it does, as events of a stream (`text/event-stream`).

use abide_kernel::{RunId, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// Something became true of a run of a namespace: what a row of its journal is about, without its payloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Happened {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Its workflow.
    pub workflow: String,
    /// Its revision since then: the journal has the row under it.
    pub rev: u64,
    /// When.
    pub at: Instant,
    /// The kinds of facts, in order.
    pub facts: Vec<String>,
    /// How the run ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Standing>")]
    pub status: Option<Status>,
}

/// The stream goes on from here, and something before it may be missing: what is shown is to be read anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reset {
    /// The stable word for the reason.
    pub reason: ResetReason,
}

/// Why a stream cannot go on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResetReason {
    /// What came after the place that was named is not kept any more.
    Gone,
    /// The reader was slower than what happened.
    Lagged,
    /// The rows after the place that was named are not in the journal any more: the run up to there is in one piece.
    Compacted,
}

/// The stream has begun: whatever happens from here on is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Following {}
