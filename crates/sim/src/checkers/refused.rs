//! What was refused was not done: nothing is in a journal more often than somebody asked for it without being told no.

use std::collections::BTreeMap;

use abide::{Fact, Row, RunId, Status};

use super::{Told, View};
use crate::Violation;
use crate::asking::Deed;
use crate::truth::Truth;

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    let asks = |run: RunId, deed: Deed| truth.asks.get(&(run, deed)).copied().unwrap_or_default();
    if let Some(run) = view.purged().find(|run| asks(**run, Deed::Purge) == 0) {
        return Err(format!("refused: the record of {run} was removed, and whoever asked for that was told no"));
    }
    // Children are begun by their parents, and who reserves a key was asked by a run elsewhere.
    let asked_for = |told: &Told| told.run.started.parent.is_none() && !told.run.is_reservation();
    for (id, told) in view.changed().filter(|(_, told)| asked_for(told)) {
        if truth.starts.get(&told.run.started.request).copied().unwrap_or_default() == 0 {
            return Err(format!("refused: {id} began, and whoever asked for it was told no, or nobody asked"));
        }
    }
    // Of a run that began anew after its record was removed, what was asked was asked of both.
    for (id, told) in view.changed().filter(|(id, _)| !view.was_purged(**id)) {
        let mut done: BTreeMap<Deed, u64> = BTreeMap::new();
        for deed in told.all_rows().flat_map(|row| row.facts.iter().filter_map(|fact| deed(told, row, fact))) {
            *done.entry(deed).or_default() += 1;
        }
        for (deed, times) in done {
            let most = asks(*id, deed.clone());
            if times > most {
                return Err(format!(
                    "refused: {deed:?} was done {times} times to {id}, and at most {most} were not refused"
                ));
            }
        }
    }
    Ok(())
}

/// What a fact says was done because somebody asked for it.
fn deed(told: &Told, row: &Row, fact: &Fact) -> Option<Deed> {
    match fact {
        Fact::SignalReceived(signal) => signal.dedup.as_deref().map(|dedup| Deed::Signal(dedup.to_owned())),
        Fact::Decided(decided) => decided.actor.as_ref().map(|_| Deed::Decide),
        Fact::Resolved(_) => Some(Deed::Resolve),
        // A dead letter that is cancelled is put back, so that it can undo what it did.
        Fact::Requeued(_) => {
            let cancelled = row.facts.iter().any(|fact| matches!(fact, Fact::Cancelling(_)));
            (!cancelled).then_some(Deed::Requeue)
        }
        Fact::Ended(ended) if ended.error.as_ref().is_some_and(|error| *error.code == *"dead_letter_discarded") => {
            Some(Deed::Discard)
        }
        // Children are cancelled with their parents, and those that undo what they did say it first.
        Fact::Cancelling(_) => told.run.started.parent.is_none().then_some(Deed::Cancel),
        Fact::Ended(ended) if ended.status == Status::Cancelled && told.run.cancelling.is_none() => {
            told.run.started.parent.is_none().then_some(Deed::Cancel)
        }
        _ => None,
    }
}
