//! `abide user add`: somebody who can log in.

use abide_protocol::{CreateUser, Role};
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::password::PasswordFrom;
use crate::screen::Screen;
use crate::source::Source;

/// Make a user, who can log in.
#[derive(Debug, Args)]
#[command(after_help = "\
Roles: admin may all; operator sees, starts, signals, cancels and decides; worker executes; reader sees.

The store keeps a hash of the password (argon2id). A store in a file is owned for a moment; while a server holds it, ask that
one with --url.

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
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let password = self.password.read(&self.name)?;
        let asked = CreateUser { name: self.name, role: self.role, namespaces: self.namespaces, password };
        let user = source.add_user(asked, screen.now())?;
        if screen.is_text() {
            screen.remark(&format!("{} can log in, as {} in {}", user.name, user.role, user.namespaces.join(", ")));
        } else {
            screen.document(&user)?;
        }
        Ok(Exit::Ok)
    }
}
