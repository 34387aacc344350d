//! Nothing is called but by one whose claim was durable before: no attempt leaves the engine ahead of its commit.

use std::sync::Arc;

use abide::Fact;
use abide_kernel::Claimant;

use super::{Told, View};
use crate::Violation;
use crate::truth::{Called, Truth};

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    for call in &truth.calls {
        // A late twin of its start may have begun a run anew that was purged: that is another life.
        if truth.purged.contains(&call.run) {
            continue;
        }
        let Some(told) = view.runs.get(&call.run) else {
            return Err(format!("calls: {} called something, and is lost", call.run));
        };
        // Claims of before it was compacted are not told.
        if told.run.compacted.0 == 0 && !was_claimed(told, call) {
            return Err(format!("calls: {} called something for {} without a durable claim", call.by, call.run));
        }
    }
    Ok(())
}

/// Whether whoever called had been given the run when it called.
fn was_claimed(told: &Told, call: &Called) -> bool {
    let mut last: Option<&Arc<Claimant>> = None;
    let before = told.rows.iter().take_while(|row| row.seq <= call.head);
    before.flat_map(|row| &row.facts).any(|fact| match fact {
        Fact::Claimed(claimed) => {
            last = claimed.by.as_ref().or(last);
            last.is_some_and(|by| *by.process.as_ref().unwrap_or(&by.owner) == call.by)
        }
        _ => false,
    })
}
