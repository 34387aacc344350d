//! A child is counted once, and a join that waits for all of them ends when all have ended.

use std::collections::BTreeSet;

use abide::{Fact, Join, Run, WakeReason};
use abide_kernel::{Meta, Phase, WaitKind};

use super::{Told, View};
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        let mut ended = BTreeSet::new();
        for fact in told.rows.iter().flat_map(|row| &row.facts) {
            if let Fact::ChildEnded(child) = fact
                && !ended.insert(child.child)
            {
                return Err(format!("joins: {id} counted {} twice", child.child));
            }
        }
        if let Some(open) = woken_early(told) {
            return Err(format!("joins: {id} was woken while {open} of its children had not ended"));
        }
    }
    Ok(())
}

/// How many children had not ended when a join for all of them was over, if any.
fn woken_early(told: &Told) -> Option<usize> {
    let mut run = Run::begin(&told.rows[0]).ok()?;
    for row in &told.rows[1..] {
        for fact in &row.facts {
            if let Fact::Woken(woken) = fact
                && woken.by == WakeReason::Children
                && let Phase::Waiting(wait) = &run.cursors[usize::from(woken.cursor)].phase
                && let WaitKind::Children(barrier) = &wait.kind
                && barrier.join == Join::AllTerminal
            {
                let ours = run.children.iter().filter(|child| child.barrier == Some(wait.token));
                let open = ours.filter(|child| child.end.is_none()).count();
                if open > 0 {
                    return Some(open);
                }
            }
            run.apply(fact, Meta { seq: row.seq, at: row.at });
        }
        run.rev = row.rev;
    }
    None
}
