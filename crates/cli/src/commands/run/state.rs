//! `abide run state`: what a run shows of itself, now or as it was.

use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;
use crate::text::safe_json;

/// Print what a run shows of itself, now or at a revision.
#[derive(Debug, Args)]
#[command(after_help = "\
That is what a function said with set_state, or else what the next step is given. It is read, and the run does not wake: this is
what other engines call a query. With -o json its revision and status stand beside it.

Examples:
  abide run state run_0193f2c4a1b2 | jq .done
  abide run state run_0193f2c4a1b2 --rev 7")]
pub(crate) struct State {
    /// The run: its id or the beginning of it
    id: String,
    /// As it was at this revision; abide run history has them
    #[arg(long, value_name = "N")]
    rev: Option<u64>,
}

impl State {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let id = source.find(&self.id)?;
        let state = source.state(id, self.rev)?;
        if screen.is_text() {
            screen.line(&safe_json(state.state.text()))?;
        } else {
            screen.document(&state)?;
        }
        Ok(Exit::Ok)
    }
}
