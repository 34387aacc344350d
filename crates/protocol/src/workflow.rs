//! Workflows that somebody can execute.

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
    /// Whether the node that was asked executes it itself.
    pub embedded: bool,
    /// How many workers offer it, of all nodes, that were here lately.
    pub workers: usize,
}

/// What can be executed now: by the node that was asked, or by workers that were here lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Workflows {
    /// The workflows.
    pub workflows: Vec<Workflow>,
    /// Nodes that did not say in time who works there.
    #[serde(default)]
    pub silent: Vec<String>,
}
