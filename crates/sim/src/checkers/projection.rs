//! Index rows and checkpoints say what the journal says, at every moment: none is ahead of it, none that was written behind
//! differs from the fold of the rows it stands for, and up to a shard's watermark none is missing.

use std::collections::BTreeMap;

use abide::{Run, RunId};
use abide_kernel::shard::Record;
use abide_kernel::{Phase, Rev};
use abide_store::Store;

use super::{Told, View};
use crate::Violation;

/// Index rows that were found to be right.
pub(crate) type Compared = BTreeMap<RunId, Rev>;

/// Compares the index rows that were written since the last look.
pub(crate) fn check(view: &View, compared: &mut Compared) -> Result<(), Violation> {
    let mut wrong = None;
    let mut there: Compared = BTreeMap::new();
    view.store.each_record(|_, record| {
        there.insert(record.run, record.rev);
        if compared.get(&record.run) == Some(&record.rev) || wrong.is_some() {
            return;
        }
        // A purge is a row of the log before its index row goes.
        wrong = match view.runs.get(&record.run) {
            Some(told) => is_so(told, record).err(),
            None if view.was_purged(record.run) => None,
            None => Some("its journal says nothing".into()),
        }
        .map(|what| format!("projection: the index row of {}: {what}", record.run));
    });
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    *compared = there;
    for (id, told) in view.changed() {
        let watermark = view.store.watermark(view.store.map().home(id.slot()));
        let written = told.rows.iter().rev().find(|row| row.seq <= watermark);
        let found = compared.get(id).copied();
        if written.is_some_and(|row| found < Some(row.rev)) {
            return Err(format!("projection: {id} has an index row of {found:?}, behind the watermark {watermark:?}"));
        }
    }
    Ok(())
}

fn is_so(told: &Told, record: &Record) -> Result<(), String> {
    let Some(place) = told.rows.iter().position(|row| row.rev == record.rev) else {
        let begins = told.rows[0].rev;
        // Its journal was compacted since.
        return if record.rev < begins { Ok(()) } else { Err(format!("its journal does not have {:?}", record.rev)) };
    };
    let mut run = Run::begin(&told.rows[0]).map_err(|bad| format!("{bad:?}"))?;
    told.rows[1..=place].iter().for_each(|row| run.apply_row(row));
    let claimed = run.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_)));
    let mut expected = Record::of(run, told.rows[place].seq);
    // Heartbeats in memory move the end of a lease on.
    if claimed && record.due >= expected.due {
        expected.due = record.due;
    }
    if expected == *record {
        return Ok(());
    }
    Err(format!("{record:?} is not what its journal says: {expected:?}"))
}
