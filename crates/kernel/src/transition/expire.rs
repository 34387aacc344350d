//! Expire: what happens to a run by itself when an instant passes: leases, waits, and the run's deadline.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;

use super::{Transition, dead_letter, record, schedule, wake};
use crate::{
    ClaimRef, Cursor, Ended, ErrorInfo, Fact, Phase, Run, Status, Str, Timestamp, limits::DELIVERIES_MAX_DEFAULT,
};

/// Everything that is due for the run at `now`.
#[must_use]
pub fn decide(run: &Run, node: &Str, now: Timestamp) -> Transition {
    let mut transition = Transition::default();
    if run.end.is_some() {
        return transition;
    }
    if run.started.spec.deadline.is_some_and(|deadline| deadline <= now) {
        let error = ErrorInfo::terminal("run_deadline", "the run did not end before its deadline");
        let ended = Ended { status: Status::Failed, result: None, error: Some(Arc::new(error)), request: None };
        super::end(run, ended, &mut transition);
        return transition;
    }
    record::expire(run, now, &mut transition);
    for (index, cursor) in run.cursors.iter().enumerate() {
        match &cursor.phase {
            Phase::Claimed(claim) if claim.until() <= now => {
                lose_claim(run, index as u16, cursor, claim.number, node, &mut transition);
            }
            Phase::Waiting(wait) if wait.until.is_some_and(|until| until <= now) => {
                wake::on_deadline(index as u16, cursor, wait, &mut transition);
            }
            _ => {}
        }
    }
    transition
}

/// Ends the claims of a process that is known to be dead, whatever their leases say.
#[must_use]
pub fn decide_process_lost(run: &Run, alive: &str, node: &Str) -> Transition {
    let mut transition = Transition::default();
    for (index, cursor) in run.cursors.iter().enumerate() {
        let process = cursor.claimant.as_ref().and_then(|by| by.process.as_deref());
        if let Phase::Claimed(claim) = &cursor.phase
            && process.is_some_and(|process| process != alive)
        {
            lose_claim(run, index as u16, cursor, claim.number, node, &mut transition);
        }
    }
    transition
}

/// A worker was lost: the step runs again from scratch, without its error handler. One that keeps killing its
/// workers is set aside.
fn lose_claim(run: &Run, index: u16, cursor: &Cursor, claim: u32, node: &Str, transition: &mut Transition) {
    transition.facts.push(Fact::Expired(ClaimRef { cursor: index, claim }));
    let most = run.started.spec.deliveries_max.unwrap_or(DELIVERIES_MAX_DEFAULT);
    if cursor.reclaims + 1 >= most {
        let message = format!("the attempt was delivered {most} times and never answered");
        let reason = ErrorInfo::terminal("deliveries_exhausted", &message);
        transition.facts.push(Fact::DeadLettered(Box::new(dead_letter::of(index, cursor, reason, node))));
    } else {
        transition.facts.push(schedule::intent(index, cursor, None));
    }
}

pub(super) fn apply(run: &mut Run, expired: ClaimRef) {
    let Some(cursor) = run.cursors.get_mut(usize::from(expired.cursor)) else {
        return;
    };
    if matches!(&cursor.phase, Phase::Claimed(claim) if claim.number == expired.claim) {
        cursor.reclaims += 1;
        cursor.phase = Phase::Planned { visible_at: None };
    }
}
