//! A child is counted once. A join ends when it is satisfied, by rules that are written here once more: not before, and not by
//! its deadline when it was satisfied already.

use std::collections::BTreeSet;

use abide::{Fact, Join, Run, RunId, Status, WakeReason};
use abide_kernel::{ChildEnd, Phase, WaitKind};

use super::View;
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
        told.follow(|run, _, fact| match woken_wrongly(run, fact) {
            Some(what) => Err(format!("joins: {id} was woken {what}")),
            None => Ok(()),
        })?;
    }
    Ok(())
}

/// In a world that has come to its end every parent knows of every child of its own that it waited for, or ended first.
pub(crate) fn nobody_waits(view: &View) -> Result<(), Violation> {
    let open = |id: &RunId| view.runs.get(id).is_some_and(|child| child.run.end.is_none());
    for (id, told) in view.runs.iter().filter(|(_, told)| told.run.end.is_none()) {
        if let Some(child) = told.run.children.iter().find(|child| child.end.is_none() && !open(&child.id)) {
            return Err(format!("joins: {id} waits for {}, which has ended", child.id));
        }
    }
    Ok(())
}

/// How a wait for children ended that should not have ended so.
fn woken_wrongly(run: &Run, fact: &Fact) -> Option<String> {
    let Fact::Woken(woken) = fact else { return None };
    let Phase::Waiting(wait) = &run.cursors[usize::from(woken.cursor)].phase else { return None };
    let WaitKind::Children(barrier) = &wait.kind else { return None };
    let (mut open, mut well, mut badly) = (0, 0, 0);
    for child in run.children.iter().filter(|child| child.barrier == Some(wait.token)) {
        match &child.end {
            None => open += 1,
            Some(ChildEnd::Ended { status: Status::Done, .. }) => well += 1,
            Some(ChildEnd::Ended { .. }) => badly += 1,
            // It counts as nothing but that nobody waits for it.
            Some(ChildEnd::Answered(_)) => {}
        }
    }
    let satisfied = open == 0
        || match barrier.join {
            Join::AllTerminal => false,
            Join::AllSucceeded => badly > 0,
            Join::Any => well > 0,
            Join::Quorum(k) => well >= k || well + open < k,
        };
    let how = format!("with {open} open, {well} well and {badly} otherwise, under {:?}", barrier.join);
    match woken.by {
        WakeReason::Children if !satisfied => Some(format!("too early, {how}")),
        WakeReason::Deadline if satisfied => Some(format!("by its deadline, {how}")),
        _ => None,
    }
}
