//! `abide dead-letter …`: attempts and messages that could not be processed, set aside whole for a person.

mod discard;
mod list;
mod requeue;

use abide_kernel::{LetterId, RunId};
use clap::{Args, Subcommand};

use crate::failure::{Failure, Outcome};
use crate::options::Globals;
use crate::source::Source;

/// Which dead letter is meant.
enum Which {
    /// The attempt of a run.
    Attempt(RunId),
    /// A message between runs.
    Message(LetterId),
}

impl Which {
    /// A message by its whole id, or a run by its id or the beginning of one.
    fn of(source: &mut dyn Source, text: &str) -> Result<Self, Failure> {
        if text.starts_with(LetterId::PREFIX) {
            return Ok(Self::Message(text.parse()?));
        }
        let both = "abide dead-letter list shows both: runs (run_…) and messages (letter_…)";
        source.find(text).map(Self::Attempt).map_err(|failure| failure.hint(both))
    }
}

/// Attempts and messages that were set aside: list, requeue, discard.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what was set aside, and why.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Put a dead letter back in line.
    Requeue(requeue::Requeue),
    /// Give up a dead letter: a run whose attempt it is ends as failed.
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
