//! Every run's journal is whole: no revision is missing, none stands twice, and time does not run backwards.

use abide::{Row, Run, RunId};

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        for pair in told.rows.windows(2) {
            let [before, row] = pair else { continue };
            if row.rev.0 != before.rev.0 + 1 || row.prior != before.seq {
                return Err(format!("journal: {id} has {:?} after {:?}", row.rev, before.rev));
            }
            if row.at < before.at {
                return Err(format!("journal: {id} goes back in time at {:?}", row.rev));
            }
        }
    }
    Ok(())
}

/// A journal that begins anew says of the run what the rows before say, where those were seen.
pub(crate) fn is_compacted(id: &RunId, before: &[Row], anew: &Row) -> Result<(), Violation> {
    let dense = is_dense(before.iter().chain([anew]));
    let Some((first, rest)) = before.split_first().filter(|_| dense) else { return Ok(()) };
    let (Ok(mut run), Ok(whole)) = (Run::begin(first), Run::begin(anew)) else {
        return Err(format!("journal: {id} was compacted at {:?}, and cannot be read", anew.rev));
    };
    rest.iter().chain([anew]).for_each(|row| run.apply_row(row));
    if run == whole { Ok(()) } else { Err(format!("journal: {id} was compacted to {whole:?}, and was {run:?}")) }
}

/// Whether no revision is missing.
pub(crate) fn is_dense<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> bool {
    rows.clone().zip(rows.skip(1)).all(|(before, row)| before.rev.0 + 1 == row.rev.0)
}
