//! Start: a run begins, is found again, or is refused.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use smallvec::{SmallVec, smallvec};

use super::{Transition, schedule};
use serde::{Deserialize, Serialize};

use crate::{
    Cursor, Fact, OnConflict, Parent, Payload, Phase, RequestId, Run, RunId, StartSpec, Started, Str, Timestamp, mix,
    run::RUN_FORMAT,
};

/// What a start was answered with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StartAnswer {
    /// A new run.
    Created(RunId),
    /// The run that has the key, with the same input.
    Reused(RunId),
    /// The key is taken.
    Rejected {
        /// By this run.
        by: RunId,
        /// Why it could not be reused.
        reason: RejectReason,
    },
}

/// Why a start was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RejectReason {
    /// The caller asked for rejection on conflict.
    KeyTaken,
    /// The run that has the key was started with other input.
    OtherInput,
}

impl RejectReason {
    /// The word for the reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyTaken => "key_taken",
            Self::OtherInput => "other_input",
        }
    }
}

/// The fact that begins a run.
#[must_use]
pub fn started(spec: StartSpec, request: RequestId, parent: Option<Parent>) -> Started {
    let input_hash = spec.key.is_some().then(|| spec.input.canonical_hash());
    Started { spec, request, parent, input_hash, reserves: None, reservation: None }
}

/// The id of the record that holds a run's key, where that is not in the run's own shard.
#[must_use]
pub fn reservation_id(id: RunId, spec: &StartSpec, request: RequestId) -> RunId {
    // Mixed, so that it meets no run whose request was made beside this one.
    let entropy = u128::from(mix((id.0 as u64).rotate_left(32) ^ u64::from(id.slot().0)));
    RunId::new(id.made_at(), spec.admission_slot(request), entropy)
}

/// How the record begins that holds a run's key.
#[must_use]
pub fn held(id: RunId, started: &Started) -> Started {
    let mut held = started.clone();
    held.reserves = Some(id);
    held.reservation = None;
    held.parent = None;
    // The run's own deadline ends the run, which frees the key; the record needs only the hash of the input.
    held.spec.deadline = None;
    held.spec.input = Payload::null();
    held
}

/// The facts of a new run: it began, and its first attempts may be claimed.
#[must_use]
pub fn decide(id: RunId, started: Started, now: Timestamp) -> Transition {
    let run = begin(id, &started, now);
    let mut transition = Transition::of([Fact::Started(Box::new(started))]);
    schedule::missing(&run, now, &mut transition.facts);
    transition
}

/// What to answer when `holder` occupies the key that `spec` asks for.
#[must_use]
pub fn conflict(holder: &Run, spec: &StartSpec, request: RequestId) -> StartAnswer {
    let by = holder.started.reserves.unwrap_or(holder.id);
    if holder.started.request == request {
        return StartAnswer::Created(by);
    }
    let on_conflict = spec.key.as_ref().map_or(OnConflict::Reject, |key| key.on_conflict);
    match on_conflict {
        OnConflict::Reject => StartAnswer::Rejected { by, reason: RejectReason::KeyTaken },
        OnConflict::Reuse if holder.started.input_hash == Some(spec.input.canonical_hash()) => StartAnswer::Reused(by),
        OnConflict::Reuse => StartAnswer::Rejected { by, reason: RejectReason::OtherInput },
    }
}

/// The run as its first fact makes it.
#[must_use]
pub fn begin(id: RunId, started: &Started, at: Timestamp) -> Run {
    let spec = &started.spec;
    let visible_at = spec.eligible_at.filter(|eligible| *eligible > at);
    let cursor = |step: Option<Str>, needs: Vec<Str>| Cursor {
        step,
        needs,
        visit: 1,
        turn: 0,
        retries: 0,
        reclaims: 0,
        phase: Phase::Planned { visible_at },
        awaits: Vec::new(),
        woken_by: None,
        claimant: None,
        completion: None,
    };
    let cursors: SmallVec<[Cursor; 1]> = match spec.steps.as_slice() {
        _ if started.reserves.is_some() => SmallVec::new(),
        [] => smallvec![cursor(None, Vec::new())],
        steps => steps.iter().map(|planned| cursor(Some(planned.step.clone()), planned.needs.clone())).collect(),
    };
    Run {
        format: RUN_FORMAT,
        id,
        epoch: 0,
        rev: crate::Rev(0),
        compacted: crate::Rev(0),
        created_at: at,
        begun_at: at,
        updated_at: at,
        fingerprint: spec.fingerprint,
        first_step: spec.steps.first().map(|planned| planned.step.clone()),
        state: spec.input.clone(),
        published: None,
        cursors,
        claims: 0,
        signals: 0,
        tokens: 0,
        inbox: Vec::new(),
        dedup: Vec::new(),
        last_signal: None,
        updates_seen: 0,
        updates: Vec::new(),
        children: Vec::new(),
        manual: Arc::default(),
        ops: Arc::default(),
        ops_dropped: 0,
        ops_ended: 0,
        ops_seen: 0,
        open: Vec::new(),
        cancelling: None,
        taken: Vec::new(),
        orphaned: false,
        begun: false,
        continuations: 0,
        result: None,
        last_error: None,
        last_executed: None,
        progress: None,
        key_freed: false,
        end: None,
        anomalies: Vec::new(),
        started: Arc::new(started.clone()),
    }
}
