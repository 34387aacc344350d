//! `abide task …`: work that runs ask of people.

mod claim;
mod complete;
mod list;
mod release;
mod show;

pub(crate) use show::show_boundary;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Work for people: list, show, claim, release, complete.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List tasks that wait for somebody.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Show what a person is asked, and all that happened to it.
    Show(show::Show),
    /// Take a task, or give it to somebody: nobody else may complete it then.
    Claim(claim::Claim),
    /// Give a task back, for others to take.
    Release(release::Release),
    /// Hand in the result of a task.
    Complete(complete::Complete),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Show(show) => show.perform(globals),
            Verb::Claim(claim) => claim.perform(globals),
            Verb::Release(release) => release.perform(globals),
            Verb::Complete(complete) => complete.perform(globals),
        }
    }
}
