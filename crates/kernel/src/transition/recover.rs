//! Recover: what a torn state still owes. One batch makes such states impossible, so they come only from
//! outside: an import, a repaired journal, a test that tears on purpose.

use super::{Transition, complete, schedule};
use crate::{Phase, Run, Timestamp};

/// What is missing: intents of planned steps first; only when none is, results that are recorded and not
/// applied, one at a time. Children that were spawned and never began are found by `child::begin_again`.
#[must_use]
pub fn decide(run: &Run, now: Timestamp) -> Transition {
    let mut transition = Transition::default();
    if run.end.is_some() {
        return transition;
    }
    schedule::missing(run, now, &mut transition.facts);
    if !transition.is_empty() {
        return transition;
    }
    for cursor in &run.cursors {
        if let Phase::Completed { claim, .. } = cursor.phase
            && let Ok(applied) = complete::decide_apply(run, claim, now)
        {
            return applied;
        }
    }
    transition
}
