//! Nodes, what they can execute, and whether this one is well.

use std::sync::LazyLock;

use abide_protocol::{Health, Instant, Node, Nodes, Problem, Ready, Workflow, Workflows, openapi as document};
use abide_store::{Living, Membership};

use crate::answer::{Answered, json, text};
use crate::call::Call;

pub(crate) fn workflows(call: &Call) -> Answered {
    let workflows = call.engine.definitions().iter().map(|definition| Workflow {
        workflow: definition.workflow.to_string(),
        version: definition.version,
        fingerprint: definition.fingerprint.to_string(),
        first_step: definition.first_step.to_string(),
    });
    json(&Workflows { workflows: workflows.collect() })
}

pub(crate) async fn list(call: Call) -> Answered {
    let nodes = match call.blocking(|engine| engine.membership()).await?? {
        Some(seen) => seen.living.iter().chain(&seen.gone).map(|living| node(&seen, living)).collect(),
        // Of a store for one process at a time this is the one.
        None => vec![Node {
            node: call.engine.process().to_string(),
            process: call.engine.process().to_string(),
            address: String::new(),
            draining: false,
            living: true,
            lease_until: None,
            shards: Vec::new(),
        }],
    };
    json(&Nodes { nodes })
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
        shards: owned.map(|owned| owned.shard.0).collect(),
    }
}

pub(crate) fn health() -> Answered {
    json(&Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

pub(crate) fn ready(call: &Call) -> Answered {
    if call.engine.is_open() && !*call.stopping.borrow() {
        return json(&Ready { status: "ready".into() });
    }
    Err(Problem::new("closed", "the server stops, or its store cannot be used").into())
}

pub(crate) fn openapi() -> Answered {
    // Anybody may ask for it, so that it is made once.
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document::document().to_string());
    Ok(text("application/json", DOCUMENT.clone()))
}
