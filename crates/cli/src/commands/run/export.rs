//! `abide run export`: a run's journal for another day, one row a line, as `abide::testing::Journals` reads it.

use abide::testing::write_journal;
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;
use crate::text::safe_json;

/// Write a run's journal as JSON lines, to be replayed on other code.
#[derive(Debug, Args)]
#[command(after_help = "\
The lines hold what the run was given and what its effects returned. Keep them beside your tests; `abide check` looks
whether they are whole, and abide::testing::Journals in your own tests whether today's code fits them.

Examples:
  abide run export run_0193f2c4a1b2 > tests/journals/order.jsonl")]
pub(crate) struct Export {
    /// The run: its id or the beginning of it
    id: String,
}

impl Export {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = source.find(&self.id)?;
        let rows = source.journal(run)?;
        for line in write_journal(&rows).lines() {
            screen.line(&safe_json(line))?;
        }
        Ok(Exit::Ok)
    }
}
