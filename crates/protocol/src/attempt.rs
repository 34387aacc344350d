//! Attempts as they travel to a worker, and as a worker in Rust has them again.

use std::sync::Arc;

use abide_kernel as kernel;
use abide_kernel::shard::{Dispatch, WorkerId};
use abide_kernel::{
    Child, ChildAnswer, ChildEnd, Claimant, RequestId, StartSpec, Str, Timestamp, TraceContext, UniqueKey,
};

use crate::{Arrived, Attempt, LedgerEntry, Offspring};

impl From<&Dispatch> for Attempt {
    fn from(dispatch: &Dispatch) -> Self {
        let spec = &dispatch.started.spec;
        let text = |text: &Str| text.to_string();
        let first = dispatch.ops_dropped + 1;
        Self {
            claim: dispatch.claim,
            lease_until: dispatch.lease_until.into(),
            run: dispatch.claim.run,
            workflow: text(&spec.workflow),
            version: spec.version,
            queue: text(&spec.queue),
            key: spec.key.as_ref().map(|key| key.key.to_string()),
            labels: spec.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            epoch: dispatch.epoch,
            step: text(&dispatch.step),
            visit: dispatch.visit,
            attempt: dispatch.retries + dispatch.reclaims + 1,
            retries: dispatch.retries,
            reclaims: dispatch.reclaims,
            woken_by: dispatch.woken_by,
            input: spec.input.clone(),
            state: dispatch.state.clone(),
            published: dispatch.published.clone(),
            progress: dispatch.progress.iter().map(|event| (event.name.to_string(), event.value.clone())).collect(),
            signals: dispatch.signals.iter().map(Into::into).collect(),
            children: dispatch.children.iter().map(Into::into).collect(),
            ledger: (first..).zip(dispatch.ops.iter()).map(|(op, entry)| LedgerEntry::of(op, entry)).collect(),
            next_op: first + dispatch.ops.len() as u32,
            ended: dispatch.ops_ended,
            begun_at: dispatch.begun_at.into(),
            cancelling: dispatch.cancelling,
            traceparent: TraceContext::of_attempt(dispatch.claim, &dispatch.started).to_string(),
        }
    }
}

impl Attempt {
    /// As programs are given it. What did not travel is what no program can ask for.
    #[must_use]
    pub fn into_dispatch(self, namespace: &str, by: &Arc<Claimant>) -> Dispatch {
        let key = |key: String| UniqueKey {
            key: key.into(),
            occupied: kernel::StatusSet::OPEN,
            on_conflict: kernel::OnConflict::Reject,
        };
        let spec = StartSpec {
            // Of the trace alone: the span of the attempt follows from its claim, here as there.
            trace: self.traceparent.parse().ok(),
            namespace: namespace.into(),
            version: self.version,
            queue: self.queue.into(),
            key: self.key.map(key),
            labels: self.labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            ..StartSpec::new(&self.workflow, self.input)
        };
        let request = RequestId::new(Timestamp(0), 0);
        let started =
            kernel::Started { spec, request, parent: None, input_hash: None, reserves: None, reservation: None };
        Dispatch {
            worker: WorkerId(0),
            by: by.clone(),
            claim: self.claim,
            started: Arc::new(started),
            epoch: self.epoch,
            step: self.step.as_str().into(),
            visit: self.visit,
            turn: 0,
            cursor: 0,
            retries: self.retries,
            reclaims: self.reclaims,
            woken_by: self.woken_by,
            state: self.state,
            published: self.published,
            progress: self.progress.into_iter().map(|(name, value)| said(&name, value)).collect(),
            signals: self.signals.into_iter().map(Into::into).collect(),
            children: self.children.into_iter().map(|child| child.into_kernel(&self.step)).collect(),
            ops_dropped: (self.next_op - 1).saturating_sub(self.ledger.len() as u32),
            ops: Arc::new(self.ledger.into_iter().map(Into::into).collect()),
            ops_ended: self.ended,
            begun_at: self.begun_at.0,
            cancelling: self.cancelling,
            eligible_at: self.begun_at.0,
            lease_until: self.lease_until.0,
        }
    }
}

/// What was said of progress; which number it had did not travel.
fn said(name: &str, value: kernel::Payload) -> kernel::ProgressEvent {
    kernel::ProgressEvent { seq: 0, name: name.into(), value, at: Timestamp(0) }
}

impl From<&kernel::Signal> for Arrived {
    fn from(signal: &kernel::Signal) -> Self {
        let name = signal.name.to_string();
        Self { id: signal.id, name, payload: signal.payload.clone(), at: signal.at.into() }
    }
}

impl From<Arrived> for kernel::Signal {
    fn from(arrived: Arrived) -> Self {
        Self { id: arrived.id, name: arrived.name.into(), payload: arrived.payload, at: arrived.at.0 }
    }
}

impl From<&Child> for Offspring {
    fn from(child: &Child) -> Self {
        let mut told = Self {
            run: child.id,
            key: child.key.as_ref().map(ToString::to_string),
            workflow: child.workflow.to_string(),
            status: None,
            state: None,
            result: None,
            error: None,
            existing: None,
            rejected: None,
        };
        match &child.end {
            None => {}
            Some(ChildEnd::Answered(ChildAnswer::Existing(run))) => told.existing = Some(*run),
            Some(ChildEnd::Answered(ChildAnswer::Rejected(reason))) => told.rejected = Some(reason.to_string()),
            Some(ChildEnd::Ended { status, state, result, error, .. }) => {
                told.status = Some(*status);
                told.state = Some(state.clone());
                told.result.clone_from(result);
                told.error = error.as_deref().map(Into::into);
            }
        }
        told
    }
}

impl Offspring {
    fn into_kernel(self, step: &str) -> Child {
        let end = match (self.status, self.existing, self.rejected) {
            (Some(status), _, _) => Some(ChildEnd::Ended {
                status,
                state: self.state.unwrap_or_default(),
                result: self.result,
                error: self.error.map(|error| Arc::new(error.into())),
            }),
            (None, Some(run), _) => Some(ChildEnd::Answered(ChildAnswer::Existing(run))),
            (None, None, Some(reason)) => Some(ChildEnd::Answered(ChildAnswer::Rejected(reason.into()))),
            (None, None, None) => None,
        };
        Child {
            id: self.run,
            key: self.key.map(Into::into),
            workflow: self.workflow.into(),
            input_hash: 0,
            step: step.into(),
            barrier: None,
            op: None,
            admission: None,
            end,
        }
    }
}
