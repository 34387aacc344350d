//! `abide audit …`: who changed what.

mod list;
mod prune;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Who changed what over HTTP: list, prune.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List who changed what, newest first.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Remove what is old.
    Prune(prune::Prune),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Prune(prune) => prune.perform(globals),
        }
    }
}
