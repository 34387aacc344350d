//! What was done is undone when a run fails or is cancelled: all of it, the last first, and nothing more after what could not be
//! undone for good. Of a run that ends well, and of a life that another follows, nothing is undone.

use std::collections::BTreeMap;

use abide::{Fact, Run, Status};
use abide_kernel::OpState;

use super::View;
use crate::Violation;
use crate::truth::Truth;
use crate::workflows::UNDOING;

/// Errors with which a run ends from outside, as it stands: nobody comes back to undo anything.
const AS_IT_STANDS: &[&str] = &["dead_letter_discarded", "run_deadline"];

/// What a run has registered to undo something, and what became of it.
struct Undo<'a> {
    key: &'a str,
    state: &'a OpState,
    /// How often it was really called.
    calls: u32,
    /// Whether somebody has begun with it, by what was called or by what the journal says.
    begun: bool,
}

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    // A late twin of its start may have begun a run anew that was purged: what was called was called for both.
    for (id, told) in view.changed().filter(|(id, _)| !view.was_purged(**id)) {
        let wrong = |what: String| format!("undone: {id} {what}");
        let undos = undos(&told.run, &truth.counts);
        is_in_order(&undos).map_err(wrong)?;
        // What is in doubt after a panic, and was resolved, says how the run goes on, also when a part was undone.
        let resolved = told.all_rows().any(|row| row.facts.iter().any(|fact| matches!(fact, Fact::Resolved(_))));
        if !(resolved && told.run.status() == Status::Done) {
            is_as_ended(&told.run, &undos).map_err(wrong)?;
        }
        is_of_this_life(&told.run, &truth.counts).map_err(wrong)?;
    }
    Ok(())
}

/// What the present life of a run has registered, in order.
fn undos<'a>(run: &'a Run, counts: &BTreeMap<String, u32>) -> Vec<Undo<'a>> {
    let mut undos = Vec::new();
    for (id, op) in run.ops() {
        let (Some(effect), Some(view)) = (op.effect().filter(|effect| effect.undo), run.effect_view(id)) else {
            continue;
        };
        if run.cursors[usize::from(op.cursor)].visit == op.visit {
            let calls = counts.get(&view.idempotency_key).copied().unwrap_or_default();
            let begun = calls > 0 || effect.claim != 0 || op.state != OpState::Open;
            undos.push(Undo { key: &op.key, state: &op.state, calls, begun });
        }
    }
    undos
}

/// The last first: before anything is begun with, whatever was registered after it is undone, and durably so.
fn is_in_order(undos: &[Undo<'_>]) -> Result<(), String> {
    for (place, undo) in undos.iter().enumerate().filter(|(_, undo)| undo.begun) {
        let when = undo.state.when().map(|when| when.ended);
        for later in &undos[place + 1..] {
            let OpState::Done { when: ended, .. } = later.state else {
                return Err(format!(
                    "began with {}, and {}, registered after it, is {:?}",
                    undo.key, later.key, later.state
                ));
            };
            if when.is_some_and(|when| when < ended.ended) {
                return Err(format!("has undone by {} before {}, registered after it", undo.key, later.key));
            }
        }
        if matches!(undo.state, OpState::Done { .. }) && undo.calls == 0 {
            return Err(format!("says that it has undone by {}, which nobody called", undo.key));
        }
    }
    Ok(())
}

/// Whether as much is undone as the end of the run asks for.
fn is_as_ended(run: &Run, undos: &[Undo<'_>]) -> Result<(), String> {
    let Some(end) = &run.end else { return Ok(()) };
    let code = run.last_error.as_ref().map(|error| &*error.code).unwrap_or_default();
    if end.status == Status::Done {
        return match undos.iter().find(|undo| undo.begun) {
            Some(undo) => Err(format!("ended well, and began with {}", undo.key)),
            None => Ok(()),
        };
    }
    if end.status == Status::Failed && AS_IT_STANDS.contains(&code) {
        return Ok(());
    }
    // It is left as it is then: what was registered before is not begun with, as the order says.
    if end.status == Status::Failed && undos.iter().any(|undo| matches!(undo.state, OpState::Failed { .. })) {
        return Ok(());
    }
    match undos.iter().find(|undo| !matches!(undo.state, OpState::Done { .. })) {
        Some(undo) => {
            Err(format!("ended as {:?}, by {code:?}, and has not undone by {}: {:?}", end.status, undo.key, undo.state))
        }
        None => Ok(()),
    }
}

/// Whether nothing was called to undo something of a life that another followed.
fn is_of_this_life(run: &Run, counts: &BTreeMap<String, u32>) -> Result<(), String> {
    let Some((cursor, step)) = run.cursors.first().and_then(|cursor| Some((cursor, cursor.step.as_ref()?))) else {
        return Ok(());
    };
    if run.continuations == 0 {
        return Ok(());
    }
    for (visit, effect) in (0..cursor.visit).flat_map(|visit| UNDOING.iter().map(move |effect| (visit, effect))) {
        let key = format!("{}-{}-{step}-{visit}/{effect}", run.id, run.epoch);
        if counts.contains_key(&key) {
            return Err(format!("has called {key}, of a life that another followed"));
        }
    }
    Ok(())
}
