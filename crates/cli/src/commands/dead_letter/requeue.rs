//! `abide dead-letter requeue`: a dead letter is put back in line, and its deliveries count anew.

use abide_kernel::shard::Command;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::Screen;

/// Put a run's dead letter back in line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide dead-letter requeue run_0193f2c4a1b2")]
pub(crate) struct Requeue {
    /// The run: its id or the beginning of it
    id: String,
}

impl Requeue {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let run = place.find_to_change(&self.id)?;
        place.change(async |owner| owner.tell(run, Command::Requeue { run }).await)?;
        if screen.is_text() {
            screen.remark(&format!("{run} is back in line"));
        } else {
            screen.document(&json!({"run": run, "requeued": true}))?;
        }
        Ok(Exit::Ok)
    }
}
