//! `abide dead-letter discard`: a dead letter is given up: an attempt, whose run ends as failed, or a message.

use abide_kernel::shard::{Command, Settling};
use clap::Args;
use serde_json::json;

use super::Which;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Give up a dead letter: a run whose attempt it is ends as failed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide dead-letter discard run_0193f2c4a1b2
  abide dead-letter discard letter_17")]
pub(crate) struct Discard {
    /// What was set aside: the id of a run or the beginning of it, or of a message as `list` shows it
    id: String,
}

impl Discard {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let (said, written) = match Which::of(source.as_mut(), &self.id)? {
            Which::Attempt(run) => {
                source.tell(run, Command::Discard { run })?;
                (format!("{run} has ended as failed"), json!({"run": run, "discarded": true}))
            }
            Which::Message(letter) => {
                source.settle(letter, Settling::Discard)?;
                (format!("{letter} is given up"), json!({"letter": letter, "discarded": true}))
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
