//! `abide limit list`: what a server takes at most.

use clap::Args;
use serde_json::{Map, Value};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List what a server takes at most.
#[derive(Debug, Args)]
#[command(after_help = "\
abide serve --help says which of them are for whoever runs it to say.

Examples:
  abide --url http://127.0.0.1:7411 limit list
  abide --profile shop limit list --json | jq .body_bytes_max")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let limits = source.limits()?;
        if !screen.is_text() {
            screen.document(&limits)?;
            return Ok(Exit::Ok);
        }
        let unencodable = |error: serde_json::Error| Failure::new(Exit::Failure, "unencodable", error.to_string());
        let named: Map<String, Value> =
            serde_json::to_value(&limits).and_then(serde_json::from_value).map_err(unencodable)?;
        let row =
            |(name, value): (&String, &Value)| vec![Cell::toned(name, Tone::Strong), Cell::new(value.to_string())];
        screen.table(&["LIMIT", "VALUE"], named.iter().map(row).collect())?;
        Ok(Exit::Ok)
    }
}
