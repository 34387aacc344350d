//! `abide user password`: another password for somebody.

use abide_server::with_password;
use clap::Args;
use serde_json::json;

use super::{find, log_out, missing};
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::password::PasswordFrom;
use crate::place::Place;
use crate::screen::Screen;

/// Give a user another password.
#[derive(Debug, Args)]
#[command(after_help = "\
Sessions that were begun with the old one end; servers take notice within five seconds. While a server holds a store in a
file, ask that one: PUT /v1/users/NAME/password.

Examples:
  abide user password ada
  pass show abide/ada | abide user password ada --password-file -")]
pub(crate) struct Password {
    /// The name
    name: String,
    #[command(flatten)]
    password: PasswordFrom,
}

impl Password {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place, name) = (Screen::new(globals), Place::of(globals)?, self.name);
        let password = self.password.read(&name)?;
        let found = place.change(async |owner| {
            tokio::task::block_in_place(|| {
                let Some(kept) = find(&owner.engine, &name)? else { return Ok(false) };
                let changed = with_password(&kept, &password)??;
                owner.engine.keep(&[changed])?;
                log_out(&owner.engine, &name)?;
                Ok(true)
            })
        })?;
        if !found {
            return Err(missing(&place, &name));
        }
        if screen.is_text() {
            screen.remark(&format!("{name} has another password"));
        } else {
            screen.document(&json!({"name": name, "changed": true}))?;
        }
        Ok(Exit::Ok)
    }
}
