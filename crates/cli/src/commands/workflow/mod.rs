//! `abide workflow …`: what can be executed.

mod list;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Workflows that somebody can execute for a server: list.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what can be executed, and by how many.
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
