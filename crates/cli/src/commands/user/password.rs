//! `abide user password`: another password for somebody.

use clap::Args;
use serde_json::json;

use super::missing;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::password::PasswordFrom;
use crate::screen::Screen;
use crate::source::Source;

/// Give a user another password.
#[derive(Debug, Args)]
#[command(after_help = "\
Sessions that were begun with the old one end; servers take notice within five seconds. While a server holds a store in a
file, ask that one with --url.

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
        let (screen, mut source, name) = (Screen::new(globals), <dyn Source>::of(globals)?, self.name);
        let password = self.password.read(&name)?;
        if !source.change_password(&name, password)? {
            return Err(missing(source.as_ref(), &name));
        }
        if screen.is_text() {
            screen.remark(&format!("{name} has another password"));
        } else {
            screen.document(&json!({"name": name, "changed": true}))?;
        }
        Ok(Exit::Ok)
    }
}
