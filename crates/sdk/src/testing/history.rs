//! Golden histories: a journal as text, without what differs by chance.

use std::collections::HashMap;
use std::fmt::Write as _;

use abide_kernel::{Fact, Row, RunId, Timestamp};
use serde_json::Value;

/// Fields whose values differ from process to process, or say nothing about the run.
const CHANCE: [&str; 6] = ["token", "process", "request", "fingerprint", "owner", "lease_ms"];

/// Instants of tests lie within this many milliseconds after the beginning; other numbers do not.
const SPAN_MS: u64 = 500 * 365 * 24 * 3_600_000;

/// Names for runs, in the order a test met them.
#[derive(Default)]
pub(super) struct Aliases {
    names: HashMap<String, String>,
}

impl Aliases {
    pub(super) fn of(&mut self, run: RunId) -> String {
        self.name(&run.to_string())
    }

    fn name(&mut self, run: &str) -> String {
        let next = self.names.len() + 1;
        self.names.entry(run.to_owned()).or_insert_with(|| format!("run-{next}")).clone()
    }
}

/// One line for each row: its revision, when since the beginning, and its facts.
pub(super) fn tell(rows: &[Row], beginning: Timestamp, aliases: &mut Aliases) -> String {
    let mut telling = Telling { beginning, aliases };
    let mut text = String::new();
    for row in rows {
        let facts: Vec<String> = row.facts.iter().map(|fact| telling.fact(fact)).collect();
        let _ = writeln!(text, "{} {} {}", row.rev.0, telling.since(row.at), facts.join("; "));
    }
    text
}

struct Telling<'a> {
    beginning: Timestamp,
    aliases: &'a mut Aliases,
}

impl Telling<'_> {
    fn fact(&mut self, fact: &Fact) -> String {
        let mut value = serde_json::to_value(fact).unwrap_or(Value::Null);
        // Other crates of a build can make it keep the order in which fields were written.
        value.sort_all_objects();
        let Value::Object(mut fields) = value else {
            return fact.kind().to_owned();
        };
        let Some(mut body) = fields.remove(fact.kind()) else {
            return fact.kind().to_owned();
        };
        self.alias(&mut body);
        match body.as_object().is_some_and(serde_json::Map::is_empty) {
            true => fact.kind().to_owned(),
            false => format!("{} {body}", fact.kind()),
        }
    }

    fn alias(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !CHANCE.contains(&name.as_str()));
                fields.values_mut().for_each(|field| self.alias(field));
                fields.retain(|_, field| !field.as_object().is_some_and(serde_json::Map::is_empty));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.alias(item)),
            Value::String(text) => alias_text(text, self.aliases),
            Value::Number(number) => {
                let begins = self.beginning.0;
                let ms = number.as_i64().filter(|ms| *ms >= begins && ms.abs_diff(begins) < SPAN_MS);
                if let Some(ms) = ms {
                    *value = Value::String(self.since(Timestamp(ms)));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn since(&self, at: Timestamp) -> String {
        span(at.since(self.beginning))
    }
}

/// Puts aliases in the place of run ids, also inside of longer texts such as idempotency keys.
fn alias_text(text: &mut String, aliases: &mut Aliases) {
    const DIGITS: usize = 32;
    let mut from = 0;
    while let Some(found) = text[from..].find("run_") {
        let begin = from + found;
        let end = begin + 4 + DIGITS;
        let is_id = text.as_bytes().get(begin + 4..end).is_some_and(|id| id.iter().all(u8::is_ascii_hexdigit));
        if is_id {
            let name = aliases.name(&text[begin..end]);
            text.replace_range(begin..end, &name);
            from = begin + name.len();
        } else {
            from = begin + 4;
        }
    }
}

/// A time since the beginning: `+1d2h`, `+1.500s`.
fn span(ms: u64) -> String {
    let (days, hours, minutes) = (ms / 86_400_000, ms / 3_600_000 % 24, ms / 60_000 % 60);
    let (seconds, rest) = (ms / 1_000 % 60, ms % 1_000);
    let mut text = String::from("+");
    for (count, unit) in [(days, "d"), (hours, "h"), (minutes, "m")] {
        if count > 0 {
            let _ = write!(text, "{count}{unit}");
        }
    }
    if rest > 0 {
        let _ = write!(text, "{seconds}.{rest:03}s");
    } else if seconds > 0 || text.len() == 1 {
        let _ = write!(text, "{seconds}s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_told_since_the_beginning() {
        assert_eq!(span(0), "+0s");
        assert_eq!(span(1_500), "+1.500s");
        assert_eq!(span(90_000_000), "+1d1h");
    }

    #[test]
    fn run_ids_get_names_also_inside_of_keys() {
        let mut aliases = Aliases::default();
        let mut text = format!("run_{0:032x}-0-run-1/charge after run_{1:032x} and run_x", 7, 8);
        alias_text(&mut text, &mut aliases);
        assert_eq!(text, "run-1-0-run-1/charge after run-2 and run_x");
    }
}
