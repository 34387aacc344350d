//! `abide user …`: people who log in to a server with a name and a password.

mod add;
mod list;
mod password;
mod remove;

use abide_runtime::Engine;
use abide_server::{BadUser, USER, USERS_MAX, sessions_of};
use abide_store::{Fault, Kept};
use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::{AsJson, Globals};
use crate::place::Place;

/// People who log in to a server: add, list, remove, password.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) json: AsJson,
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

/// The user of a name, among those that are kept.
fn find(engine: &Engine, name: &str) -> Result<Option<Kept>, Fault> {
    Ok(engine.kept(USER, None, USERS_MAX)?.into_iter().find(|kept| kept.id == name))
}

/// Ends all sessions of a user. Servers take notice within five seconds.
fn log_out(engine: &Engine, name: &str) -> Result<(), Fault> {
    for id in sessions_of(&engine.tokens()?, name) {
        engine.remove_token(&id)?;
    }
    Ok(())
}

fn missing(place: &Place, name: &str) -> Failure {
    let what = format!("there is no user {name:?} in {}", place.shown());
    Failure::new(Exit::NotFound, "not_found", what).hint("abide user list shows them")
}

impl From<BadUser> for Failure {
    fn from(bad: BadUser) -> Self {
        Self::new(Exit::Failure, "corrupt", bad.to_string())
    }
}
