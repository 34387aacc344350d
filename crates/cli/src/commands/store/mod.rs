//! `abide store …`: the store itself.

mod check;
mod migrate;
mod stats;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::{AsJson, Globals};

/// The store itself: check, stats, migrate.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) json: AsJson,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read everything and hold it against itself; exit 1 if something is wrong.
    Check(check::Check),
    /// Sizes and counts.
    Stats(stats::Stats),
    /// Bring a store of an earlier release to this release's format.
    Migrate(migrate::Migrate),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::Check(check) => check.perform(globals),
            Verb::Stats(stats) => stats.perform(globals),
            Verb::Migrate(migrate) => migrate.perform(globals),
        }
    }
}
