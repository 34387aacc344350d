//! Heartbeat: a worker that is still at it keeps its lease.

use super::Transition;
use crate::{Fact, Heartbeat, Phase, Refusal, Run, Timestamp, TokenHash};

/// Extends the lease of `claim`. The fact is written only when a third of the lease has passed since the last
/// one that was journaled: in between, the extension lives in memory and a take-over re-arms the claim anyway.
///
/// # Errors
/// When the fence is not the current one, or the lease has ended.
pub fn decide(run: &Run, claim: u32, token: TokenHash, now: Timestamp) -> Result<(Timestamp, Transition), Refusal> {
    let index = super::fenced(run, claim, token, now)?;
    let cursor = &run.cursors[usize::from(index)];
    let lease_ms = cursor.claimant.as_ref().map_or(0, |by| by.lease_ms);
    let lease_until = now.after(lease_ms);
    let journaled = match &cursor.phase {
        Phase::Claimed(claim) => claim.lease_until,
        _ => now,
    };
    let mut transition = Transition::default();
    if lease_until.since(journaled) >= lease_ms / 3 && lease_until > journaled {
        transition.facts.push(Fact::Heartbeat(Heartbeat { cursor: index, claim, lease_until }));
    }
    Ok((lease_until, transition))
}

/// Extends a lease in memory only.
pub fn extend(run: &mut Run, claim: u32, until: Timestamp) {
    for cursor in &mut run.cursors {
        if let Phase::Claimed(held) = &mut cursor.phase
            && held.number == claim
        {
            held.extended_until = held.extended_until.max(until);
        }
    }
}

pub(super) fn apply(run: &mut Run, beat: Heartbeat) {
    if let Some(cursor) = run.cursors.get_mut(usize::from(beat.cursor))
        && let Phase::Claimed(claim) = &mut cursor.phase
        && claim.number == beat.claim
    {
        claim.lease_until = beat.lease_until;
    }
}
