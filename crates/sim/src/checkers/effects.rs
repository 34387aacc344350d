//! What must not happen twice by itself does not: every call has an intent of its own that was durable before, and a second
//! intent of one effect follows somebody's word, or an error after which it may be tried again.

use std::collections::BTreeMap;

use abide::{Fact, Policy, RunId};
use abide_kernel::{OpEnd, OpId, OpKind, Resolution};

use super::{Told, View};
use crate::Violation;
use crate::truth::Truth;

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    let mut calls: BTreeMap<(RunId, Policy), usize> = BTreeMap::new();
    for call in truth.calls.iter().filter(|call| !call.policy.replay_safe()) {
        *calls.entry((call.run, call.policy)).or_default() += 1;
    }
    for ((id, policy), calls) in calls {
        // A late twin of its start may have begun a run anew that was purged: that is another life.
        let Some(told) = view.runs.get(&id).filter(|_| !view.was_purged(id)) else { continue };
        if !told.is_whole() {
            continue;
        }
        let intents = intents(told, policy).map_err(|op| format!("effects: {id} began entry {op} again by itself"))?;
        if calls > intents {
            return Err(format!("effects: {id} has {calls} calls that are {policy:?}, and {intents} intents"));
        }
    }
    Ok(())
}

/// How often effects of a policy were about to begin. The first that began again without a reason is an error.
fn intents(told: &Told, policy: Policy) -> Result<usize, OpId> {
    let mut begun = 0;
    // For each effect, whether it may begin.
    let mut free: BTreeMap<OpId, bool> = BTreeMap::new();
    for fact in told.all_rows().flat_map(|row| &row.facts) {
        match fact {
            Fact::Intended(intended) => {
                let OpKind::Effect(effect) = &intended.kind else { continue };
                if effect.policy != policy {
                    continue;
                }
                if free.insert(intended.op, false) == Some(false) {
                    return Err(intended.op);
                }
                begun += 1;
            }
            Fact::Resolved(resolved) if resolved.how == Resolution::Retry => drop(free.insert(resolved.op, true)),
            Fact::Retrying(retrying) => drop(free.insert(retrying.op, true)),
            Fact::Resulted(resulted) if resulted.end == OpEnd::Reopened => drop(free.insert(resulted.op, true)),
            _ => {}
        }
    }
    Ok(begun)
}
