//! `abide token …`: who may ask a server, and for what.

mod create;
mod list;
mod revoke;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Who may ask a server, and for what: create, list, revoke.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token; its secret is shown this once.
    Create(create::Create),
    /// List tokens, without their secrets.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// End a token.
    Revoke(revoke::Revoke),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::Create(create) => create.perform(globals),
            Verb::List(list) => list.perform(globals),
            Verb::Revoke(revoke) => revoke.perform(globals),
        }
    }
}
