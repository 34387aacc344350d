//! Queues: how much waits in them, and what holds for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// The queues of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queues {
    /// Those in which something waits or executes, or for which something holds, by name.
    pub queues: Vec<Queue>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// What holds for it.
    #[serde(flatten)]
    pub held: QueueHeld,
    /// Runs with an attempt that waits to be claimed.
    pub depth: u64,
    /// Since when the oldest of them could be claimed.
    pub oldest_at: Option<Instant>,
    /// How long that is, in milliseconds.
    pub oldest_age_ms: Option<u64>,
    /// Runs with an attempt that executes.
    pub running: u64,
}

/// What holds for a queue of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueHeld {
    /// The queue.
    pub queue: String,
    /// Whether nothing of it begins until it is resumed.
    pub paused: bool,
    /// What it may do at most.
    pub limits: QueueLimits,
}

/// What a queue of a namespace may do at most; what is left out has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueLimits {
    /// How many of its attempts may execute at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub at_most: Option<u32>,
    /// How fast they may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<QueueRate>,
}

/// How fast attempts may begin: so many at once, and after that evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueRate {
    /// How many.
    #[schemars(range(min = 1))]
    pub count: u32,
    /// In how many milliseconds.
    #[schemars(range(min = 1))]
    pub per_ms: u64,
}
