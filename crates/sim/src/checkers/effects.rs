//! What must not happen twice by itself does not.

use std::collections::BTreeMap;

use abide::{Fact, Policy};

use super::View;
use crate::Violation;
use crate::truth::Truth;

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    let mut calls: BTreeMap<&str, u32> = BTreeMap::new();
    for call in truth.calls.iter().filter(|call| matches!(call.policy, Policy::UnsafeOnce | Policy::Reconcile)) {
        *calls.entry(&call.key).or_default() += 1;
        // A late twin of its start may have begun a run anew that was purged: that is another life.
        let Some(told) = view.runs.get(&call.run).filter(|_| !truth.purged.contains(&call.run)) else { continue };
        if told.run.compacted.0 > 0 {
            continue;
        }
        let allowed =
            told.rows.iter().flat_map(|row| &row.facts).filter(|fact| matches!(fact, Fact::Resolved(_))).count();
        // A call that failed in a way that may be tried again is known not to have taken place.
        let failed = told.rows.iter().flat_map(|row| &row.facts).filter(|fact| matches!(fact, Fact::Failed(_))).count();
        let most = 1 + allowed + failed;
        if calls[&*call.key] as usize > most {
            return Err(format!(
                "effects: {} was called {} times, at most {most} were allowed",
                call.key, calls[&*call.key]
            ));
        }
    }
    Ok(())
}
