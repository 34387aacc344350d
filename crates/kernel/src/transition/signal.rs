//! Signal: a named message arrives, and wakes the run if it waits for that name.

use alloc::boxed::Box;

use super::{Transition, record, wake};
use crate::limits::{DEDUP_KEYS_MAX, INBOX_SIGNALS_MAX};
use crate::spec::{check_key, check_name, check_payload};
use crate::{
    Dedup, Fact, Meta, Payload, Phase, Refusal, RequestId, Run, Signal, SignalReceived, Str, WaitKind, WakeReason,
};

/// What a sender says.
#[derive(Clone, Debug)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    if run.inbox.len() >= INBOX_SIGNALS_MAX {
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
    record::signalled(run, &sent.name, id, &mut transition);
    for (index, cursor) in run.cursors.iter().enumerate() {
        if let Phase::Waiting(wait) = &cursor.phase
            && matches!(&wait.kind, WaitKind::Signal { names, .. } if names.contains(&sent.name))
        {
            wake::push(index as u16, cursor, wait, WakeReason::Signal, &mut transition);
        }
    }
    Ok((Accepted { signal: id, duplicate: false }, transition))
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
