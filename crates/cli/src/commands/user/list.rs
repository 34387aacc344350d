//! `abide user list`: users, without their passwords.

use abide_protocol::User;
use abide_server::{BadUser, USER, USERS_MAX, shown_user};
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};

/// List users, without their passwords.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide user list
  abide user list --json | jq '.users[] | select(.role == \"admin\")'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let kept = place.reader()?.kept(USER, None, USERS_MAX)?;
        let users: Vec<User> = kept.iter().rev().map(shown_user).collect::<Result<_, BadUser>>()?;
        if !screen.is_text() {
            screen.documents("users", &users)?;
            return Ok(Exit::Ok);
        }
        if users.is_empty() {
            screen.remark("the store has no user; abide user add makes one");
        }
        let row = |user: &User| {
            vec![
                Cell::toned(&user.name, Tone::Strong),
                Cell::new(user.role.name()),
                Cell::new(user.namespaces.join(",")),
                Cell::toned(screen.time(user.created_at.0), Tone::Faint),
            ]
        };
        screen.table(&["NAME", "ROLE", "NAMESPACES", "CREATED"], users.iter().map(row).collect())?;
        Ok(Exit::Ok)
    }
}
