//! A cursor has one claim at a time, and a claim ends once.

use std::collections::BTreeMap;

use abide::Fact;

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        let mut live: BTreeMap<u16, u32> = BTreeMap::new();
        let mut known = false;
        for fact in told.rows.iter().flat_map(|row| &row.facts) {
            let ended = match fact {
                Fact::Compacted(_) => {
                    // Claims of before are not told.
                    known = true;
                    None
                }
                Fact::Claimed(claimed) => {
                    if let Some(before) = live.insert(claimed.cursor, claimed.claim) {
                        return Err(format!("claims: {id} was claimed by {} under {before}", claimed.claim));
                    }
                    None
                }
                Fact::Expired(claim) | Fact::Returned(claim) => Some((claim.cursor, claim.claim)),
                Fact::Completed(completed) => Some((completed.cursor, completed.claim)),
                Fact::Failed(failed) => Some((failed.cursor, failed.claim)),
                Fact::Ended(_) => {
                    live.clear();
                    None
                }
                _ => None,
            };
            if let Some((cursor, claim)) = ended
                && live.remove(&cursor) != Some(claim)
                && !known
            {
                return Err(format!("claims: {id} has the end of claim {claim}, which was not live"));
            }
        }
    }
    Ok(())
}
