//! `abide task list`: tasks that wait for somebody.

use abide_kernel::ManualKind;
use clap::Args;

use crate::commands::people::Listing;
use crate::failure::Outcome;
use crate::options::Globals;

/// List tasks that wait for somebody.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide task list --role finance
  abide task list --run run_0193f2c4a1b2         those of one run, also when they are over
  abide -o jsonl task list | jq -r .boundary")]
pub(crate) struct List {
    #[command(flatten)]
    listing: Listing,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        self.listing.perform(globals, ManualKind::Task)
    }
}
