//! `abide token list`: tokens, without their secrets.

use abide_protocol::Token;
use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List tokens, without their secrets.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide token list
  abide token list --json | jq '.tokens[] | select(.name == \"ada\")'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let tokens = source.tokens()?;
        if !screen.is_text() {
            screen.documents("tokens", &tokens)?;
            return Ok(Exit::Ok);
        }
        if tokens.is_empty() {
            screen.remark("the store has no token; abide token create makes one");
        }
        let rows = tokens.iter().map(|token| row(&screen, token)).collect();
        screen.table(&["TOKEN", "NAME", "SCOPES", "NAMESPACES", "CREATED", "ENDS"], rows)?;
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, token: &Token) -> Vec<Cell> {
    let scopes: Vec<String> = token.scopes.iter().map(ToString::to_string).collect();
    let ends = token.expires_at.map_or_else(|| "never".into(), |at| screen.time(at.0));
    vec![
        Cell::toned(&token.token, Tone::Strong),
        Cell::new(&token.name),
        Cell::new(scopes.join(",")),
        Cell::new(token.namespaces.join(",")),
        Cell::toned(screen.time(token.created_at.0), Tone::Faint),
        Cell::toned(ends, Tone::Faint),
    ]
}
