//! Claim: a worker takes an attempt under a lease, or gives it back unused.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Transition;
use crate::{
    Claim, ClaimRef, Claimant, Claimed, Fact, Fingerprint, Meta, Phase, Pinned, Refusal, Run, Str, Timestamp, TokenHash,
};

/// A workflow definition that a worker has: what a run it claims is pinned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The workflow's name.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// The fingerprint of the code.
    pub fingerprint: Fingerprint,
    /// Its first step.
    pub first_step: Str,
}

/// Claims the attempt at `cursor` for a worker that has `definition`.
///
/// # Errors
/// When the attempt is held by another, is not visible yet, or the run has ended.
pub fn decide(
    run: &Run,
    cursor: u16,
    by: &Arc<Claimant>,
    definition: &Definition,
    now: Timestamp,
) -> Result<Transition, Refusal> {
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    let Some(at) = run.cursors.get(usize::from(cursor)) else {
        return Err(Refusal::invalid("cursor", "a cursor of the run", alloc::format!("{cursor}")));
    };
    match &at.phase {
        Phase::Scheduled { visible_at, .. } if *visible_at <= now => {}
        Phase::Scheduled { visible_at, .. } => {
            return Err(Refusal::AttemptNotVisible { visible_at: *visible_at });
        }
        Phase::Claimed(claim) => {
            return Err(Refusal::ActiveClaim { claim: claim.number, lease_until: claim.until() });
        }
        _ => return Err(Refusal::invalid("claim", "an attempt that is scheduled", "none")),
    }
    let mut transition = Transition::default();
    if run.fingerprint.is_none() || run.first_step.is_none() {
        let pinned = Pinned { fingerprint: definition.fingerprint, step: definition.first_step.clone() };
        transition.facts.push(Fact::Pinned(pinned));
    }
    // Naming the claimant again in every row would be a third of it.
    let same = at.claimant.as_ref().is_some_and(|before| Arc::ptr_eq(before, by) || before == by);
    let by = (!same).then(|| by.clone());
    transition.facts.push(Fact::Claimed(Claimed { cursor, claim: run.claims + 1, by }));
    Ok(transition)
}

/// Gives back a claim whose step never began, so that it does not count as a delivery.
///
/// # Errors
/// When the fence is not the current one.
pub fn give_back(run: &Run, claim: u32, token: TokenHash, now: Timestamp) -> Result<Transition, Refusal> {
    let cursor = super::fenced(run, claim, token, now)?;
    Ok(Transition::of([Fact::Returned(ClaimRef { cursor, claim })]))
}

pub(super) fn apply_pinned(run: &mut Run, pinned: &Pinned) {
    run.fingerprint = Some(pinned.fingerprint);
    if run.first_step.is_none() {
        run.first_step = Some(pinned.step.clone());
    }
    for cursor in &mut run.cursors {
        if cursor.step.is_none() {
            cursor.step = Some(pinned.step.clone());
        }
    }
}

pub(super) fn apply(run: &mut Run, claimed: &Claimed, meta: Meta) {
    let Some(cursor) = run.cursors.get_mut(usize::from(claimed.cursor)) else {
        return;
    };
    let (visible_at, arrival) = match cursor.phase {
        Phase::Scheduled { visible_at, arrival } => (visible_at, arrival),
        _ => (meta.at, meta.seq),
    };
    if let Some(by) = &claimed.by {
        cursor.claimant = Some(by.clone());
    }
    let lease_ms = cursor.claimant.as_ref().map_or(0, |by| by.lease_ms);
    run.claims = claimed.claim;
    cursor.phase = Phase::Claimed(Claim {
        number: claimed.claim,
        lease_until: meta.at.after(lease_ms),
        extended_until: Timestamp::default(),
        visible_at,
        arrival,
        seen: run.signals,
    });
}

pub(super) fn apply_returned(run: &mut Run, returned: ClaimRef) {
    let Some(cursor) = run.cursors.get_mut(usize::from(returned.cursor)) else {
        return;
    };
    if let Phase::Claimed(claim) = &cursor.phase {
        cursor.phase = Phase::Scheduled { visible_at: claim.visible_at, arrival: claim.arrival };
    }
}
