//! `abide user remove`: somebody cannot log in any more.

use abide_server::USER;
use clap::Args;
use serde_json::json;

use super::{log_out, missing};
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::Screen;

/// Remove a user, whose sessions end.
#[derive(Debug, Args)]
#[command(after_help = "\
Servers take notice within five seconds. While a server holds a store in a file, ask that one: DELETE /v1/users/NAME.

Examples:
  abide user remove bob")]
pub(crate) struct Remove {
    /// The name
    name: String,
}

impl Remove {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place, name) = (Screen::new(globals), Place::of(globals)?, self.name);
        let found = place.change(async |owner| {
            tokio::task::block_in_place(|| {
                let found = owner.engine.forget(USER, &name)?;
                log_out(&owner.engine, &name)?;
                Ok(found)
            })
        })?;
        if !found {
            return Err(missing(&place, &name));
        }
        if screen.is_text() {
            screen.remark(&format!("{name} is nobody now"));
        } else {
            screen.document(&json!({"name": name, "removed": true}))?;
        }
        Ok(Exit::Ok)
    }
}
