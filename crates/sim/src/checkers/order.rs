//! Signals are numbered as they were accepted, without a gap.

use abide::Fact;

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        let signals = told.rows.iter().flat_map(|row| &row.facts).filter_map(|fact| match fact {
            Fact::SignalReceived(signal) => Some(signal.id),
            _ => None,
        });
        let mut last = None;
        for signal in signals {
            if last.is_some_and(|last: u64| signal != last + 1) {
                return Err(format!("order: {id} has signal {signal} after {last:?}"));
            }
            last = Some(signal);
        }
    }
    Ok(())
}
