//! `abide queue resume`: a queue that was paused goes on.

use clap::Args;

use super::change;
use crate::failure::Outcome;
use crate::options::Globals;
use crate::source::QueueChange;

/// Let a queue that was paused go on.
#[derive(Debug, Args)]
#[command(after_help = "\
What executes goes on to its end. The queue of one namespace is meant: default unless -n says otherwise.

Examples:
  abide queue resume mail
  abide -n shop queue resume mail")]
pub(crate) struct Resume {
    /// The queue
    queue: String,
}

impl Resume {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        change(globals, &self.queue, QueueChange::Resume)
    }
}
