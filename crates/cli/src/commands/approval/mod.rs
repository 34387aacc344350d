//! `abide approval …`: yes or no, as runs ask it of people.

mod approve;
mod list;
mod reject;
mod show;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Decisions for people: list, show, approve, reject.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List approvals that wait for somebody.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Show what is to be approved.
    Show(show::Show),
    /// Say yes to what a run asks.
    Approve(approve::Approve),
    /// Say no to what a run asks.
    Reject(reject::Reject),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Show(show) => show.perform(globals),
            Verb::Approve(approve) => approve.perform(globals),
            Verb::Reject(reject) => reject.perform(globals),
        }
    }
}
