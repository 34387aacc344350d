//! `abide effect …`: the ledger of outside work: what took place, what did not, and what nobody knows.

mod list;
mod resolve;
mod show;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Outside work of runs: list, show, resolve what is in doubt.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the effects of a run, or all effects in doubt.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Show one effect.
    Show(show::Show),
    /// Say what became of an effect that is in doubt.
    Resolve(resolve::Resolve),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Show(show) => show.perform(globals),
            Verb::Resolve(resolve) => resolve.perform(globals),
        }
    }
}
