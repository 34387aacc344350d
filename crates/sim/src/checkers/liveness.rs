//! In a healed world every run comes to its end.

use abide::{RunId, Status};

use crate::Violation;

/// After so many rounds, what has not ended never will.
pub(crate) fn ended(rounds: u32, open: &[(RunId, Status)], nodes: &str) -> Result<(), Violation> {
    if open.is_empty() {
        return Ok(());
    }
    Err(format!("liveness: after {rounds} rounds without faults these have not ended: {open:?}; by node: {nodes}"))
}
