//! Dead letters: messages between runs that could not be processed. Attempts that were set aside are runs.

use abide_kernel::LetterId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// A message that was set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Letter {
    /// Its id.
    #[schemars(with = "crate::shape::Letter")]
    pub letter: LetterId,
    /// When it was set aside.
    pub at: Instant,
    /// The node that gave up.
    pub node: String,
    /// Why.
    pub reason: String,
    /// The message, whole.
    pub message: serde_json::Value,
}

/// Messages that were set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Letters {
    /// The messages.
    pub letters: Vec<Letter>,
}
