//! `abide user …`: people who log in to a server with a name and a password.

mod add;
mod list;
mod password;
mod remove;

use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::source::Source;

/// People who log in to a server: add, list, remove, password.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a user, who can log in.
    Add(add::Add),
    /// List users, without their passwords.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Remove a user, whose sessions end.
    Remove(remove::Remove),
    /// Give a user another password.
    Password(password::Password),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::Add(add) => add.perform(globals),
            Verb::List(list) => list.perform(globals),
            Verb::Remove(remove) => remove.perform(globals),
            Verb::Password(password) => password.perform(globals),
        }
    }
}

fn missing(source: &dyn Source, name: &str) -> Failure {
    let what = format!("there is no user {name:?} in {}", source.whole());
    Failure::new(Exit::NotFound, "not_found", what).hint("abide user list shows them")
}
