//! `abide queue pause`: nothing of a queue begins until it is resumed.

use clap::Args;

use super::change;
use crate::failure::Outcome;
use crate::options::Globals;
use crate::source::QueueChange;

/// Let nothing of a queue begin.
#[derive(Debug, Args)]
#[command(after_help = "\
What executes goes on to its end. The queue of one namespace is meant: default unless -n says otherwise.

Examples:
  abide queue pause mail
  abide -n shop queue pause mail")]
pub(crate) struct Pause {
    /// The queue
    queue: String,
}

impl Pause {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        change(globals, &self.queue, QueueChange::Pause)
    }
}
