//! A child is counted once.

use std::collections::BTreeSet;

use abide::Fact;

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in &view.runs {
        let mut ended = BTreeSet::new();
        for fact in told.rows.iter().flat_map(|row| &row.facts) {
            if let Fact::ChildEnded(child) = fact
                && !ended.insert(child.child)
            {
                return Err(format!("joins: {id} counted {} twice", child.child));
            }
        }
    }
    Ok(())
}
