//! Nothing is called but by one whose claim was durable before: no attempt leaves the engine ahead of its commit. And nothing
//! is called again by one who was given its result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide::Fact;
use abide_kernel::{After, Claimant, OpEnd, OpId, Seq};

use super::{Told, View};
use crate::Violation;
use crate::truth::{Called, Truth};

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    for call in &truth.calls {
        // A late twin of its start may have begun a run anew that was purged: that is another life.
        if view.was_purged(call.run) {
            continue;
        }
        let Some(told) = view.runs.get(&call.run) else {
            return Err(format!("calls: {} called something, and is lost", call.run));
        };
        if !told.is_whole() {
            continue;
        }
        let Some(claimed) = claimed(told, call) else {
            return Err(format!("calls: {} called something for {} without a durable claim", call.by, call.run));
        };
        if let Some(effect) = call.effect.filter(|effect| has_ended_well(told, effect, claimed, call)) {
            return Err(format!("calls: {} called {effect} of {}, whose result it was given", call.by, call.run));
        }
    }
    Ok(())
}

/// Where whoever called was last given the run before it called, as far as its earlier attempts are known to have ended: one
/// whose claim was taken from it may be at work still, and knows no more than it was given.
fn claimed(told: &Told, call: &Called) -> Option<Seq> {
    let mut last: Option<&Arc<Claimant>> = None;
    let mut given = None;
    let mut at_work: BTreeSet<u32> = BTreeSet::new();
    for row in told.all_rows().take_while(|row| row.seq <= call.head) {
        for fact in &row.facts {
            match fact {
                Fact::Claimed(claimed) => {
                    last = claimed.by.as_ref().or(last);
                    if last.is_some_and(|by| *by.process.as_ref().unwrap_or(&by.owner) == call.by) {
                        if at_work.is_empty() {
                            given = Some(row.seq);
                        }
                        at_work.insert(claimed.claim);
                    }
                }
                Fact::Completed(completed) => drop(at_work.remove(&completed.claim)),
                Fact::Failed(failed) => drop(at_work.remove(&failed.claim)),
                Fact::Returned(claim) => drop(at_work.remove(&claim.claim)),
                _ => {}
            }
        }
    }
    given
}

/// Whether the result of an effect was recorded up to a row, and stood when it was called.
fn has_ended_well(told: &Told, effect: &str, upto: Seq, call: &Called) -> bool {
    let mut ops: BTreeMap<OpId, bool> = BTreeMap::new();
    for row in told.all_rows().take_while(|row| row.seq <= call.head) {
        for fact in &row.facts {
            match fact {
                Fact::Intended(intended) if *intended.key == *effect => drop(ops.entry(intended.op).or_default()),
                Fact::Resulted(resulted) if row.seq <= upto => {
                    if let Some(ended) = ops.get_mut(&resulted.op) {
                        *ended = matches!(resulted.end, OpEnd::Value(_));
                    }
                }
                // It begins anew, and does everything once more.
                Fact::Applied(applied) if applied.then == After::Continue => ops.clear(),
                _ => {}
            }
        }
    }
    ops.values().any(|ended| *ended)
}
