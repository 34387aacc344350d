//! `abide effect show`: one effect, with everything that is known of it.

use abide_kernel::RunId;
use abide_protocol::Effect;
use clap::Args;

use super::list::{document, tone};
use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

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
        let (run, effect) = find(<dyn Source>::of(globals)?.as_mut(), &self.id, &self.effect)?;
        if !screen.is_text() {
            screen.document(&document(run, &effect))?;
            return Ok(Exit::Ok);
        }
        let mut fields = vec![
            ("run", Cell::toned(run.to_string(), Tone::Strong)),
            ("effect", Cell::new(&effect.key)),
            ("policy", Cell::new(effect.policy.name())),
            ("standing", Cell::toned(effect.standing.name(), tone(effect.standing))),
            ("idempotency key", Cell::new(&effect.idempotency_key)),
            ("begun", Cell::new(screen.time(effect.begun_at.0))),
        ];
        if let Some(ended_at) = effect.ended_at {
            fields.push(("ended", Cell::new(screen.time(ended_at.0))));
        }
        if let Some(interrupt) = effect.interrupt {
            fields.push(("interrupt", Cell::new(interrupt.to_string())));
        }
        if let Some(approval) = &effect.approval {
            let note = approval.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            let (at, answered) = (screen.time(approval.at.0), &approval.interrupt);
            let text = format!("{} at {at}{note} (interrupt {answered})", approval.actor);
            fields.push(("approved by", Cell::new(text)));
        }
        if effect.failures > 0 {
            fields.push(("failures", Cell::new(effect.failures.to_string())));
        }
        if let Some(retry_at) = effect.retry_at {
            fields.push(("tried again", Cell::new(screen.time(retry_at.0))));
        }
        if let Some(value) = &effect.value {
            fields.push(("value", Cell::new(value.text())));
        }
        if let Some(error) = &effect.error {
            fields.push(("error", Cell::toned(format!("{}: {}", error.code, error.message), Tone::Bad)));
        }
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}

/// The newest effect of a run that has this key.
pub(super) fn find(source: &mut dyn Source, id: &str, key: &str) -> Result<(RunId, Effect), Failure> {
    let run = source.find(id)?;
    let effects: Vec<Effect> = source.show(run)?.effects().map(|effect| Effect::of(run, &effect)).collect();
    let known = || effects.iter().map(|effect| &*effect.key).collect::<Vec<_>>().join(", ");
    let missing = || {
        let what = format!("{run} has no effect {key:?} in its ledger; it has: {}", known());
        Failure::new(Exit::NotFound, "no_effect", what)
    };
    let found = effects.iter().rfind(|effect| effect.key == key).cloned();
    found.map(|effect| (run, effect)).ok_or_else(missing)
}
