//! Cancel: a run ends from outside. The terminal fact fences everything; workers learn of it cooperatively.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::{Transition, record, schedule};
use crate::envelope::Message;
use crate::{Cancelling, ClaimRef, CursorRef, Ended, ErrorInfo, Fact, Phase, Refusal, RequestId, Run, Status, Taken};

/// Ends the run, and its open children if `cascade` says so. An empty transition means: this request had
/// cancelled it before.
///
/// # Errors
/// When the run has ended otherwise.
pub fn decide(run: &Run, request: RequestId, cascade: bool, reason: &Arc<ErrorInfo>) -> Result<Transition, Refusal> {
    let accepted = run.cancelling.as_ref().is_some_and(|asked| asked.request == request);
    if let Some(end) = &run.end {
        // It may have ended otherwise since, because what it did could not be undone: that it was to end was accepted.
        return if accepted || end.request == Some(request) {
            Ok(Transition::default())
        } else {
            Err(Refusal::RunOver { run: run.id, status: end.status })
        };
    }
    reason.validate()?;
    if run.cancelling.is_some() {
        return if accepted { Ok(Transition::default()) } else { Err(Refusal::Cancelling { run: run.id }) };
    }
    let mut transition = Transition::default();
    if run.open_ops().any(|(_, op)| record::is_armed(&op.kind)) {
        undo_first(run, Cancelling { reason: reason.clone(), request, cascade }, &mut transition);
        return Ok(transition);
    }
    let ended = Ended { status: Status::Cancelled, result: None, error: Some(reason.clone()), request: Some(request) };
    super::end(run, ended, &mut transition);
    tell_children(run, request, cascade, reason, &mut transition);
    Ok(transition)
}

/// The run has something to undo: it is brought back to do so, whatever it waits for or does.
fn undo_first(run: &Run, cancelling: Cancelling, transition: &mut Transition) {
    transition.facts.push(Fact::Cancelling(Box::new(cancelling)));
    for (index, cursor) in run.cursors.iter().enumerate() {
        let index = index as u16;
        match &cursor.phase {
            Phase::Claimed(claim) => {
                transition.facts.push(Fact::Expired(ClaimRef { cursor: index, claim: claim.number }));
                transition.facts.push(schedule::intent(index, cursor, None));
            }
            Phase::Waiting(_) => record::wake_cursor(run, index, transition),
            // It may rest before it is tried again: what it did is undone now.
            Phase::Scheduled { .. } => transition.facts.push(schedule::intent(index, cursor, None)),
            Phase::DeadLettered(_) => {
                transition.facts.push(Fact::Requeued(CursorRef { cursor: index }));
                transition.facts.push(schedule::intent(index, cursor, None));
            }
            _ => {}
        }
    }
}

/// The run has undone what it did: it ends as it was asked to.
pub(super) fn finish(run: &Run, transition: &mut Transition) {
    let Some(asked) = run.cancelling.clone() else {
        return;
    };
    let (request, error) = (Some(asked.request), Some(asked.reason.clone()));
    super::end(run, Ended { status: Status::Cancelled, result: None, error, request }, transition);
}

/// The claims that are held now end with the same row.
pub(super) fn apply_cancelling(run: &mut Run, cancelling: &Cancelling) {
    run.cancelling = Some(Arc::new(cancelling.clone()));
    let held = run.cursors.iter().filter_map(|cursor| match (&cursor.phase, &cursor.claimant) {
        (Phase::Claimed(claim), Some(by)) => Some(Taken { claim: claim.number, token: by.token }),
        _ => None,
    });
    run.taken = held.collect();
}

/// A run that was to be cancelled with its children ends, however that is: they are told.
pub(super) fn follow(run: &Run, transition: &mut Transition) {
    if let Some(asked) = &run.cancelling {
        tell_children(run, asked.request, asked.cascade, &asked.reason, transition);
    }
}

fn tell_children(run: &Run, request: RequestId, cascade: bool, reason: &Arc<ErrorInfo>, transition: &mut Transition) {
    if cascade {
        for child in run.children.iter().filter(|child| child.end.is_none()) {
            let (run, reason) = (child.id, reason.clone());
            let cancel = Message::Cancel { run, request, cascade, reason };
            transition.messages.push(cancel.along(child.admission));
        }
    }
}
