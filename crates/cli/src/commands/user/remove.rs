//! `abide user remove`: somebody cannot log in any more.

use clap::Args;
use serde_json::json;

use super::missing;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Remove a user, whose sessions end.
#[derive(Debug, Args)]
#[command(after_help = "\
Servers take notice within five seconds. While a server holds a store in a file, ask that one with --url.

Examples:
  abide user remove bob")]
pub(crate) struct Remove {
    /// The name
    name: String,
}

impl Remove {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source, name) = (Screen::new(globals), <dyn Source>::of(globals)?, self.name);
        if !source.remove_user(&name)? {
            return Err(missing(source.as_ref(), &name));
        }
        if screen.is_text() {
            screen.remark(&format!("{name} is nobody now"));
        } else {
            screen.document(&json!({"name": name, "removed": true}))?;
        }
        Ok(Exit::Ok)
    }
}
