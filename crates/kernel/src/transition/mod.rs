//! What may happen to a run, verb by verb.
//!
//! Each file holds a verb's `decide` (given the run, the command and the instant: facts, or a refusal), its
//! `apply` (how its facts fold, which cannot fail) and its tests.

pub mod anomaly;
pub mod await_signal;
pub mod cancel;
pub mod child;
pub mod claim;
pub mod compact;
pub mod complete;
pub mod dead_letter;
pub mod expire;
pub mod fail;
pub mod heartbeat;
pub mod manual;
pub mod progress;
pub mod purge;
pub mod record;
pub mod recover;
pub mod resolve;
pub mod schedule;
pub mod signal;
pub mod start;
pub mod update;
mod wait;
pub mod wake;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::envelope::Message;
use crate::{Cursor, End, Ended, Fact, Facts, ManualEnd, Meta, Phase, Refusal, Run, TokenHash};

/// What follows from a command: facts about this run, and messages to others.
#[derive(Debug, Default, PartialEq)]
pub struct Transition {
    /// What becomes true of the run.
    pub facts: Facts,
    /// What other runs must be told, in the same batch or by envelope.
    pub messages: Vec<Message>,
}

impl Transition {
    pub(crate) fn of(facts: impl IntoIterator<Item = Fact>) -> Self {
        Self { facts: facts.into_iter().collect(), messages: Vec::new() }
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty() && self.messages.is_empty()
    }
}

/// Folds one fact into the run.
pub(crate) fn apply(run: &mut Run, fact: &Fact, meta: Meta) {
    match fact {
        // A journal begins with it; met later, it would be a second beginning and is ignored.
        Fact::Started(_) => {}
        Fact::Compacted(whole) => compact::apply(run, whole),
        Fact::Pinned(pinned) => claim::apply_pinned(run, pinned),
        Fact::Scheduled(scheduled) => schedule::apply(run, scheduled, meta),
        Fact::Notified(_) | Fact::Purged => {}
        Fact::Claimed(claimed) => claim::apply(run, claimed, meta),
        Fact::Heartbeat(beat) => heartbeat::apply(run, *beat),
        Fact::Progressed(progressed) => progress::apply(run, progressed),
        Fact::Expired(claim) => expire::apply(run, *claim),
        Fact::Returned(claim) => claim::apply_returned(run, *claim),
        Fact::Completed(completed) => complete::apply(run, completed, meta),
        Fact::Failed(failed) => fail::apply(run, failed, meta),
        Fact::Applied(applied) => complete::apply_outcome(run, applied, meta),
        Fact::SignalReceived(signal) => signal::apply(run, signal, meta),
        Fact::Woken(woken) => wake::apply(run, woken),
        Fact::ChildStarted(child) => child::apply_started(run, child),
        Fact::ChildAnswered(answered) => child::apply_answered(run, answered),
        Fact::ChildEnded(ended) => child::apply_ended(run, ended),
        Fact::ParentPurged => run.orphaned = true,
        Fact::Begun => run.begun = true,
        Fact::Ended(ended) => apply_ended(run, ended, meta),
        Fact::DeadLettered(dead) => dead_letter::apply(run, dead, meta),
        Fact::Requeued(cursor) => dead_letter::apply_requeued(run, cursor.cursor),
        Fact::Intended(intended) => record::apply_intended(run, intended, meta),
        Fact::Resulted(resulted) => record::apply_resulted(run, resulted, meta),
        Fact::Retrying(retrying) => record::apply_retrying(run, retrying),
        Fact::Seen(seen) => record::apply_seen(run, *seen),
        Fact::Resolved(resolved) => resolve::apply(run, resolved, meta),
        Fact::Cancelling(cancelling) => cancel::apply_cancelling(run, cancelling),
        Fact::Asked(asked) => manual::apply_asked(run, asked, meta),
        Fact::Assigned(assigned) => manual::apply_assigned(run, assigned, meta),
        Fact::Decided(decided) => manual::apply_decided(run, decided, meta),
        Fact::Published(published) => run.published = Some(published.state.clone()),
        Fact::Requested(requested) => update::apply_requested(run, requested, meta),
        Fact::Answered(answered) => update::apply_answered(run, answered, meta),
        Fact::Anomaly(anomaly) => anomaly::apply(run, anomaly, meta),
    }
}

fn apply_ended(run: &mut Run, ended: &Ended, meta: Meta) {
    run.end = Some(End { status: ended.status, at: meta.at, request: ended.request });
    if let Some(result) = &ended.result {
        run.result = Some(result.clone());
    }
    if let Some(error) = &ended.error {
        run.last_error = Some(error.clone());
    }
    run.taken = Vec::new();
    manual::close(run, None, ManualEnd::RunEnded, meta);
    for cursor in &mut run.cursors {
        if !matches!(cursor.phase, Phase::Finished { .. }) {
            cursor.phase = Phase::Closed;
        }
    }
}

/// The facts and messages of an end: the terminal fact, and word to the parent and to the key's holder.
pub(crate) fn end(run: &Run, ended: Ended, transition: &mut Transition) {
    let status = ended.status;
    if let Some(parent) = run.started.parent.as_ref().filter(|_| !run.orphaned) {
        // The outcome in the same row carries the result and the error of an ordinary end.
        let completed = transition.facts.iter().find_map(|fact| match fact {
            Fact::Completed(completed) => Some(&*completed.outcome),
            _ => None,
        });
        let published = transition.facts.iter().rev().find_map(|fact| match fact {
            Fact::Published(published) => Some(&published.state),
            _ => None,
        });
        let (result, error) = match completed {
            Some(crate::Outcome::Done { result }) => (Some(result.clone()), None),
            Some(crate::Outcome::Stop { error }) => (None, Some(Arc::new(error.clone()))),
            _ => (None, None),
        };
        transition.messages.push(Message::ChildEnded {
            parent: parent.run,
            ended: alloc::boxed::Box::new(crate::ChildEnded {
                child: run.id,
                status,
                state: published.unwrap_or_else(|| run.visible_state()).clone(),
                result: ended.result.clone().or(result),
                error: ended.error.clone().or(error),
            }),
        });
    }
    transition.facts.push(Fact::Ended(alloc::boxed::Box::new(ended)));
    cancel::follow(run, transition);
}

/// The cursor that holds claim `number`, if its fence is the current one and its lease has not ended. One that was taken
/// away so that the run can undo what it did is refused by that name.
pub(crate) fn fenced(run: &Run, number: u32, token: TokenHash, now: crate::Timestamp) -> Result<u16, Refusal> {
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    let mut current = None;
    for (index, cursor) in run.cursors.iter().enumerate() {
        let Phase::Claimed(claim) = &cursor.phase else {
            continue;
        };
        if claim.number != number {
            current = Some(claim.number);
            continue;
        }
        if claimant_token(cursor) != Some(token) {
            return Err(Refusal::WrongToken { claim: number });
        }
        if now >= claim.until() {
            return Err(Refusal::LeaseExpired { claim: number, lease_until: claim.until() });
        }
        return Ok(index as u16);
    }
    Err(match run.taken.iter().find(|taken| taken.claim == number) {
        Some(taken) if taken.token == token => Refusal::Cancelling { run: run.id },
        Some(_) => Refusal::WrongToken { claim: number },
        None => Refusal::StaleClaim { claim: number, current },
    })
}

fn claimant_token(cursor: &Cursor) -> Option<TokenHash> {
    cursor.claimant.as_ref().map(|claimant| claimant.token)
}
