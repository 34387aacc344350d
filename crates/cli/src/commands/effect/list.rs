//! `abide effect list`: the effects of one run, or those in doubt of all runs.

use abide_kernel::{RunId, Standing};
use abide_protocol::{Effect, RunEffect};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

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
        let mut source = <dyn Source>::of(globals)?;
        let found = match &self.id {
            Some(id) => {
                let run = source.find(id)?;
                let shown = source.show(run)?;
                shown.effects().map(|effect| RunEffect { run, effect: Effect::of(run, &effect) }).collect()
            }
            None => source.effects_in_doubt(self.limit as usize)?,
        };
        if !screen.is_text() {
            let documents: Vec<Value> = found.iter().map(|found| document(found.run, &found.effect)).collect();
            screen.documents("effects", &documents)?;
            return Ok(Exit::Ok);
        }
        if found.is_empty() {
            let none = if self.id.is_some() { "the run has no effects in its ledger" } else { "no effect is in doubt" };
            screen.remark(none);
        }
        let rows = found.iter().map(|found| row(&screen, found.run, &found.effect)).collect();
        screen.table(&["RUN", "EFFECT", "POLICY", "STANDING", "SINCE"], rows)?;
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, run: RunId, effect: &Effect) -> Vec<Cell> {
    vec![
        Cell::toned(screen.id(run), Tone::Strong),
        Cell::new(&effect.key),
        Cell::new(effect.policy.name()),
        Cell::toned(effect.standing.name(), tone(effect.standing)),
        Cell::toned(screen.time(effect.ended_at.unwrap_or(effect.begun_at).0), Tone::Faint),
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
pub(super) fn document(run: RunId, effect: &Effect) -> Value {
    let Effect { policy, standing, idempotency_key, interrupt, approval, doubt, failures, undo, value, error, .. } =
        effect;
    json!({
        "run": run, "effect": effect.key, "policy": policy, "standing": standing, "idempotency_key": idempotency_key,
        "interrupt": interrupt, "approval": approval, "doubt": doubt, "failures": failures, "retry_at": effect.retry_at,
        "undo": undo, "begun_at": effect.begun_at, "ended_at": effect.ended_at, "value": value, "error": error,
    })
}
