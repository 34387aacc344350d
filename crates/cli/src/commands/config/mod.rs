//! `abide config …`: what holds for the command line.

mod show;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;
use crate::settings::Settings;

/// What holds for this command line, and who said so: show.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show every setting, and who said so.
    Show(show::Show),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals, settings: &Settings) -> Outcome {
        match self.verb {
            Verb::Show(show) => show.perform(globals, settings),
        }
    }
}
