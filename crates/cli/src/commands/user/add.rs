//! `abide user add`: somebody who can log in.

use abide_protocol::{CreateUser, Role};
use abide_server::enrol;
use clap::Args;

use super::find;
use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::password::PasswordFrom;
use crate::place::Place;
use crate::screen::Screen;

/// Make a user, who can log in.
#[derive(Debug, Args)]
#[command(after_help = "\
Roles: admin may all; operator sees, starts, signals, cancels and decides; worker executes; reader sees.

The store keeps a hash of the password (argon2id). A store in a file is owned for a moment; while a server holds it, ask that
one: POST /v1/users.

Examples:
  abide user add ada --role admin --in '*'
  abide user add bob --role operator --in shop --password-file bob.txt")]
pub(crate) struct Add {
    /// The name: decisions are made under it
    name: String,
    /// What they may do: admin, operator, worker or reader
    #[arg(long)]
    role: Role,
    /// The namespace in which they may, or * for all; give it again for another
    #[arg(long = "in", required = true, value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    #[command(flatten)]
    password: PasswordFrom,
}

impl Add {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let password = self.password.read(&self.name)?;
        let asked = CreateUser { name: self.name, role: self.role, namespaces: self.namespaces, password };
        let (kept, user) = enrol(asked, screen.now())?;
        let is_new = place.change_or_make(async |owner| {
            tokio::task::block_in_place(|| {
                if find(&owner.engine, &kept.id)?.is_some() {
                    return Ok(false);
                }
                owner.engine.keep(std::slice::from_ref(&kept))?;
                Ok(true)
            })
        })?;
        if !is_new {
            let what = format!("there is a user {:?} in {}", user.name, place.shown());
            return Err(Failure::new(Exit::Failure, "user_exists", what)
                .hint("abide user password gives a user another password"));
        }
        if screen.is_text() {
            screen.remark(&format!("{} can log in, as {} in {}", user.name, user.role, user.namespaces.join(", ")));
        } else {
            screen.document(&user)?;
        }
        Ok(Exit::Ok)
    }
}
