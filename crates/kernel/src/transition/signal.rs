//! Signal: a named message arrives, and wakes the run if it waits for that name.

use alloc::boxed::Box;

use super::wait::{self, Awaited};
use super::{Transition, wake};
use serde::{Deserialize, Serialize};

use crate::limits::{DEDUP_KEYS_MAX, INBOX_SIGNALS_MAX};
use crate::spec::{check_key, check_name, check_payload};
use crate::{
    Dedup, EndedAt, Fact, Got, Meta, OpId, OpKind, OpState, Payload, Phase, Refusal, RequestId, Run, Signal,
    SignalReceived, Str, WaitKind, WakeReason,
};

/// What a sender says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sent {
    /// The signal's name.
    pub name: Str,
    /// What it carries.
    pub payload: Payload,
    /// A key under which it is accepted once.
    pub dedup: Option<Str>,
    /// The request.
    pub request: RequestId,
}

/// What a sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The signal's number within the run.
    pub signal: u64,
    /// Whether it had been accepted before, under the same key or request.
    pub duplicate: bool,
}

/// Accepts a signal.
///
/// # Errors
/// When the run has ended, its inbox is full, or the signal is not acceptable.
pub fn decide(run: &Run, sent: &Sent) -> Result<(Accepted, Transition), Refusal> {
    check_name("signal name", &sent.name)?;
    check_payload("signal payload", &sent.payload)?;
    sent.dedup.iter().try_for_each(|key| check_key("dedup key", key))?;
    // The duplicate is looked for first: a retry of an acknowledged signal gets the first answer, also after the end.
    let same = |seen: &&Dedup| seen.request == sent.request || (seen.key.is_some() && seen.key == sent.dedup);
    if let Some(seen) = run.dedup.iter().find(same) {
        return Ok((Accepted { signal: seen.signal, duplicate: true }, Transition::default()));
    }
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    // What waits got and the code has not seen may come back to the inbox, and must fit. The ledger is only counted when it
    // could matter.
    if run.inbox.len() + run.ops.len() >= INBOX_SIGNALS_MAX && run.inbox.len() + unseen(run) >= INBOX_SIGNALS_MAX {
        return Err(Refusal::Busy { what: "the run's inbox".into(), limit: INBOX_SIGNALS_MAX as u64 });
    }
    let id = run.signals + 1;
    // The signal is recorded before the wake-up, so that the woken step sees it.
    let mut transition = Transition::of([Fact::SignalReceived(Box::new(SignalReceived {
        id,
        name: sent.name.clone(),
        payload: sent.payload.clone(),
        dedup: sent.dedup.clone(),
        request: sent.request,
    }))]);
    wait::arrive(run, Awaited::Signal, &sent.name, id, &mut transition);
    Ok((Accepted { signal: id, duplicate: false }, transition))
}

/// Wakes every cursor that awaits a signal of this name.
pub(super) fn wake_awaiting(run: &Run, name: &str, transition: &mut Transition) {
    for (index, cursor) in run.cursors.iter().enumerate() {
        if let Phase::Waiting(wait) = &cursor.phase
            && matches!(&wait.kind, WaitKind::Signal { names, .. } if names.iter().any(|awaited| **awaited == *name))
        {
            wake::push(index as u16, cursor, wait, WakeReason::Signal, transition);
        }
    }
}

/// How many signals are with waits whose code has not seen them.
fn unseen(run: &Run) -> usize {
    run.ops.iter().filter(|op| matches!(op.kind, OpKind::Signal { got: Some(_), .. })).count()
}

pub(super) fn apply(run: &mut Run, received: &SignalReceived, meta: Meta) {
    run.signals = received.id;
    run.inbox.push(Signal {
        id: received.id,
        name: received.name.clone(),
        payload: received.payload.clone(),
        at: meta.at,
    });
    if run.dedup.len() >= DEDUP_KEYS_MAX {
        run.dedup.remove(0);
    }
    run.dedup.push(Dedup { key: received.dedup.clone(), request: received.request, signal: received.id });
}

/// A wait got a signal: how its entry ended.
pub(super) fn apply_given(run: &mut Run, op: OpId, id: u64, when: EndedAt) -> OpState {
    let Some(index) = run.inbox.iter().position(|signal| signal.id == id) else {
        return OpState::Done { when, value: Payload::null() };
    };
    let signal = run.inbox.remove(index);
    if let Some(OpKind::Signal { got, .. }) = run.op_mut(op).map(|entry| &mut entry.kind) {
        *got = Some(Box::new(Got { id, at: signal.at }));
    }
    OpState::Done { when, value: signal.payload }
}

/// The code has seen what a wait got: it is used up.
pub(super) fn apply_seen(run: &mut Run, op: OpId) {
    if let Some(OpKind::Signal { got, .. }) = run.op_mut(op).map(|entry| &mut entry.kind)
        && let Some(got) = got.take()
    {
        run.last_signal = Some(got.id);
    }
}

/// A wait was withdrawn: a signal that it had got is in the inbox again, in its old place.
pub(super) fn apply_withdrawn(run: &mut Run, op: OpId) {
    let Some(entry) = run.op_mut(op) else { return };
    if let (OpKind::Signal { name, got, .. }, OpState::Done { value, .. }) = (&mut entry.kind, &entry.state)
        && let Some(got) = got.take()
    {
        let signal = Signal { id: got.id, name: name.clone(), payload: value.clone(), at: got.at };
        let place = run.inbox.partition_point(|known| known.id < signal.id);
        run.inbox.insert(place, signal);
    }
}
