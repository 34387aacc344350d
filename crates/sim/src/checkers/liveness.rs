//! In a healed world every run comes to its end, and everything comes to rest.

use abide::{RunId, Status};

use crate::Violation;

/// After so many rounds, what has not ended never will, and what is on its way still never arrives.
pub(crate) fn ended(rounds: u32, open: &[(RunId, Status)], unrest: &[String], nodes: &str) -> Result<(), Violation> {
    if open.is_empty() && unrest.is_empty() {
        return Ok(());
    }
    let most = unrest.len().min(5);
    let unrest = &unrest[..most];
    Err(format!(
        "liveness: after {rounds} rounds without faults these have not ended: {open:?}, and there is {unrest:?}; by node: {nodes}"
    ))
}
