//! Complete: a step returned an outcome, and the outcome is applied to the run.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, await_signal, cancel, child, manual, record, schedule, update, wait, wake};
use serde::{Deserialize, Serialize};

use crate::outcome::Consume;
use crate::{
    After, Applied, Completed, Completion, Cursor, Ended, ErrorInfo, Executed, Fact, Meta, Outcome, Payload, Phase,
    Refusal, Run, Scheduled, Status, Str, Timestamp, TokenHash, Wait, WaitKind, mix, stable_hash,
};

/// What a worker says when its step has returned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Completing {
    /// The claim's number.
    pub claim: u32,
    /// The hash of the claim's token.
    pub token: TokenHash,
    /// What the step, or its error handler, returned.
    pub outcome: Arc<Outcome>,
    /// Which waiting signals it uses up.
    pub consume: Consume,
    /// The error that the error handler answered.
    pub error: Option<Arc<ErrorInfo>>,
    /// Compact the run once its journal has so many rows.
    pub compact_after: Option<u64>,
    /// What the step writes to the ledger beside it.
    pub entries: Vec<record::Entry>,
}

/// Records the outcome of a claimed attempt and applies it. An empty transition means: the same completion
/// was recorded before.
///
/// # Errors
/// When the fence is not the current one, the lease has ended, another result stands, or the outcome itself is
/// not acceptable.
pub fn decide(run: &Run, completing: &Completing, now: Timestamp) -> Result<Transition, Refusal> {
    let claim = completing.claim;
    if let Some(recorded) = recorded(run, claim) {
        return if recorded == sealed(digest(&completing.outcome), completing.token) {
            Ok(Transition::default())
        } else {
            Err(Refusal::ConflictingCompletion { claim })
        };
    }
    let index = super::fenced(run, claim, completing.token, now)?;
    completing.outcome.validate()?;
    completing.error.iter().try_for_each(|error| error.validate())?;
    let cursor = &run.cursors[usize::from(index)];
    let Phase::Claimed(held) = &cursor.phase else {
        return Err(Refusal::StaleClaim { claim, current: None });
    };
    let mut transition = Transition::default();
    record::entries(run, index, claim, &completing.entries, now, &mut transition)?;
    transition.facts.push(Fact::Completed(Completed {
        cursor: index,
        claim,
        outcome: completing.outcome.clone(),
        consume: completing.consume,
        error: completing.error.clone(),
    }));
    let returned =
        Returned { index, cursor, outcome: &completing.outcome, consume: completing.consume, seen: held.seen };
    apply_decided(run, &returned, now, &mut transition)?;
    Ok(transition)
}

/// What was recorded under a claim, if it is the last that was: enough to tell a duplicate from a conflict.
pub(super) fn recorded(run: &Run, claim: u32) -> Option<u64> {
    run.cursors
        .iter()
        .find_map(|cursor| cursor.completion.filter(|recorded| recorded.claim == claim))
        .map(|recorded| recorded.digest)
}

/// A digest that only whoever knows the claim's token can repeat; the cursor's claimant may have changed since.
pub(super) fn sealed(digest: u64, token: TokenHash) -> u64 {
    digest ^ mix(token.0 as u64)
}

/// Applies the outcome that was recorded under `claim` and is not applied yet. An empty transition means: it was.
///
/// # Errors
/// When the attempt has not completed, or the claim is none of the run's.
pub fn decide_apply(run: &Run, claim: u32, now: Timestamp) -> Result<Transition, Refusal> {
    let mut current = None;
    for (index, cursor) in run.cursors.iter().enumerate() {
        match &cursor.phase {
            Phase::Completed { claim: number, outcome, consume, seen } if *number == claim => {
                let returned = Returned { index: index as u16, cursor, outcome, consume: *consume, seen: *seen };
                let mut transition = Transition::default();
                apply_decided(run, &returned, now, &mut transition)?;
                return Ok(transition);
            }
            Phase::Claimed(held) if held.number == claim => {
                return Err(Refusal::ResultNotCompleted { claim });
            }
            Phase::Claimed(held) => current = Some(held.number),
            _ => {}
        }
    }
    match recorded(run, claim) {
        Some(_) => Ok(Transition::default()),
        None => Err(Refusal::StaleClaim { claim, current }),
    }
}

/// A step that returned: where, what, and which signals it had seen.
struct Returned<'a> {
    index: u16,
    cursor: &'a Cursor,
    outcome: &'a Outcome,
    consume: Consume,
    seen: u64,
}

fn apply_decided(
    run: &Run,
    returned: &Returned<'_>,
    now: Timestamp,
    transition: &mut Transition,
) -> Result<(), Refusal> {
    let Returned { index, cursor, outcome, seen, .. } = *returned;
    let applied = |then: After, consumed: Vec<u64>| Fact::Applied(Applied { cursor: index, consumed, then });
    let scheduled = |step: Option<Str>, visible_at: Option<Timestamp>| {
        Fact::Scheduled(Scheduled { cursor: index, turn: cursor.turn + 1, step, visible_at })
    };
    if leaves(outcome) {
        manual::leave(run, index, transition);
    }
    match outcome {
        Outcome::Next { step, .. } => {
            transition.facts.push(applied(After::Step, consumed(run, returned)));
            transition.facts.push(scheduled(Some(step.clone()), None));
        }
        Outcome::Replay { delay_ms, .. } => {
            transition.facts.push(applied(After::Replay, consumed(run, returned)));
            let visible_at = (*delay_ms > 0).then(|| now.after(*delay_ms));
            transition.facts.push(scheduled(cursor.step.clone(), visible_at));
        }
        Outcome::Await { signals, then, deadline, .. } => {
            let until = deadline.map(|moment| moment.from(now));
            let after = await_signal::decide(run, cursor, signals, then.as_ref(), until, seen, transition);
            let arrived = matches!(after, After::Arrived);
            transition.facts.push(applied(after, Vec::new()));
            if arrived {
                transition.facts.push(scheduled(then.clone().or_else(|| cursor.step.clone()), None));
            }
        }
        Outcome::Sleep { until, then, .. } => {
            let until = Some(until.from(now));
            let wait = Wait { kind: WaitKind::Timer, token: run.tokens + 1, until, then: then.clone() };
            transition.facts.push(applied(After::Wait(Arc::new(wait)), consumed(run, returned)));
        }
        Outcome::Spawn { .. } => spawn(run, returned, now, transition)?,
        Outcome::Suspend { seen } => suspend(run, returned, *seen, transition)?,
        Outcome::Done { result } => {
            transition.facts.push(applied(After::Finished, consumed(run, returned)));
            finish(run, index, result, now, transition);
        }
        Outcome::Cancelled if run.cancelling.is_none() => {
            return Err(Refusal::invalid("outcome", "a run that is being cancelled", "one that is not"));
        }
        Outcome::Cancelled => {
            transition.facts.push(applied(After::Finished, Vec::new()));
            cancel::finish(run, transition);
        }
        Outcome::Stop { .. } => {
            transition.facts.push(applied(After::Finished, consumed(run, returned)));
            super::end(run, Ended { status: Status::Failed, result: None, error: None, request: None }, transition);
        }
        Outcome::ContinueAsNew { .. } => {
            update::leave(run, index, transition);
            wait::leave(run, index, transition);
            record::disarm(run, index, transition);
            transition.facts.push(applied(After::Continue, consumed(run, returned)));
            let first = run.planned_step(usize::from(index)).cloned();
            transition.facts.push(scheduled(first, None));
        }
    }
    Ok(())
}

/// Whether the cursor does not come back to this visit of the step, so that nobody is asked for it any more.
fn leaves(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Next { .. } | Outcome::Spawn { .. } | Outcome::Done { .. } | Outcome::ContinueAsNew { .. } => true,
        Outcome::Await { then, .. } | Outcome::Sleep { then, .. } => then.is_some(),
        Outcome::Replay { .. } | Outcome::Suspend { .. } | Outcome::Cancelled | Outcome::Stop { .. } => false,
    }
}

/// Starts children, and waits for them if there are any.
fn spawn(run: &Run, returned: &Returned<'_>, now: Timestamp, transition: &mut Transition) -> Result<(), Refusal> {
    let Returned { index, cursor, outcome, .. } = *returned;
    let Outcome::Spawn { children, then, join, deadline, .. } = outcome else {
        return Ok(());
    };
    let wait = child::spawn(run, index, cursor, children, *join, now, transition)?;
    let consumed = consumed(run, returned);
    match wait {
        None => {
            transition.facts.push(Fact::Applied(Applied { cursor: index, consumed, then: After::Step }));
            let (turn, step) = (cursor.turn + 1, Some(then.clone()));
            transition.facts.push(Fact::Scheduled(Scheduled { cursor: index, turn, step, visible_at: None }));
        }
        Some(kind) => {
            let until = deadline.map(|moment| moment.from(now));
            let wait = Wait { kind, token: run.tokens + 1, until, then: Some(then.clone()) };
            let then = After::Wait(Arc::new(wait));
            transition.facts.push(Fact::Applied(Applied { cursor: index, consumed, then }));
        }
    }
    Ok(())
}

/// Parks until an open entry of the ledger ends, unless one has ended that the step has not seen.
fn suspend(run: &Run, returned: &Returned<'_>, seen: u32, transition: &mut Transition) -> Result<(), Refusal> {
    let Returned { index, cursor, .. } = *returned;
    if record::ended_after(run, transition) > seen {
        transition.facts.push(Fact::Applied(Applied { cursor: index, consumed: Vec::new(), then: After::Arrived }));
        transition.facts.push(schedule::intent(index, cursor, None));
        return Ok(());
    }
    if !record::open_after(run, index, transition) {
        return Err(Refusal::invalid("suspend", "something in the ledger to wait for", "nothing"));
    }
    let wait = Wait { kind: WaitKind::Ledger, token: run.tokens + 1, until: None, then: None };
    let then = After::Wait(Arc::new(wait));
    transition.facts.push(Fact::Applied(Applied { cursor: index, consumed: Vec::new(), then }));
    Ok(())
}

/// The signals that a progressing outcome uses up: awaited by name, and (unless asked otherwise) presented.
fn consumed(run: &Run, returned: &Returned<'_>) -> Vec<u64> {
    let awaits = &returned.cursor.awaits;
    if awaits.is_empty() {
        return Vec::new();
    }
    let presented = |id: u64| returned.consume == Consume::ByName || id <= returned.seen;
    run.inbox
        .iter()
        .filter(|signal| awaits.contains(&signal.name) && presented(signal.id))
        .map(|signal| signal.id)
        .collect()
}

/// A cursor is done: so is the run when it was the last, else whatever needed it may be scheduled.
fn finish(run: &Run, index: u16, result: &Payload, now: Timestamp, transition: &mut Transition) {
    let open = |(other, cursor): (usize, &Cursor)| {
        other != usize::from(index) && !matches!(cursor.phase, Phase::Finished { .. })
    };
    if !run.cursors.iter().enumerate().any(open) {
        let result = (run.cursors.len() > 1).then(|| results(run, index, result));
        super::end(run, Ended { status: Status::Done, result, error: None, request: None }, transition);
        return;
    }
    let mut after = run.clone();
    after.cursors[usize::from(index)].phase = Phase::Finished { result: result.clone() };
    schedule::missing(&after, now, &mut transition.facts);
}

/// The result of a run of several cursors: each step's result under its name.
fn results(run: &Run, last: u16, result: &Payload) -> Payload {
    let mut text = String::from("{");
    for (index, cursor) in run.cursors.iter().enumerate() {
        let value = match &cursor.phase {
            _ if index == usize::from(last) => result.text(),
            Phase::Finished { result } => result.text(),
            _ => "null",
        };
        if index > 0 {
            text.push(',');
        }
        let step = run.planned_step(index).or(cursor.step.as_ref());
        let name = serde_json::to_string(step.map_or("", |step| &**step)).unwrap_or_default();
        text.push_str(&name);
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    Payload::parse(text).unwrap_or_default()
}

/// A digest of an outcome, to tell a duplicate from a conflict.
#[must_use]
pub fn digest(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Next { step, state } => {
            stable_hash(step.as_bytes()) ^ stable_hash(state.text().as_bytes()).rotate_left(1)
        }
        Outcome::Done { result } => stable_hash(result.text().as_bytes()).rotate_left(2),
        other => stable_hash(serde_json::to_string(other).unwrap_or_default().as_bytes()),
    }
}

pub(super) fn apply(run: &mut Run, completed: &Completed, meta: Meta) {
    let Some(cursor) = run.cursors.get_mut(usize::from(completed.cursor)) else {
        return;
    };
    let seen = match &cursor.phase {
        Phase::Claimed(claim) => claim.seen,
        _ => run.signals,
    };
    let token = super::claimant_token(cursor).unwrap_or(TokenHash(0));
    cursor.completion = Some(Completion { claim: completed.claim, digest: sealed(digest(&completed.outcome), token) });
    cursor.phase = Phase::Completed {
        claim: completed.claim,
        outcome: completed.outcome.clone(),
        consume: completed.consume,
        seen,
    };
    if let Some(by) = &cursor.claimant {
        run.last_executed = Some(Executed { by: by.owner.clone(), at: meta.at });
    }
    if let Some(error) = &completed.error {
        run.last_error = Some(error.clone());
    }
}

pub(super) fn apply_outcome(run: &mut Run, applied: &Applied, meta: Meta) {
    let Some(cursor) = run.cursors.get_mut(usize::from(applied.cursor)) else {
        return;
    };
    let Phase::Completed { outcome, .. } = &cursor.phase else {
        return;
    };
    let outcome = outcome.clone();
    if let Some(last) = applied.consumed.iter().max() {
        run.last_signal = Some(*last);
        run.inbox.retain(|signal| !applied.consumed.contains(&signal.id));
    }
    match &*outcome {
        Outcome::Next { state, .. }
        | Outcome::Replay { state, .. }
        | Outcome::Await { state, .. }
        | Outcome::Sleep { state, .. }
        | Outcome::Spawn { state, .. } => run.state = state.clone(),
        Outcome::ContinueAsNew { input } => run.state = input.clone(),
        Outcome::Done { .. } | Outcome::Stop { .. } | Outcome::Suspend { .. } | Outcome::Cancelled => {}
    }
    match &*outcome {
        Outcome::Await { signals, .. } => cursor.awaits.clone_from(signals),
        _ => cursor.awaits.clear(),
    }
    cursor.woken_by = None;
    if applied.then == After::Continue {
        run.begun_at = meta.at;
    }
    apply_after(run, applied, &outcome);
}

fn apply_after(run: &mut Run, applied: &Applied, outcome: &Outcome) {
    let cursor = &mut run.cursors[usize::from(applied.cursor)];
    match (&applied.then, outcome) {
        (After::Step, Outcome::Next { step, .. } | Outcome::Spawn { then: step, .. }) => {
            wake::enter(cursor, step.clone());
            cursor.phase = Phase::Planned { visible_at: None };
        }
        (After::Arrived, Outcome::Await { then, .. }) => {
            if let Some(step) = then {
                wake::enter(cursor, step.clone());
            }
            cursor.woken_by = Some(crate::WakeReason::Signal);
            cursor.phase = Phase::Planned { visible_at: None };
        }
        (After::Arrived, Outcome::Suspend { .. }) => {
            cursor.woken_by = Some(crate::WakeReason::Ledger);
            cursor.phase = Phase::Planned { visible_at: None };
        }
        (After::Replay, _) => {
            cursor.retries += 1;
            cursor.phase = Phase::Planned { visible_at: None };
        }
        (After::Wait(wait), _) => {
            run.tokens = wait.token;
            cursor.phase = Phase::Waiting(wait.clone());
        }
        (After::Continue, _) => {
            run.continuations += 1;
            let first = run.planned_step(usize::from(applied.cursor)).cloned();
            let cursor = &mut run.cursors[usize::from(applied.cursor)];
            cursor.visit += 1;
            (cursor.retries, cursor.reclaims) = (0, 0);
            cursor.step = first;
            cursor.phase = Phase::Planned { visible_at: None };
        }
        (After::Finished, Outcome::Done { result }) => {
            if run.cursors.len() == 1 {
                run.result = Some(result.clone());
            }
            run.cursors[usize::from(applied.cursor)].phase = Phase::Finished { result: result.clone() };
        }
        (After::Finished, Outcome::Cancelled) => cursor.phase = Phase::Failed,
        (After::Finished, Outcome::Stop { error }) => {
            run.last_error = Some(Arc::new(error.clone()));
            cursor.phase = Phase::Failed;
        }
        // An outcome and an `after` that do not belong together were never written by `decide`.
        (After::Step | After::Arrived | After::Finished, _) => cursor.phase = Phase::Failed,
    }
}

/// A boxed terminal fact, for tests and tools that build journals by hand.
#[must_use]
pub fn ended(status: Status) -> Fact {
    Fact::Ended(Box::new(Ended { status, result: None, error: None, request: None }))
}
