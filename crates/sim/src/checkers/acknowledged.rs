//! What was acknowledged is there, and stays.

use abide::{Fact, Status};
use abide_kernel::{OpId, Reply, Resolution, UpdateState};

use super::{Told, View};
use crate::Violation;
use crate::truth::{Acknowledged, Truth};
use crate::workflows::AGAIN;

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
        Acknowledged::Started { workflow, input, key, tenant, request, created, .. } => {
            let spec = &run.started.spec;
            let named = (&*spec.workflow, &*spec.namespace) == (*workflow, *tenant);
            let keyed = spec.key.as_ref().map(|key| &*key.key) == key.as_deref();
            named && keyed && spec.input.text() == input.to_string() && (!created || run.started.request == *request)
        }
        // Had it been removed, nothing would be looked at.
        Acknowledged::Purged { .. } => false,
        Acknowledged::Over { status, .. } => run.end.as_ref().is_some_and(|end| end.status == *status),
        Acknowledged::Shown { rev, .. } => run.rev >= *rev,
        Acknowledged::Lettered { requeue: true, .. } => has(&|fact| matches!(fact, Fact::Requeued(_))),
        Acknowledged::Lettered { requeue: false, .. } => has(&|fact| match fact {
            Fact::Ended(ended) => ended.error.as_ref().is_some_and(|error| *error.code == *"dead_letter_discarded"),
            _ => false,
        }),
        Acknowledged::Decided { op, choice, .. } => has(&|fact| match fact {
            Fact::Decided(decided) => {
                (decided.op, decided.choice, decided.actor.as_deref()) == (*op, *choice, Some("ada"))
            }
            _ => false,
        }),
        Acknowledged::Signalled { dedup, asked, .. } => has(&|fact| match fact {
            Fact::SignalReceived(signal) => {
                signal.dedup.as_deref() == Some(dedup) && signal.payload.text() == asked.to_string()
            }
            _ => false,
        }),
        Acknowledged::Reported { claim, .. } => has(&|fact| ends(fact, *claim)),
        Acknowledged::Cancelled { .. } => run.status() == Status::Cancelled || run.cancelling.is_some(),
        Acknowledged::Updated { dedup, input, answer, .. } => {
            // It is answered with the sum of what was asked and what the run was given, also after it began anew.
            let given: u64 = run.started.spec.input.text().parse().unwrap_or_default();
            if *answer != input + given && *answer != input + given % AGAIN {
                return false;
            }
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
