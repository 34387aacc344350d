//! `abide node list`: who shares the store, until when each is believed to live, and what it serves.

use abide_kernel::Timestamp;
use abide_store::{Living, Membership};
use clap::Args;
use serde_json::{Value, json};

use super::{membership, shards};
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
use crate::text::{iso, span};

/// List nodes: who lives, until when, and what they serve.
#[derive(Debug, Args)]
#[command(after_help = "\
Whoever said nothing until its lease ended, by the database's clock, is gone: others take over what it served. It is
listed for another day.

Examples:
  abide --store postgres://abide@db/shop node list
  abide node list --json | jq '.nodes[] | select(.living) | .node'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let seen = membership(&Place::of(globals)?)?;
        let all = || seen.living.iter().chain(&seen.gone);
        if !screen.is_text() {
            let nodes: Vec<Value> = all().map(|node| written(&seen, node)).collect();
            screen.documents("nodes", &nodes)?;
            return Ok(Exit::Ok);
        }
        let rows: Vec<Vec<Cell>> = all().map(|node| row(&seen, node)).collect();
        if rows.is_empty() {
            screen.remark("no node shares this store now");
        }
        screen.table(&["NODE", "PROCESS", "ADDRESS", "STATE", "SHARDS", "LEASE LEFT"], rows)?;
        let free = seen.shards.iter().filter(|owned| seen.is_free(owned.shard)).count();
        if free > 0 {
            screen.remark(&format!("{free} of {} shards are served by nobody", seen.shards.len()));
        }
        Ok(Exit::Ok)
    }
}

fn row(seen: &Membership, node: &Living) -> Vec<Cell> {
    let member = &node.member;
    let lives = node.until > seen.now;
    let (state, tone) = match (lives, member.draining) {
        (true, false) => ("serving", Tone::Good),
        (true, true) => ("draining", Tone::Waiting),
        (false, _) => ("gone", Tone::Bad),
    };
    let left = if lives { span(left(seen.now, node.until)) } else { "-".into() };
    vec![
        Cell::toned(&*member.node, Tone::Strong),
        Cell::new(&*member.process),
        Cell::new(&*member.address),
        Cell::toned(state, tone),
        Cell::new(shards(seen, &member.process).len().to_string()),
        Cell::toned(left, Tone::Faint),
    ]
}

fn written(seen: &Membership, node: &Living) -> Value {
    let member = &node.member;
    json!({
        "node": &*member.node, "process": &*member.process, "address": &*member.address,
        "draining": member.draining, "living": node.until > seen.now,
        "shards": shards(seen, &member.process), "lease_until": iso(node.until),
        "lease_left_ms": left(seen.now, node.until),
    })
}

/// Milliseconds from one instant to another; none after it.
fn left(now: Timestamp, until: Timestamp) -> u64 {
    until.since(now)
}
