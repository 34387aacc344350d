//! `abide approval show`: what a person is to approve, and what happened to it.

use clap::Args;

use crate::commands::task::show_boundary;
use crate::failure::Outcome;
use crate::options::Globals;

/// Show what is to be approved: for an effect under review its operation, its input and its idempotency key.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide approval show manual_0193f2c4a1b2.1
  abide -o json approval show manual_0193f2c4a1b2.1 | jq .payload.input")]
pub(crate) struct Show {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
}

impl Show {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        show_boundary(globals, &self.id)
    }
}
