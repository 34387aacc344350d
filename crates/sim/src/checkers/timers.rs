//! What waits for an instant is not woken before it.

use abide::{Fact, Run, WakeReason};
use abide_kernel::Phase;

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        let Ok(mut run) = Run::begin(&told.rows[0]) else { continue };
        for row in &told.rows[1..] {
            for fact in &row.facts {
                if let Fact::Woken(woken) = fact
                    && matches!(woken.by, WakeReason::Timer | WakeReason::Deadline)
                    && let Phase::Waiting(wait) = &run.cursors[usize::from(woken.cursor)].phase
                    && let Some(until) = wait.until
                    && row.at < until
                {
                    return Err(format!("timers: {id} was woken at {:?}, and waited until {until:?}", row.at));
                }
                run.apply(fact, abide_kernel::Meta { seq: row.seq, at: row.at });
            }
            run.rev = row.rev;
        }
    }
    Ok(())
}
