//! `abide dead-letter discard`: a run is given up whose attempt is a dead letter.

use abide_kernel::shard::Command;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::Screen;

/// Give a run up whose attempt is a dead letter: it ends as failed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide dead-letter discard run_0193f2c4a1b2")]
pub(crate) struct Discard {
    /// The run: its id or the beginning of it
    id: String,
}

impl Discard {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let run = place.find_to_change(&self.id)?;
        place.change(async |owner| owner.tell(run, Command::Discard { run }).await)?;
        if screen.is_text() {
            screen.remark(&format!("{run} has ended as failed"));
        } else {
            screen.document(&json!({"run": run, "discarded": true}))?;
        }
        Ok(Exit::Ok)
    }
}
