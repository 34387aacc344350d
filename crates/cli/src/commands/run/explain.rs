//! `abide run explain`: why a run does not move, with the evidence and what would move it.

use abide_kernel::explain::{Explanation, explain};
use abide_kernel::{Refusal, RunId};
use abide_store::FaultKind;
use clap::Args;
use serde_json::{Map, Value, json};

use super::surroundings::around;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};

/// Say why a run does not move, and what would move it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run explain run_0193f2c4a1b2
  abide -o json run explain 0193f2c4 | jq -r .reason")]
pub(crate) struct Explain {
    /// The run: its id or the beginning of it
    id: String,
}

impl Explain {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let mut snapshot = place.snapshot()?;
        let id = place.find(&mut snapshot, &self.id)?;
        let keeper = place.keeper_of(id)?;
        let stored = match snapshot.show(id) {
            Ok(Some(stored)) => stored,
            Ok(None) => return Err(Refusal::NotFound { run: id }.into()),
            Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => {
                return damaged(&screen, id, &fault.message);
            }
            Err(fault) => return Err(fault.into()),
        };
        let now = screen.now().max(stored.run.updated_at);
        let around = around(&mut snapshot, keeper.as_ref(), &stored.run, now)?;
        let mut explanation = explain(&stored.run, &around, now);
        let held = keeper.map_or("nobody".into(), |keeper| keeper.shown());
        explanation.evidence.push(("store_held_by".into(), held));
        if !screen.is_text() {
            screen.document(&written(id, &explanation))?;
            return Ok(Exit::Ok);
        }
        let mut fields = vec![("why", Cell::toned(&explanation.sentence, Tone::Strong))];
        let evidence = explanation.evidence.iter();
        fields.extend(evidence.map(|(name, value)| (name.as_str(), Cell::new(value))));
        fields.extend(explanation.next_actions.iter().map(|action| ("do", Cell::toned(action, Tone::Busy))));
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}

/// A run whose record is damaged does not move either, and that is the reason.
fn damaged(screen: &Screen, run: RunId, found: &str) -> Outcome {
    let sentence = format!("its record is damaged, so nothing can be done to it: {found}");
    let action = "abide store check";
    if screen.is_text() {
        let fields = [("why", Cell::toned(sentence, Tone::Strong)), ("do", Cell::toned(action, Tone::Busy))];
        screen.fields(&fields)?;
    } else {
        screen.document(&json!({
            "run": run, "reason": "damaged", "sentence": sentence, "evidence": {}, "next_actions": [action],
        }))?;
    }
    Ok(Exit::Ok)
}

fn written(run: RunId, explanation: &Explanation) -> Value {
    let evidence: Map<String, Value> =
        explanation.evidence.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    json!({
        "run": run,
        "reason": explanation.reason.code(),
        "sentence": explanation.sentence,
        "evidence": evidence,
        "next_actions": explanation.next_actions,
    })
}
