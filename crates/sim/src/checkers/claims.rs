//! A cursor has one claim at a time, a claim ends once, and none is taken from its holder while its lease lasts.

use std::collections::BTreeMap;

use abide::{Fact, Row, Run, RunId};
use abide_kernel::{ClaimRef, Meta, Phase};

use super::{Told, View};
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed() {
        one_at_a_time(id, told)?;
        not_before_its_time(view, id, told)?;
    }
    Ok(())
}

fn one_at_a_time(id: &RunId, told: &Told) -> Result<(), Violation> {
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
    Ok(())
}

/// A second execution begins when the lease of the first has ended, by the time of the log.
fn not_before_its_time(view: &View, id: &RunId, told: &Told) -> Result<(), Violation> {
    let Ok(mut run) = Run::begin(&told.rows[0]) else { return Ok(()) };
    for row in &told.rows[1..] {
        // Someone's word takes a run from its worker at once, so that what it did is undone; nothing is executed again.
        let taken = row.facts.iter().any(|fact| matches!(fact, Fact::Cancelling(_)));
        for fact in &row.facts {
            if let Fact::Expired(claim) = fact
                && !taken
                && let Some(early) = early(view, &run, row, *claim).max(rearmed(view, told, &run, row, *claim))
            {
                return Err(format!("claims: {id} lost claim {} {early} ms before its lease ended", claim.claim));
            }
            run.apply(fact, Meta { seq: row.seq, at: row.at });
        }
        run.rev = row.rev;
    }
    Ok(())
}

/// By how much a claim was ended before another lease after its shard was taken, where whoever held it may live: nobody can have
/// kept it in between.
fn rearmed(view: &View, told: &Told, run: &Run, row: &Row, claim: ClaimRef) -> Option<u64> {
    let cursor = &run.cursors[usize::from(claim.cursor)];
    let by = cursor.claimant.as_ref().filter(|by| by.process.is_none() || !view.is_alone())?;
    let begun = told.rows.iter().rev().find(|before| before.seq < row.seq && claims(before, claim))?;
    let taken = view.openings(run.id).into_iter().filter(|head| begun.seq <= *head && *head < row.seq).max()?;
    let until = view.written_at(run.id, taken)?.after(by.lease_ms);
    let early = until.since(row.at);
    (early > 0).then_some(early)
}

fn claims(row: &Row, claim: ClaimRef) -> bool {
    row.facts.iter().any(|fact| matches!(fact, Fact::Claimed(claimed) if claimed.claim == claim.claim))
}

/// By how much a claim was ended before its time. Where one process alone has the store, its death ends those of its own
/// workers at once.
fn early(view: &View, run: &Run, row: &Row, claim: ClaimRef) -> Option<u64> {
    let cursor = &run.cursors[usize::from(claim.cursor)];
    let Phase::Claimed(held) = &cursor.phase else { return None };
    let local = cursor.claimant.as_ref().is_some_and(|by| by.process.is_some());
    let early = held.lease_until.since(row.at);
    (early > 0 && !(local && view.is_alone())).then_some(early)
}
