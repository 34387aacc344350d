//! What was acknowledged is there, and stays.

use abide::{Fact, Status};
use abide_kernel::{OpId, Reply, Resolution, UpdateState};

use super::{Told, View};
use crate::Violation;
use crate::truth::{Acknowledged, Truth};

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    truth.acknowledged.iter().try_for_each(|(_, what)| holds(view, what))
}

fn holds(view: &View, what: &Acknowledged) -> Result<(), Violation> {
    let id = what.run();
    // A late twin of its start may have begun a run anew whose record was removed: to that life nothing is owed of the
    // first.
    if view.was_purged(id) {
        return Ok(());
    }
    let Some(told) = view.runs.get(&id) else { return Err(format!("acknowledged: {id} is lost")) };
    if says(told, what) {
        return Ok(());
    }
    Err(format!("acknowledged: {what:?} is not so: {id} is {:?} with {:?}", told.run.status(), told.run.result))
}

/// Whether a run's journal says what somebody was told.
fn says(told: &Told, what: &Acknowledged) -> bool {
    let run = &told.run;
    // Of rows that were emptied before anybody saw them nothing is known.
    let has =
        |wanted: &dyn Fn(&Fact) -> bool| !told.is_whole() || told.all_rows().flat_map(|row| &row.facts).any(wanted);
    match what {
        Acknowledged::Started { workflow, input, .. } => {
            *run.started.spec.workflow == **workflow && run.started.spec.input.text() == input.to_string()
        }
        Acknowledged::Purged { .. } => true,
        Acknowledged::Decided { op, choice, .. } => has(&|fact| match fact {
            Fact::Decided(decided) => {
                (decided.op, decided.choice, decided.actor.as_deref()) == (*op, *choice, Some("ada"))
            }
            _ => false,
        }),
        Acknowledged::Signalled { dedup, .. } => {
            has(&|fact| matches!(fact, Fact::SignalReceived(signal) if signal.dedup.as_deref() == Some(dedup)))
        }
        Acknowledged::Reported { claim, .. } => has(&|fact| ends(fact, *claim)),
        Acknowledged::Cancelled { .. } => run.status() == Status::Cancelled || run.cancelling.is_some(),
        Acknowledged::Updated { dedup, answer, .. } => {
            let known = run.updates.iter().find(|update| update.dedup.as_deref() == Some(dedup));
            known.is_some_and(|update| match &update.state {
                UpdateState::Answered { reply: Reply::Value(value), .. } => value.text() == answer.to_string(),
                _ => false,
            })
        }
        Acknowledged::Ended { result, .. } => {
            run.status() == Status::Done && run.result.as_ref().map(|found| found.text()) == Some(result)
        }
        Acknowledged::Resolved { key, again, .. } => has(&|fact| match fact {
            Fact::Resolved(resolved) => {
                (resolved.how == Resolution::Retry) == *again && has(&|fact| begins(fact, resolved.op, key))
            }
            _ => false,
        }),
    }
}

/// Whether a fact says how an attempt under this claim ended.
fn ends(fact: &Fact, claim: u32) -> bool {
    match fact {
        Fact::Completed(completed) => completed.claim == claim,
        Fact::Failed(failed) => failed.claim == claim,
        _ => false,
    }
}

/// Whether a fact begins an entry of the ledger under this key.
fn begins(fact: &Fact, op: OpId, key: &str) -> bool {
    matches!(fact, Fact::Intended(intended) if intended.op == op && *intended.key == *key)
}
