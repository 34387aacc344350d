//! Nodes, and whether the one that is asked is well.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// A node that shares the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// This life of it.
    pub process: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Whether it takes no shards.
    pub draining: bool,
    /// Whether its lease has not ended.
    pub living: bool,
    /// When its lease ends, by the store's clock; absent where no other can share the store.
    pub lease_until: Option<Instant>,
    /// How long that is from now, in milliseconds; 0 when it has ended.
    #[serde(default)]
    pub lease_left_ms: Option<u64>,
    /// The shards it serves.
    pub shards: Vec<u16>,
}

/// The nodes that share the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nodes {
    /// The nodes: those that live, then those that are gone.
    pub nodes: Vec<Node>,
    /// How many shards the store has; none where no other can share it.
    #[serde(default)]
    pub shards: usize,
    /// How many of them nobody serves.
    #[serde(default)]
    pub unserved: usize,
}

/// The server is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The release.
    pub version: String,
}

/// The server can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ready {
    /// `ready`.
    pub status: String,
}
