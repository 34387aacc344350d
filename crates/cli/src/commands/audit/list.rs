//! `abide audit list`: who changed what, and what they were answered.

use abide_protocol::Change;
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List who changed what, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide audit list
  abide --url https://abide.shop.example audit list --limit 200
  abide audit list -o jsonl --limit 1000 | jq -c 'select(.name == \"ada\")'")]
pub(crate) struct List {
    /// Only changes older than this one, by its id
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let audit = source.audit(self.before.as_deref(), self.limit as usize)?;
        if !screen.is_text() {
            screen.documents("changes", &audit.changes)?;
            return Ok(Exit::Ok);
        }
        let rows = audit.changes.iter().map(|change| row(&screen, change)).collect();
        screen.table(&["AT", "NAME", "OPERATION", "TARGET", "STATUS", "CODE"], rows)?;
        match &audit.next {
            _ if audit.changes.is_empty() => screen.remark("nothing was changed over HTTP"),
            Some(next) => screen.remark(&format!("more with --before {next}")),
            None => {}
        }
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, change: &Change) -> Vec<Cell> {
    vec![
        Cell::toned(screen.time(change.at.0), Tone::Faint),
        Cell::toned(&change.name, Tone::Strong),
        Cell::new(&change.operation),
        Cell::new(&change.target),
        Cell::new(change.status.to_string()),
        Cell::new(change.code.as_deref().unwrap_or("-")),
    ]
}
