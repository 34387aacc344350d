//! `abide approval list`: approvals that wait for somebody.

use abide_kernel::ManualKind;
use clap::Args;

use crate::commands::people::Listing;
use crate::failure::Outcome;
use crate::options::Globals;

/// List approvals that wait for somebody.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide approval list --role finance
  abide approval list --run run_0193f2c4a1b2         those of one run, also when they are over
  abide -o jsonl approval list | jq -r .boundary")]
pub(crate) struct List {
    #[command(flatten)]
    listing: Listing,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        self.listing.perform(globals, ManualKind::Approval)
    }
}
