//! Anomalies: inputs that contradict the facts. They are recorded, bounded, and never obeyed.

use alloc::boxed::Box;
use alloc::string::ToString;

use crate::{Anomaly, Fact, Meta, Refusal, Run, SeenAnomaly, limits::ANOMALIES_MAX};

/// The fact of an anomaly, unless the run holds as many as it may.
#[must_use]
pub fn fact(run: &Run, kind: &str, detail: &str) -> Option<Fact> {
    let room = run.anomalies.len() < ANOMALIES_MAX;
    room.then(|| Fact::Anomaly(Box::new(Anomaly { kind: kind.into(), detail: detail.into() })))
}

/// The anomaly that a refused lifecycle message stands for; `None` when the refusal is an ordinary answer.
#[must_use]
pub fn of_refusal(run: &Run, refusal: &Refusal) -> Option<Fact> {
    let kind = match refusal {
        Refusal::StaleClaim { .. } | Refusal::WrongToken { .. } | Refusal::LeaseExpired { .. } => "stale_claim",
        Refusal::AttemptNotVisible { .. } => "attempt_not_visible",
        Refusal::ActiveClaim { .. } => "active_claim",
        Refusal::ResultNotCompleted { .. } => "result_not_completed",
        Refusal::ConflictingCompletion { .. } => "conflicting_completion",
        Refusal::RunOver { .. } => "run_terminal",
        Refusal::SecondBoundary { .. } => "second_boundary",
        Refusal::StaleBoundary { .. } => "stale_decision",
        Refusal::AlreadyDecided { .. } => "second_decision",
        Refusal::DecisionLate { .. } => "late_decision",
        _ => return None,
    };
    fact(run, kind, &refusal.to_string())
}

pub(super) fn apply(run: &mut Run, anomaly: &Anomaly, meta: Meta) {
    if run.anomalies.len() < ANOMALIES_MAX {
        run.anomalies.push(SeenAnomaly { anomaly: anomaly.clone(), at: meta.at });
    }
}
