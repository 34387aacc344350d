//! Nodes, and whether this one is well.

use std::sync::LazyLock;

use abide_protocol::{Health, Instant, Node, Nodes, Problem, Ready, openapi as document};
use abide_store::{Living, Membership};

use crate::answer::{Answered, done, json, text};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> Answered {
    if let Some(seen) = call.blocking(|engine| engine.membership()).await?? {
        return json(&shown_nodes(&seen));
    }
    // Of a store for one process at a time this is the one.
    let only = Node {
        node: call.engine.process().to_string(),
        process: call.engine.process().to_string(),
        address: String::new(),
        draining: false,
        living: true,
        lease_until: None,
        lease_left_ms: None,
        shards: Vec::new(),
    };
    json(&Nodes { nodes: vec![only], shards: 0, unserved: 0 })
}

/// Asks a node to hand over what it serves, or to take its share again.
pub(crate) async fn drain(call: Call, draining: bool) -> Answered {
    let process = call.word("process").to_owned();
    let asked = process.clone();
    match call.blocking(move |engine| engine.drain_node(&asked, draining)).await?? {
        true => Ok(done()),
        false => Err(Problem::new("not_found", format!("no process {process:?} shares this store now")).into()),
    }
}

/// Nodes as they are shown.
#[must_use]
pub fn shown_nodes(seen: &Membership) -> Nodes {
    Nodes {
        nodes: seen.living.iter().chain(&seen.gone).map(|living| node(seen, living)).collect(),
        shards: seen.shards.len(),
        unserved: seen.shards.iter().filter(|owned| seen.is_free(owned.shard)).count(),
    }
}

fn node(seen: &Membership, living: &Living) -> Node {
    let member = &living.member;
    let owned = seen.shards.iter().filter(|owned| owned.owner.as_ref() == Some(&member.process));
    Node {
        node: member.node.to_string(),
        process: member.process.to_string(),
        address: member.address.to_string(),
        draining: member.draining,
        living: living.until > seen.now,
        lease_until: Some(Instant(living.until)),
        lease_left_ms: Some(living.until.since(seen.now)),
        shards: owned.map(|owned| owned.shard.0).collect(),
    }
}

pub(crate) fn health() -> Answered {
    json(&Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

pub(crate) fn ready(call: &Call) -> Answered {
    if call.engine.is_ready() && !*call.stopping.borrow() {
        return json(&Ready { status: "ready".into() });
    }
    Err(Problem::new("closed", "the server stops, or its store cannot be used").into())
}

pub(crate) fn openapi() -> Answered {
    // Anybody may ask for it, so that it is made once.
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document::document().to_string());
    Ok(text("application/json", DOCUMENT.clone()))
}
