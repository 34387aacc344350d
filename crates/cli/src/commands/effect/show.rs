//! `abide effect show`: one effect, with everything that is known of it.

use abide_kernel::{EffectView, RunId};
use clap::Args;

use super::list::{document, interrupt, tone};
use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};

/// Show one effect.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide effect show run_0193f2c4a1b2 refund")]
pub(crate) struct Show {
    /// The run: its id or the beginning of it
    id: String,
    /// The effect's key, as the list shows it
    effect: String,
}

impl Show {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let (run, effect) = find(globals, &self.id, &self.effect)?;
        if !screen.is_text() {
            screen.document(&document(run, &effect))?;
            return Ok(Exit::Ok);
        }
        let mut fields = vec![
            ("run", Cell::toned(run.to_string(), Tone::Strong)),
            ("effect", Cell::new(&*effect.key)),
            ("policy", Cell::new(effect.policy.name())),
            ("standing", Cell::toned(effect.standing.name(), tone(effect.standing))),
            ("idempotency key", Cell::new(&effect.idempotency_key)),
            ("begun", Cell::new(screen.time(effect.begun_at))),
        ];
        if let Some(ended_at) = effect.ended_at {
            fields.push(("ended", Cell::new(screen.time(ended_at))));
        }
        if let Some(interrupt) = effect.interrupt {
            fields.push(("interrupt", Cell::new(interrupt.to_string())));
        }
        if let Some(approval) = &effect.approval {
            let note = approval.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            let answered = interrupt(run, approval);
            let text = format!("{} at {}{note} (interrupt {answered})", approval.actor, screen.time(approval.at));
            fields.push(("approved by", Cell::new(text)));
        }
        if effect.failures > 0 {
            fields.push(("failures", Cell::new(effect.failures.to_string())));
        }
        if let Some(retry_at) = effect.retry_at {
            fields.push(("tried again", Cell::new(screen.time(retry_at))));
        }
        if let Some(value) = &effect.value {
            fields.push(("value", Cell::new(value.text())));
        }
        if let Some(error) = &effect.error {
            fields.push(("error", Cell::toned(error.to_string(), Tone::Bad)));
        }
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}

/// The newest effect of a run that has this key.
pub(super) fn find(globals: &Globals, id: &str, key: &str) -> Result<(RunId, EffectView), Failure> {
    let place = Place::of(globals)?;
    let mut snapshot = place.snapshot()?;
    let run = place.find(&mut snapshot, id)?;
    let stored = snapshot.show(run)?;
    let effects: Vec<EffectView> = stored.iter().flat_map(|stored| stored.run.effects()).collect();
    let known = || effects.iter().map(|effect| &*effect.key).collect::<Vec<_>>().join(", ");
    let missing = || {
        let what = format!("{run} has no effect {key:?} in its ledger; it has: {}", known());
        Failure::new(Exit::NotFound, "no_effect", what)
    };
    let found = effects.iter().rfind(|effect| *effect.key == *key).cloned();
    found.map(|effect| (run, effect)).ok_or_else(missing)
}
