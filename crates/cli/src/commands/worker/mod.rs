//! `abide worker …`: those who execute attempts for a server.

mod list;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Workers of a server: list.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List workers that were here lately.
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
