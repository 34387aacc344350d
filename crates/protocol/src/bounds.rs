//! Limits: what a server takes at most, so that clients need not find out by being refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a server takes at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bounds {
    /// Bytes of a body.
    pub body_bytes_max: u64,
    /// Lists and objects of a body in each other.
    pub json_depth_max: u64,
    /// Bytes of a payload: an input, a state, a result, a signal.
    pub payload_bytes_max: u64,
    /// Bytes of a name.
    pub name_bytes_max: u64,
    /// Bytes of a key.
    pub key_bytes_max: u64,
    /// How long a request may wait for something to happen, in milliseconds.
    pub wait_ms_max: u64,
    /// Runs on a page.
    pub page_max: u64,
    /// Rows of a journal in one answer.
    pub rows_max: u64,
    /// Runs that are started together.
    pub batch_starts_max: u64,
    /// Attempts that a worker may ask for at once.
    pub claims_max: u64,
    /// Reports in one request.
    pub reports_max: u64,
    /// Entries of the ledger in one report.
    pub entries_max: u64,
    /// Bytes of a value of progress.
    pub progress_bytes_max: u64,
    /// Names of progress in a step.
    pub progress_names_max: u64,
    /// Connections at once.
    pub connections_max: u64,
    /// Requests of one token in a second; as many more may come at once.
    pub requests_per_second_max: u64,
}
