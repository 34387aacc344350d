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
    /// The shards it serves.
    pub shards: Vec<u16>,
}

/// The nodes that share the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nodes {
    /// The nodes.
    pub nodes: Vec<Node>,
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
