//! What came while a step executed is not overlooked when it parks, and what it has not seen is not used up.

use abide::{Fact, Run};
use abide_kernel::{After, Applied, Consume, Meta, Outcome, Phase};

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        let Ok(mut run) = Run::begin(&told.rows[0]) else { continue };
        for row in &told.rows[1..] {
            for fact in &row.facts {
                if let Fact::Applied(applied) = fact {
                    applies(&run, applied).map_err(|what| format!("wakes: {id} at rev {}: {what}", row.rev.0))?;
                }
                run.apply(fact, Meta { seq: row.seq, at: row.at });
            }
            run.rev = row.rev;
        }
    }
    Ok(())
}

fn applies(run: &Run, applied: &Applied) -> Result<(), &'static str> {
    let Phase::Completed { outcome, consume, seen, .. } = &run.cursors[usize::from(applied.cursor)].phase else {
        return Ok(());
    };
    if *consume != Consume::ByName && applied.consumed.iter().any(|signal| signal > seen) {
        return Err("a signal that the step had not seen is used up");
    }
    match (&applied.then, &**outcome) {
        (After::Wait(_), Outcome::Await { signals, .. })
            if run.inbox.iter().any(|signal| signals.contains(&signal.name) && signal.id > *seen) =>
        {
            Err("it waits for a signal that is there")
        }
        (After::Wait(_), Outcome::Suspend { seen }) if run.ops_ended > *seen => {
            Err("it waits for its ledger, of which it has not seen everything")
        }
        _ => Ok(()),
    }
}
