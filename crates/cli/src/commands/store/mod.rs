//! `abide store …`: the store itself.

mod check;
mod export;
mod import;
mod migrate;
mod stats;

use abide_runtime::house::Contents;
use clap::{Args, Subcommand};

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;

/// The store itself: check, stats, migrate, export, import.
#[derive(Debug, Args)]
pub(crate) struct Command {
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
    /// Write everything the store holds to a file, for another store.
    Export(export::Export),
    /// Fill a new store with what another one held.
    Import(import::Import),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::Check(check) => check.perform(globals),
            Verb::Stats(stats) => stats.perform(globals),
            Verb::Migrate(migrate) => migrate.perform(globals),
            Verb::Export(export) => export.perform(globals),
            Verb::Import(import) => import.perform(globals),
        }
    }
}

/// Says what was carried, and where it is now.
fn told(screen: &Screen, contents: &Contents, are: &str) -> Outcome {
    if screen.is_text() {
        let runs: u64 = contents.runs.values().sum();
        screen.remark(&format!(
            "{runs} runs with {} journal rows, and {} dead letters, {are}; their hash is {}",
            contents.rows, contents.dead_letters, contents.hash
        ));
    } else {
        screen.document(contents)?;
    }
    Ok(Exit::Ok)
}
