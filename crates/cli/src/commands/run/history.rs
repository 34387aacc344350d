//! `abide run history`: what happened to a run, row by row, in words or as the facts themselves.

use abide_kernel::{Fact, Payload, Row, Run};
use clap::Args;
use serde::Serialize;

use super::facts::words;
use crate::failure::{Exit, Failure, Outcome};
use crate::options::{Globals, TimeStyle};
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::{iso, span};

/// Tell what happened to a run, fact by fact.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run history run_0193f2c4a1b2
  abide run history run_0193f2c4a1b2 --from 7 --time iso
  abide -o jsonl run history run_0193f2c4a1b2 | jq .facts")]
pub(crate) struct History {
    /// The run: its id or the beginning of it
    id: String,
    /// Only from this revision on
    #[arg(long, default_value_t = 1, value_name = "REV")]
    from: u64,
}

/// A row for programs: as it was written, and in words.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    pub(super) rev: u64,
    pub(super) at: String,
    position: u64,
    facts: &'a [Fact],
    pub(super) words: String,
}

impl History {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let id = source.find(&self.id)?;
        let rows = source.journal(id)?;
        let mut teller = Teller::default();
        let mut told: Vec<Told<'_>> = rows.iter().map(|row| teller.tell(row)).collect::<Result<_, _>>()?;
        told.retain(|told| told.rev >= self.from);
        if !screen.is_text() {
            screen.documents("rows", &told)?;
            return Ok(Exit::Ok);
        }
        let iso_wanted = globals.time == Some(TimeStyle::Iso) || !screen.is_terminal();
        let began = rows.first().map_or(screen.now(), |row| row.at);
        let shown = rows.iter().filter(|row| row.rev.0 >= self.from).zip(told);
        let lines = shown.map(|(row, told)| {
            // In a story, when since the beginning says more than how long ago.
            let when = if iso_wanted { told.at } else { format!("+{}", span(row.at.since(began))) };
            vec![
                Cell::toned(told.rev.to_string(), Tone::Faint),
                Cell::toned(when, Tone::Faint),
                Cell::toned(told.words, tone_of(row)),
            ]
        });
        screen.table(&["REV", "WHEN", "WHAT"], lines.collect())?;
        Ok(Exit::Ok)
    }
}

/// Tells rows in words. The run is folded along, because a row names only what changes.
#[derive(Default)]
pub(super) struct Teller {
    run: Option<Run>,
}

impl Teller {
    pub(super) fn tell<'a>(&mut self, row: &'a Row) -> Result<Told<'a>, Failure> {
        let before = self.run.take().filter(|_| !row.begins());
        let words = words(before.as_ref(), row);
        self.run = Some(match before {
            Some(mut run) => {
                run.apply_row(row);
                run
            }
            None => Run::begin(row).map_err(|bad| Failure::new(Exit::Failure, "corrupt", bad.to_string()))?,
        });
        Ok(Told { rev: row.rev.0, at: iso(row.at), position: row.seq.0, facts: &row.facts, words })
    }
}

/// The tone of a row.
pub(super) fn tone_of(row: &Row) -> Tone {
    if row.facts.iter().any(is_trouble) { Tone::Bad } else { Tone::Plain }
}

fn is_trouble(fact: &Fact) -> bool {
    match fact {
        Fact::Failed(_) | Fact::Expired(_) | Fact::DeadLettered(_) | Fact::Anomaly(_) => true,
        Fact::Ended(ended) => ended.status != abide_kernel::Status::Done,
        _ => false,
    }
}

/// A payload in a story: enough to recognise it.
pub(super) fn brief(payload: &Payload) -> String {
    crate::text::cut(payload.text(), 80).into_owned()
}
