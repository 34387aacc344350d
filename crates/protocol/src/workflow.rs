//! Workflows that a server can execute.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A version of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Workflow {
    /// Its name.
    pub workflow: String,
    /// Its version.
    pub version: u32,
    /// The fingerprint of its definition.
    pub fingerprint: String,
    /// The step it begins with.
    pub first_step: String,
}

/// What the node that was asked can execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Workflows {
    /// The workflows.
    pub workflows: Vec<Workflow>,
}
