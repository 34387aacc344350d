//! Every run's journal is whole: no revision is missing, none stands twice, and time does not run backwards.

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
