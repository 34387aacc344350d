//! `abide limit …`: what a server takes at most.

mod list;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// What a server takes at most: list.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what a server takes at most.
    #[command(visible_alias = "ls")]
    List(list::List),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
        }
    }
}
