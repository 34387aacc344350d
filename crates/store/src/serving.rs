//! What the holder of a store says of itself to those who only read it.

use abide_kernel::Str;
use abide_kernel::transition::claim::Definition;
use serde::{Deserialize, Serialize};

/// What an engine can execute: a hint for inspection from outside, never the truth about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// The queues it serves.
    pub queues: Vec<Str>,
    /// The definitions it has.
    pub definitions: Vec<Definition>,
}
