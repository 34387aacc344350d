//! `abide store stats`: sizes and counts.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Outcome};
use crate::keeper::Keeper;
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen};

/// Sizes and counts.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide store stats
  abide store stats --json | jq .runs")]
pub(crate) struct Stats {}

impl Stats {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let stats = place.snapshot()?.stats()?;
        let keepers: Vec<String> = place.keepers()?.iter().map(Keeper::shown).collect();
        let held = (!keepers.is_empty()).then(|| keepers.join(", "));
        if !screen.is_text() {
            let runs: Map<String, Value> =
                stats.runs.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
            screen.document(&json!({
                "format": stats.format, "bytes": stats.bytes, "journal_rows": stats.journal_rows,
                "envelopes": stats.envelopes, "runs": runs, "holder": held,
            }))?;
            return Ok(Exit::Ok);
        }
        let mut fields = vec![
            ("store", Cell::new(place.shown())),
            ("held by", Cell::new(held.as_deref().unwrap_or("nobody"))),
            ("format", Cell::new(stats.format.to_string())),
            ("bytes", Cell::new(stats.bytes.to_string())),
            ("journal rows", Cell::new(stats.journal_rows.to_string())),
            ("envelopes", Cell::new(stats.envelopes.to_string())),
        ];
        for (status, count) in &stats.runs {
            fields.push((status.as_str(), Cell::new(count.to_string())));
        }
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}
