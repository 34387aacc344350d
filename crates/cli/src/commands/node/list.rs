//! `abide node list`: who shares the store, until when each is believed to live, and what it serves.

use abide_protocol::Node;
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::span;

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
        let seen = <dyn Source>::of(globals)?.nodes()?;
        if !screen.is_text() {
            screen.documents("nodes", &seen.nodes)?;
            return Ok(Exit::Ok);
        }
        if seen.nodes.is_empty() {
            screen.remark("no node shares this store now");
        }
        let heads = ["NODE", "PROCESS", "ADDRESS", "STATE", "SHARDS", "LEASE LEFT"];
        screen.table(&heads, seen.nodes.iter().map(row).collect())?;
        if seen.unserved > 0 {
            screen.remark(&format!("{} of {} shards are served by nobody", seen.unserved, seen.shards));
        }
        Ok(Exit::Ok)
    }
}

fn row(node: &Node) -> Vec<Cell> {
    let (state, tone) = match (node.living, node.draining) {
        (true, false) => ("serving", Tone::Good),
        (true, true) => ("draining", Tone::Waiting),
        (false, _) => ("gone", Tone::Bad),
    };
    let left = node.lease_left_ms.filter(|_| node.living).map_or_else(|| "-".into(), span);
    vec![
        Cell::toned(&node.node, Tone::Strong),
        Cell::new(&node.process),
        Cell::new(&node.address),
        Cell::toned(state, tone),
        Cell::new(node.shards.len().to_string()),
        Cell::toned(left, Tone::Faint),
    ]
}
