//! What must not happen twice by itself does not: every call has an intent of its own that was durable when it
//! began, and a second
//! intent of one effect follows somebody's word, or an error after which it may be tried again.

use std::collections::BTreeMap;

use abide::{Fact, Policy, RunId};
use abide_kernel::{OpEnd, OpId, OpKind, Resolution, Seq};

use super::{Told, View};
use crate::Violation;
use crate::truth::Truth;

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    let mut calls: BTreeMap<(RunId, Policy, Option<&str>), Vec<Seq>> = BTreeMap::new();
    for call in truth.calls.iter().filter(|call| !call.policy.replay_safe()) {
        calls.entry((call.run, call.policy, call.effect)).or_default().push(call.head);
    }
    for ((id, policy, effect), calls) in calls {
        // A late twin of its start may have begun a run anew that was purged: that is another life.
        let Some(told) = view.runs.get(&id).filter(|_| !view.was_purged(id)) else { continue };
        if !told.is_whole() {
            continue;
        }
        let intents =
            intents(told, policy, effect).map_err(|op| format!("effects: {id} began entry {op} again by itself"))?;
        for (before, head) in calls.iter().enumerate() {
            let durable = intents.iter().filter(|seq| *seq <= head).count();
            if durable <= before {
                let nth = before + 1;
                return Err(format!("effects: call {nth} of {effect:?} of {id} had {durable} durable intents"));
            }
        }
    }
    Ok(())
}

/// Where an effect was about to begin. The first time that it began again without a reason is an error.
fn intents(told: &Told, policy: Policy, key: Option<&str>) -> Result<Vec<Seq>, OpId> {
    let mut begun = Vec::new();
    // For each effect, whether it may begin.
    let mut free: BTreeMap<OpId, bool> = BTreeMap::new();
    for (seq, fact) in told.all_rows().flat_map(|row| row.facts.iter().map(|fact| (row.seq, fact))) {
        match fact {
            Fact::Intended(intended) => {
                let OpKind::Effect(effect) = &intended.kind else { continue };
                if effect.policy != policy || key.is_some_and(|key| *intended.key != *key) {
                    continue;
                }
                if free.insert(intended.op, false) == Some(false) {
                    return Err(intended.op);
                }
                begun.push(seq);
            }
            Fact::Resolved(resolved) if resolved.how == Resolution::Retry => drop(free.insert(resolved.op, true)),
            Fact::Retrying(retrying) => drop(free.insert(retrying.op, true)),
            Fact::Resulted(resulted) if resulted.end == OpEnd::Reopened => drop(free.insert(resulted.op, true)),
            _ => {}
        }
    }
    Ok(begun)
}
