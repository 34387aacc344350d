//! `abide token create`: a token, whose secret is shown once and kept nowhere.

use std::time::Duration;

use abide_protocol::{CreateToken, Role, Scope};
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::input::duration;
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Make a token; its secret is shown this once.
#[derive(Debug, Args)]
#[command(after_help = "\
Scopes: read, start, signal, operate, worker:<queue>, and admin, which covers all. Roles: admin; operator (read, start, signal,
operate); worker (worker:*); reader (read).

A store in a file is owned for a moment; while a server holds it, ask that one with --url.

Examples:
  abide token create --name ada --scope admin --in '*'
  abide token create --name ci --role operator --in shop
  abide token create --name shop --scope read --scope start --in shop --expires 90d")]
pub(crate) struct Create {
    /// Whose it is: decisions are made under this name
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What it allows; give it again for another
    #[arg(long = "scope", required_unless_present = "role", value_name = "SCOPE")]
    scopes: Vec<Scope>,
    /// What it allows, by a role: admin, operator, worker or reader
    #[arg(long)]
    role: Option<Role>,
    /// The namespace in which it does, or * for all; give it again for another
    #[arg(long = "in", required = true, value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// After so long it ends; without it, never
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires: Option<Duration>,
}

impl Create {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let expires_in_ms = self.expires.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let mut scopes = self.scopes;
        scopes.extend(self.role.map(Role::scopes).unwrap_or_default());
        let asked = CreateToken { name: self.name, scopes, namespaces: self.namespaces, expires_in_ms };
        let created = source.create_token(asked, screen.now())?;
        if screen.is_text() {
            screen.line(&created.secret)?;
            screen.remark("keep it: it is shown this once, and the store has only its hash");
        } else {
            screen.document(&created)?;
        }
        Ok(Exit::Ok)
    }
}
