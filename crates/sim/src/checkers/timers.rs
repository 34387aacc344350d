//! Nothing happens before its time: what waits for an instant is not woken before it, nor ends in the ledger, is decided by its
//! deadline or tried again. And what has ended does not end once more.

use abide::{Fact, Row, Run, Timestamp, WakeReason};
use abide_kernel::{OpEnd, Phase};

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        told.follow(|run, row, fact| match early(run, row, fact) {
            Some(what) => Err(format!("timers: {id} at rev {}, at {:?}: {what}: {:?}", row.rev.0, row.at, row.facts)),
            None => Ok(()),
        })?;
    }
    Ok(())
}

/// What happens before its time.
fn early(run: &Run, row: &Row, fact: &Fact) -> Option<String> {
    let before = |until: Option<Timestamp>, what: &str| {
        until.filter(|until| row.at < *until).map(|until| format!("{what}, which waits until {until:?}"))
    };
    match fact {
        Fact::Woken(woken) if matches!(woken.by, WakeReason::Timer | WakeReason::Deadline) => {
            match &run.cursors[usize::from(woken.cursor)].phase {
                Phase::Waiting(wait) => before(wait.until, "a wait ends"),
                _ => Some("something wakes that does not wait".into()),
            }
        }
        Fact::Claimed(_) if run.started.spec.eligible_at.is_some_and(|at| row.at < at) => {
            before(run.started.spec.eligible_at, "a run is claimed")
        }
        Fact::Claimed(claimed) => match &run.cursors[usize::from(claimed.cursor)].phase {
            Phase::Scheduled { visible_at, .. } => before(Some(*visible_at), "an attempt is claimed"),
            _ => None,
        },
        Fact::Resulted(resulted) => {
            let op = run.op(resulted.op)?;
            match resulted.end {
                OpEnd::Elapsed if op.due().is_none() => Some(format!("{} elapses, which waits for no instant", op.key)),
                OpEnd::Elapsed => before(op.due(), &op.key),
                OpEnd::Reopened => before(op.due(), &op.key),
                _ => None,
            }
        }
        Fact::Ended(ended) if ended.error.as_ref().is_some_and(|error| *error.code == *"run_deadline") => {
            before(run.started.spec.deadline, "the run ends")
        }
        // By nobody: by the deadline.
        Fact::Decided(decided) if decided.actor.is_none() => before(run.op(decided.op)?.due(), "a decision"),
        _ => None,
    }
}
