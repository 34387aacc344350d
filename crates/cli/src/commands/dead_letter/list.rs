//! `abide dead-letter list`: attempts of runs, and messages between shards, that were set aside.

use abide_kernel::{DeadLetter, Phase, RunId, Status};
use abide_runtime::Snapshot;
use abide_store::{Filter, Page};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
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
        let mut snapshot = Place::of(globals)?.snapshot()?;
        let mut filter = Filter::default();
        filter.namespace = globals.namespace.as_deref().map(Into::into);
        let (mut rows, mut documents) = (Vec::new(), Vec::new());
        for (run, letter) in letters(&mut snapshot, filter, self.limit as usize)? {
            rows.push(vec![
                Cell::toned(screen.id(run), Tone::Strong),
                Cell::new("attempt"),
                Cell::new(letter.envelope.step.as_deref().unwrap_or("-")),
                Cell::toned(letter.reason.to_string(), Tone::Bad),
                Cell::new(&*letter.node),
                Cell::toned(screen.time(letter.at), Tone::Faint),
            ]);
            documents.push(attempt_json(run, &letter));
        }
        for item in snapshot.dead_letters()?.into_iter().take(self.limit as usize) {
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

/// Runs whose attempt was set aside, newest first.
pub(crate) fn letters(
    snapshot: &mut Snapshot,
    mut filter: Filter,
    most: usize,
) -> Result<Vec<(RunId, DeadLetter)>, Failure> {
    filter.statuses = vec![Status::DeadLettered];
    let mut found = Vec::new();
    for listed in snapshot.list(&filter, &Page { most, before: None })? {
        let Some(stored) = snapshot.show(listed.run)? else {
            continue;
        };
        let cursors = stored.run.cursors.iter();
        found.extend(cursors.filter_map(|cursor| match &cursor.phase {
            Phase::DeadLettered(letter) => Some((listed.run, (**letter).clone())),
            _ => None,
        }));
    }
    Ok(found)
}

fn attempt_json(run: RunId, letter: &DeadLetter) -> Value {
    json!({
        "kind": "attempt", "run": run, "step": letter.envelope.step.as_deref(), "reason": letter.reason,
        "node": &*letter.node, "at": iso(letter.at), "envelope": letter.envelope,
    })
}
