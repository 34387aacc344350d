//! Signals are numbered as they were accepted, without a gap: what was sent after another was accepted comes after it. Those of
//! one name are taken in that order.

use std::collections::BTreeMap;

use abide::{Fact, Run, RunId};
use abide_kernel::OpEnd;

use super::{Told, View};
use crate::Violation;
use crate::truth::{Acknowledged, Truth};

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    let mut accepted: BTreeMap<RunId, Vec<(u64, u64, &str)>> = BTreeMap::new();
    for (when, what) in &truth.acknowledged {
        if let Acknowledged::Signalled { run, dedup, asked } = what {
            accepted.entry(*run).or_default().push((*asked, *when, dedup));
        }
    }
    for (id, told) in view.changed() {
        is_dense(told).map_err(|(last, signal)| format!("order: {id} has signal {signal} after {last}"))?;
        told.follow(|run, row, fact| {
            let wrong = || format!("order: {id} takes another signal than the first at rev {}", row.rev.0);
            if takes_in_order(run, fact) { Ok(()) } else { Err(wrong()) }
        })?;
        let Some(accepted) = accepted.get(id).filter(|_| !view.was_purged(*id)) else { continue };
        as_sent(told, accepted).map_err(|what| format!("order: {id} {what}"))?;
    }
    Ok(())
}

fn is_dense(told: &Told) -> Result<(), (u64, u64)> {
    let signals = told.rows.iter().flat_map(|row| &row.facts).filter_map(|fact| match fact {
        Fact::SignalReceived(signal) => Some(signal.id),
        _ => None,
    });
    let mut last = None;
    for signal in signals {
        match last {
            Some(last) if signal != last + 1 => return Err((last, signal)),
            _ => last = Some(signal),
        }
    }
    Ok(())
}

/// Whether what was sent after another was accepted has the greater number.
fn as_sent(told: &Told, accepted: &[(u64, u64, &str)]) -> Result<(), String> {
    let facts = told.all_rows().flat_map(|row| &row.facts);
    let numbers: BTreeMap<&str, u64> = facts
        .filter_map(|fact| match fact {
            Fact::SignalReceived(signal) => Some((signal.dedup.as_deref()?, signal.id)),
            _ => None,
        })
        .collect();
    for (_, accepted_at, first) in accepted {
        for (_, _, second) in accepted.iter().filter(|(asked, ..)| asked >= accepted_at) {
            if let (Some(one), Some(other)) = (numbers.get(first), numbers.get(second))
                && one >= other
            {
                return Err(format!("has {second} as number {other}, and {first}, accepted before, as number {one}"));
            }
        }
    }
    Ok(())
}

/// Whether a wait for a signal ends with the first of that name.
fn takes_in_order(run: &Run, fact: &Fact) -> bool {
    let Fact::Resulted(resulted) = fact else { return true };
    let OpEnd::Signal(taken) = resulted.end else { return true };
    let Some(name) = run.inbox.iter().find(|signal| signal.id == taken).map(|signal| &signal.name) else { return true };
    !run.inbox.iter().any(|signal| signal.name == *name && signal.id < taken)
}
