//! `abide workflow list`: what can be executed for a server, and by how many.

use abide_protocol::{Workflow, Workflows};
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List what can be executed, and by how many.
#[derive(Debug, Args)]
#[command(after_help = "\
Workers tell the server that they ask what they have: a store alone does not know.

Examples:
  abide --url http://127.0.0.1:7411 workflow list
  abide --profile shop workflow list --json | jq -r '.workflows[] | select(.workers == 0).workflow'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let Workflows { workflows, silent } = source.workflows()?;
        if !silent.is_empty() {
            screen.notice(&format!("these nodes did not say in time who works there: {}", silent.join(", ")));
        }
        if !screen.is_text() {
            screen.documents("workflows", &workflows)?;
            return Ok(Exit::Ok);
        }
        if workflows.is_empty() {
            screen.remark("nobody was here lately who can execute anything");
        }
        let rows = workflows.iter().map(row).collect();
        screen.table(&["WORKFLOW", "FIRST STEP", "FINGERPRINT", "WORKERS", "SERVER"], rows)?;
        Ok(Exit::Ok)
    }
}

fn row(known: &Workflow) -> Vec<Cell> {
    vec![
        Cell::toned(format!("{} v{}", known.workflow, known.version), Tone::Strong),
        Cell::new(&known.first_step),
        Cell::toned(&known.fingerprint, Tone::Faint),
        Cell::new(known.workers.to_string()),
        Cell::new(if known.embedded { "yes" } else { "-" }),
    ]
}
