//! `abide effect list`: the effects of one run, or those in doubt of all runs.

use abide_kernel::{Approval, BoundaryId, EffectView, Interrupt, RunId, Standing, Status};
use abide_runtime::Snapshot;
use abide_store::{Filter, Page};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
use crate::text::iso;

/// List the effects of a run, or all effects in doubt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide effect list                            all effects in doubt
  abide effect list run_0193f2c4a1b2           all effects of a run")]
pub(crate) struct List {
    /// The run: its id or the beginning of it; without it, effects in doubt of all runs
    id: Option<String>,
    /// At most so many runs
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let mut snapshot = place.snapshot()?;
        let found = match &self.id {
            Some(id) => {
                let run = place.find(&mut snapshot, id)?;
                let stored = snapshot.show(run)?;
                stored.iter().flat_map(|stored| stored.run.effects()).map(|effect| (run, effect)).collect()
            }
            None => in_doubt(&mut snapshot, globals, self.limit as usize)?,
        };
        if !screen.is_text() {
            let documents: Vec<Value> = found.iter().map(|(run, effect)| document(*run, effect)).collect();
            screen.documents("effects", &documents)?;
            return Ok(Exit::Ok);
        }
        if found.is_empty() {
            let none = if self.id.is_some() { "the run has no effects in its ledger" } else { "no effect is in doubt" };
            screen.remark(none);
        }
        let rows = found.iter().map(|(run, effect)| row(&screen, *run, effect)).collect();
        screen.table(&["RUN", "EFFECT", "POLICY", "STANDING", "SINCE"], rows)?;
        Ok(Exit::Ok)
    }
}

/// Effects in doubt of all runs that wait because of them, newest run first.
fn in_doubt(snapshot: &mut Snapshot, globals: &Globals, most: usize) -> Result<Vec<(RunId, EffectView)>, Failure> {
    let mut filter = Filter::default();
    filter.namespace = globals.namespace.as_deref().map(Into::into);
    filter.statuses = vec![Status::InDoubt];
    let mut found = Vec::new();
    for listed in snapshot.list(&filter, &Page { most, before: None })? {
        let Some(stored) = snapshot.show(listed.run)? else {
            continue;
        };
        let doubted = stored.run.effects().filter(|effect| effect.standing == Standing::InDoubt);
        found.extend(doubted.map(|effect| (listed.run, effect)));
    }
    Ok(found)
}

fn row(screen: &Screen, run: RunId, effect: &EffectView) -> Vec<Cell> {
    vec![
        Cell::toned(screen.id(run), Tone::Strong),
        Cell::new(&*effect.key),
        Cell::new(effect.policy.name()),
        Cell::toned(effect.standing.name(), tone(effect.standing)),
        Cell::toned(screen.time(effect.ended_at.unwrap_or(effect.begun_at)), Tone::Faint),
    ]
}

/// The tone of a standing.
pub(super) fn tone(standing: Standing) -> Tone {
    match standing {
        Standing::Committed => Tone::Good,
        Standing::InDoubt | Standing::Failed => Tone::Bad,
        Standing::Running => Tone::Busy,
        Standing::NotStarted | Standing::Compensated => Tone::Faint,
    }
}

/// An effect as JSON.
pub(super) fn document(run: RunId, effect: &EffectView) -> Value {
    json!({
        "run": run, "effect": &*effect.key, "policy": effect.policy, "standing": effect.standing,
        "idempotency_key": effect.idempotency_key, "interrupt": effect.interrupt,
        "approval": effect.approval.as_deref().map(|approval| approval_document(run, approval)),
        "doubt": effect.doubt(), "failures": effect.failures, "retry_at": effect.retry_at.map(iso),
        "undo": effect.undo, "begun_at": iso(effect.begun_at), "ended_at": effect.ended_at.map(iso),
        "value": effect.value, "error": effect.error,
    })
}

fn approval_document(run: RunId, approval: &Approval) -> Value {
    json!({
        "interrupt": interrupt(run, approval), "actor": &*approval.actor, "note": approval.note.as_deref(),
        "at": iso(approval.at),
    })
}

/// The interrupt that was answered, as `approval list` and `effect show` name it.
pub(super) fn interrupt(run: RunId, approval: &Approval) -> String {
    match approval.interrupt {
        Interrupt::Review(op) => BoundaryId { run, op }.to_string(),
        Interrupt::Doubt(claim) => claim.to_string(),
    }
}
