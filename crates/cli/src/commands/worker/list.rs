//! `abide worker list`: who executes attempts for a server.

use abide_protocol::{Worker, Workers};
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List workers that were here lately.
#[derive(Debug, Args)]
#[command(after_help = "\
Workers are known to the server that they ask: a store alone does not know them.

Examples:
  abide --url http://127.0.0.1:7411 worker list
  abide --profile shop worker list --json | jq -r '.workers[].worker'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let Workers { workers, silent } = source.workers()?;
        if !silent.is_empty() {
            screen.notice(&format!("these nodes did not say in time who works there: {}", silent.join(", ")));
        }
        if !screen.is_text() {
            screen.documents("workers", &workers)?;
            return Ok(Exit::Ok);
        }
        if workers.is_empty() {
            screen.remark("no worker was here lately");
        }
        let rows = workers.iter().map(|worker| row(&screen, worker)).collect();
        screen.table(&["WORKER", "QUEUES", "WORKFLOWS", "NODE", "SEEN"], rows)?;
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, worker: &Worker) -> Vec<Cell> {
    let workflows: Vec<String> =
        worker.workflows.iter().map(|offered| format!("{} v{}", offered.workflow, offered.version)).collect();
    vec![
        Cell::toned(&worker.worker, Tone::Strong),
        Cell::new(worker.queues.join(",")),
        Cell::new(workflows.join(",")),
        Cell::new(&worker.node),
        Cell::toned(screen.time(worker.seen_at.0), Tone::Faint),
    ]
}
