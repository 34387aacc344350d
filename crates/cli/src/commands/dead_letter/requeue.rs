//! `abide dead-letter requeue`: a dead letter is put back in line: an attempt whose deliveries count anew, or a message.

use abide_kernel::shard::{Command, Settling};
use clap::Args;
use serde_json::json;

use super::Which;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Put a dead letter back in line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide dead-letter requeue run_0193f2c4a1b2
  abide dead-letter requeue letter_17")]
pub(crate) struct Requeue {
    /// What was set aside: the id of a run or the beginning of it, or of a message as `list` shows it
    id: String,
}

impl Requeue {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let (said, written) = match Which::of(source.as_mut(), &self.id)? {
            Which::Attempt(run) => {
                source.tell(run, Command::Requeue { run })?;
                (format!("{run} is back in line"), json!({"run": run, "requeued": true}))
            }
            Which::Message(letter) => {
                source.settle(letter, Settling::Requeue)?;
                (format!("{letter} is back in line"), json!({"letter": letter, "requeued": true}))
            }
        };
        if screen.is_text() {
            screen.remark(&said);
        } else {
            screen.document(&written)?;
        }
        Ok(Exit::Ok)
    }
}
