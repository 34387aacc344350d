//! `abide user list`: users, without their passwords.

use abide_protocol::User;
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List users, without their passwords.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide user list
  abide user list --json | jq '.users[] | select(.role == \"admin\")'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let users = source.users()?;
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
