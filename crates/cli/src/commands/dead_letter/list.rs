//! `abide dead-letter list`: attempts of runs, and messages between shards, that were set aside.

use abide_protocol::DeadAttempt;
use abide_store::DeadLetterItem;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::iso;

/// List what was set aside, and why.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide dead-letter list
  abide -o jsonl dead-letter list | jq -r .run")]
pub(crate) struct List {
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let (mut rows, mut documents) = (Vec::new(), Vec::new());
        for attempt in source.dead_attempts(self.limit as usize)? {
            rows.push(vec![
                Cell::toned(screen.id(attempt.run), Tone::Strong),
                Cell::new("attempt"),
                Cell::new(attempt.step.as_deref().unwrap_or("-")),
                Cell::toned(format!("{}: {}", attempt.reason.code, attempt.reason.message), Tone::Bad),
                Cell::new(&attempt.node),
                Cell::toned(screen.time(attempt.at.0), Tone::Faint),
            ]);
            documents.push(attempt_json(&attempt));
        }
        for item in messages(source.as_mut())?.into_iter().take(self.limit as usize) {
            let message = &item.dead.envelope.message;
            let target = message.target();
            let what = target.map_or(String::new(), |run| format!(" to {}", screen.id(run)));
            rows.push(vec![
                Cell::toned(item.id.to_string(), Tone::Strong),
                Cell::new("message"),
                Cell::new(format!("{}{what}", message.kind())),
                Cell::toned(&*item.dead.reason, Tone::Bad),
                Cell::new(&item.node),
                Cell::toned(screen.time(item.at), Tone::Faint),
            ]);
            documents.push(json!({
                "kind": "message", "letter": item.id, "run": target, "reason": &*item.dead.reason,
                "node": item.node, "at": iso(item.at), "envelope": item.dead.envelope,
            }));
        }
        if !screen.is_text() {
            screen.documents("dead_letters", &documents)?;
            return Ok(Exit::Ok);
        }
        if rows.is_empty() {
            screen.remark("nothing was set aside");
        }
        screen.table(&["ID", "KIND", "WHAT", "REASON", "NODE", "WHEN"], rows)?;
        Ok(Exit::Ok)
    }
}

/// Messages are of no tenant: whoever may see only some has none to see.
fn messages(source: &mut dyn Source) -> Result<Vec<DeadLetterItem>, Failure> {
    match source.dead_messages() {
        Err(failure) if failure.code == "forbidden" => Ok(Vec::new()),
        other => other,
    }
}

fn attempt_json(attempt: &DeadAttempt) -> Value {
    let DeadAttempt { run, step, reason, node, at, envelope } = attempt;
    json!({
        "kind": "attempt", "run": run, "step": step, "reason": reason, "node": node, "at": at, "envelope": envelope,
    })
}
