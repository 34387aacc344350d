//! Dead letters: attempts that cannot be processed are set aside whole, and put back or discarded by a person.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use super::{Transition, schedule};
use crate::{
    Cursor, CursorRef, DeadLetter, DeadLettered, Ended, ErrorInfo, Fact, Meta, Phase, Refusal, Run, Scheduled, Status,
    Str,
};

/// The dead letter of a cursor's current attempt.
#[must_use]
pub fn of(index: u16, cursor: &Cursor, reason: ErrorInfo, node: &Str) -> DeadLettered {
    let envelope = Scheduled { cursor: index, turn: cursor.turn, step: cursor.step.clone(), visible_at: None };
    DeadLettered { cursor: index, reason, node: node.clone(), envelope }
}

/// Sets an attempt aside because no live worker of its queue has the definition that the run needs.
#[must_use]
pub fn definition_missing(run: &Run, cursor: u16, node: &Str) -> Transition {
    let Some(at) = run.cursors.get(usize::from(cursor)) else {
        return Transition::default();
    };
    let spec = &run.started.spec;
    let pinned = run.fingerprint.map_or(String::new(), |pinned| format!(" with definition {pinned}"));
    let message = format!("no live worker of queue {} has {} v{}{pinned}", spec.queue, spec.workflow, spec.version);
    let reason = ErrorInfo::terminal("definition_missing", &message);
    Transition::of([Fact::DeadLettered(Box::new(of(cursor, at, reason, node)))])
}

/// Puts the run's dead letters back.
///
/// # Errors
/// When the run has none.
pub fn requeue(run: &Run) -> Result<Transition, Refusal> {
    let mut transition = Transition::default();
    for (index, cursor) in run.cursors.iter().enumerate() {
        if matches!(cursor.phase, Phase::DeadLettered(_)) {
            transition.facts.push(Fact::Requeued(CursorRef { cursor: index as u16 }));
            transition.facts.push(schedule::intent(index as u16, cursor, None));
        }
    }
    if transition.facts.is_empty() {
        return Err(Refusal::NotDeadLettered { run: run.id, status: run.status() });
    }
    Ok(transition)
}

/// Gives the run up: it ends as failed, with the dead letter's reason.
///
/// # Errors
/// When the run holds no dead letter.
pub fn discard(run: &Run) -> Result<Transition, Refusal> {
    let letter = run.cursors.iter().find_map(|cursor| match &cursor.phase {
        Phase::DeadLettered(letter) => Some(letter),
        _ => None,
    });
    let Some(letter) = letter else {
        return Err(Refusal::NotDeadLettered { run: run.id, status: run.status() });
    };
    let message = format!("the dead letter was discarded: {}", letter.reason.message);
    let error = Some(Arc::new(ErrorInfo::terminal("dead_letter_discarded", &message)));
    let mut transition = Transition::default();
    super::end(run, Ended { status: Status::Failed, result: None, error, request: None }, &mut transition);
    Ok(transition)
}

pub(super) fn apply(run: &mut Run, dead: &DeadLettered, meta: Meta) {
    run.last_error = Some(Arc::new(dead.reason.clone()));
    if let Some(cursor) = run.cursors.get_mut(usize::from(dead.cursor)) {
        cursor.phase = Phase::DeadLettered(Arc::new(DeadLetter {
            reason: dead.reason.clone(),
            node: dead.node.clone(),
            at: meta.at,
            envelope: dead.envelope.clone(),
        }));
    }
}

pub(super) fn apply_requeued(run: &mut Run, cursor: u16) {
    if let Some(cursor) = run.cursors.get_mut(usize::from(cursor)) {
        cursor.reclaims = 0;
        cursor.phase = Phase::Planned { visible_at: None };
    }
}
