//! The audit: who changed what, when, and what they were answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// A page of changes, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// The changes.
    pub changes: Vec<Change>,
    /// Give it as `before` for the next page; absent at the end.
    pub next: Option<String>,
}

/// Something that was asked to be changed. It has no payload and no secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Its id: later ones have larger ids.
    pub id: String,
    /// When it was answered.
    pub at: Instant,
    /// The id of the token; absent where nobody needs one.
    pub token: Option<String>,
    /// The name that the token was given.
    pub name: String,
    /// What was asked: the operation's id.
    pub operation: String,
    /// Of what: the path.
    pub target: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The code of the problem, if there was one.
    pub code: Option<String>,
}
