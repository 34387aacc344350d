//! Wake: a wait ends by a signal, an instant or a join. A wait is guarded by its token, so that whatever was
//! meant for an earlier wait is stale.

use alloc::sync::Arc;

use super::{Transition, schedule};
use crate::{Cursor, Fact, Phase, Refusal, Run, Timestamp, Wait, WaitKind, WakeReason, Woken};

/// Decides on a fenced signal: a timer, retry or internal continuation that names the wait it is for.
///
/// # Errors
/// When the run no longer waits under that token, or the wait is not due.
pub fn decide(run: &Run, token: u64, now: Timestamp) -> Result<Transition, Refusal> {
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    let mut current = None;
    for (index, cursor) in run.cursors.iter().enumerate() {
        let Phase::Waiting(wait) = &cursor.phase else {
            continue;
        };
        if wait.token != token {
            current = Some(wait.token);
            continue;
        }
        let mut transition = Transition::default();
        if wait.until.is_some_and(|until| until <= now) {
            on_deadline(index as u16, cursor, wait, &mut transition);
        }
        return Ok(transition);
    }
    Err(Refusal::StaleToken { token, current })
}

/// The wait's instant has come.
pub(super) fn on_deadline(index: u16, cursor: &Cursor, wait: &Wait, transition: &mut Transition) {
    let by = match wait.kind {
        WaitKind::Timer => WakeReason::Timer,
        WaitKind::Signal { .. } | WaitKind::Children(_) | WaitKind::Ledger => WakeReason::Deadline,
    };
    push(index, cursor, wait, by, transition);
}

/// The facts of a wake-up: the wait is over, and the step it leads to can be claimed. A wait ends once.
pub(super) fn push(index: u16, cursor: &Cursor, wait: &Wait, by: WakeReason, transition: &mut Transition) {
    if transition.facts.iter().any(|fact| matches!(fact, Fact::Woken(woken) if woken.cursor == index)) {
        return;
    }
    transition.facts.push(Fact::Woken(Woken { cursor: index, token: wait.token, by }));
    let mut woken = schedule::intent(index, cursor, None);
    if let (Fact::Scheduled(scheduled), Some(then)) = (&mut woken, &wait.then) {
        scheduled.step = Some(then.clone());
    }
    transition.facts.push(woken);
}

pub(super) fn apply(run: &mut Run, woken: &Woken) {
    let Some(cursor) = run.cursors.get_mut(usize::from(woken.cursor)) else {
        return;
    };
    let Phase::Waiting(wait) = &cursor.phase else {
        return;
    };
    let wait = Arc::clone(wait);
    if wait.token != woken.token {
        return;
    }
    if let Some(then) = &wait.then {
        enter(cursor, then.clone());
    }
    cursor.woken_by = Some(woken.by);
    cursor.phase = Phase::Planned { visible_at: None };
}

/// The cursor enters a step: counters begin anew.
pub(super) fn enter(cursor: &mut Cursor, step: crate::Str) {
    cursor.step = Some(step);
    cursor.visit += 1;
    cursor.retries = 0;
    cursor.reclaims = 0;
    cursor.woken_by = None;
}
