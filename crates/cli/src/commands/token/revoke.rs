//! `abide token revoke`: a token ends.

use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// End a token.
#[derive(Debug, Args)]
#[command(after_help = "\
Servers take notice within five seconds. While a server holds a store in a file, ask that one with --url.

Examples:
  abide token revoke 0193f2c4a1b20000")]
pub(crate) struct Revoke {
    /// The token's id, as abide token list shows it
    token: String,
}

impl Revoke {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let id = self.token;
        if !source.revoke_token(&id)? {
            let what = format!("there is no token {id:?} in {}", source.whole());
            return Err(Failure::new(Exit::NotFound, "not_found", what).hint("abide token list shows the ids"));
        }
        if screen.is_text() {
            screen.remark(&format!("{id} is nobody's now"));
        } else {
            screen.document(&json!({"token": id, "revoked": true}))?;
        }
        Ok(Exit::Ok)
    }
}
