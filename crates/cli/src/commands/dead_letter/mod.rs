//! `abide dead-letter …`: attempts and messages that could not be processed, set aside whole for a person.

mod discard;
mod list;
mod requeue;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::{AsJson, Globals};

/// Attempts and messages that were set aside: list, requeue, discard.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) json: AsJson,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what was set aside, and why.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Put a run's dead letter back in line.
    Requeue(requeue::Requeue),
    /// Give a run up whose attempt is a dead letter: it ends as failed.
    Discard(discard::Discard),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Requeue(requeue) => requeue.perform(globals),
            Verb::Discard(discard) => discard.perform(globals),
        }
    }
}
