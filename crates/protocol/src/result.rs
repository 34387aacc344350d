//! What a command came to, and how a run ended.

use abide_kernel::{Payload, Run, RunId, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;

/// How a run ended, or that it has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ending {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Where it stands.
    #[schemars(with = "crate::shape::Standing")]
    pub status: Status,
    /// Whether it has ended; if not, ask again.
    pub ended: bool,
    /// Its result, if it ended well.
    #[schemars(with = "serde_json::Value")]
    pub result: Option<Payload>,
    /// Its error, if it did not.
    pub error: Option<Error>,
}

impl Ending {
    /// Where a run stands.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let status = run.status();
        let error = run.last_error.as_deref().filter(|_| status.is_terminal() && status != Status::Done);
        let result = run.result.clone().filter(|_| status == Status::Done);
        Self { run: run.id, status, ended: status.is_terminal(), result, error: error.map(Error::from) }
    }
}

/// Something was recorded, and is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// The run's revision then.
    pub rev: u64,
    /// Whether it had been recorded before, by the same request.
    pub duplicate: bool,
}
