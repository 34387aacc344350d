//! Fail: a step failed and no handler answered; the retry policy decides, else the run ends.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, complete, dead_letter, record};
use serde::{Deserialize, Serialize};

use crate::{
    Completion, Ended, ErrorInfo, Executed, Fact, Failed, Meta, OpEnd, OpId, OpKind, OpState, Phase, Refusal, Resulted,
    RetryPolicy, Run, Scheduled, Status, Str, Timestamp, TokenHash, stable_hash,
};

/// What a worker says when its step has failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failing {
    /// The claim's number.
    pub claim: u32,
    /// The hash of the claim's token.
    pub token: TokenHash,
    /// What went wrong.
    pub error: Arc<ErrorInfo>,
    /// The step's retry policy.
    pub retry: Option<RetryPolicy>,
    /// Where the policy's jitter comes from.
    pub seed: u64,
    /// What the step writes to the ledger beside it.
    pub entries: Vec<record::Entry>,
    /// Effects whose errors made the step fail: a retry begins them again, where their errors and policies allow.
    pub reopen: Vec<OpId>,
    /// Set the attempt aside instead of ending the run: other code may cure what a retry cannot.
    pub set_aside: bool,
}

/// Records a failure, and when the step is tried again, if at all. An empty transition means: the same failure
/// was recorded before.
///
/// # Errors
/// When the fence is not the current one, the lease has ended, or something else was recorded under the claim.
pub fn decide(run: &Run, failing: &Failing, node: &Str, now: Timestamp) -> Result<Transition, Refusal> {
    let claim = failing.claim;
    if let Some(recorded) = complete::recorded(run, claim) {
        return if recorded == complete::sealed(digest(&failing.error), failing.token) {
            Ok(Transition::default())
        } else {
            Err(Refusal::ConflictingCompletion { claim })
        };
    }
    let index = super::fenced(run, claim, failing.token, now)?;
    failing.error.validate()?;
    let mut transition = Transition::default();
    record::entries(run, index, claim, &failing.entries, now, &mut transition)?;
    let cursor = &run.cursors[usize::from(index)];
    if failing.set_aside {
        let letter = dead_letter::of(index, cursor, (*failing.error).clone(), node);
        transition.facts.push(Fact::DeadLettered(Box::new(letter)));
        return Ok(transition);
    }
    let delay = match failing.retry {
        Some(policy) if failing.error.retryable => policy.delay(cursor.retries, failing.seed),
        _ => None,
    };
    let retry_at = delay.map(|ms| now.after(ms));
    transition.facts.push(Fact::Failed(Box::new(Failed {
        cursor: index,
        claim: failing.claim,
        error: failing.error.clone(),
        retry_at,
    })));
    if retry_at.is_some() {
        let reopened = failing.reopen.iter().filter(|op| may_reopen(run, **op, &transition)).copied();
        for op in reopened.collect::<Vec<OpId>>() {
            transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Reopened, at: None })));
        }
        let visible_at = retry_at.filter(|at| *at > now);
        let turn = cursor.turn + 1;
        transition.facts.push(Fact::Scheduled(Scheduled {
            cursor: index,
            turn,
            step: cursor.step.clone(),
            visible_at,
        }));
    } else {
        let error = Some(failing.error.clone());
        super::end(run, Ended { status: Status::Failed, result: None, error, request: None }, &mut transition);
    }
    Ok(transition)
}

/// Sets an attempt aside that has ended, and has something to write to the ledger that cannot be recorded: whoever is given
/// the attempt next would say the same. An empty transition means that this is not so.
#[must_use]
pub fn unrecordable(
    run: &Run,
    claim: u32,
    token: TokenHash,
    entries: &[record::Entry],
    node: &Str,
    now: Timestamp,
) -> Transition {
    let Ok(index) = super::fenced(run, claim, token, now) else {
        return Transition::default();
    };
    match record::entries(run, index, claim, entries, now, &mut Transition::default()) {
        Err(
            refusal @ (Refusal::Invalid { .. }
            | Refusal::Busy { .. }
            | Refusal::TooLarge { .. }
            | Refusal::NotApproved { .. }
            | Refusal::SecondBoundary { .. }),
        ) => {
            let message = format!("what the attempt wrote to the ledger cannot be recorded: {refusal}");
            let error = ErrorInfo::terminal(refusal.code(), &message);
            let letter = dead_letter::of(index, &run.cursors[usize::from(index)], error, node);
            Transition::of([Fact::DeadLettered(Box::new(letter))])
        }
        _ => Transition::default(),
    }
}

/// Whether an effect that failed is begun again by the retry: its error may be cured, and its policy lets it.
fn may_reopen(run: &Run, id: OpId, transition: &Transition) -> bool {
    let curable = |error: &ErrorInfo| error.retryable;
    let now = transition.facts.iter().find_map(|fact| match fact {
        Fact::Resulted(resulted) if resulted.op == id => match &resulted.end {
            OpEnd::Error(error) => Some(curable(error)),
            _ => Some(false),
        },
        _ => None,
    });
    let known = run.op(id);
    let before = known.is_some_and(|op| matches!(&op.state, OpState::Failed { error, .. } if curable(error)));
    let intended = transition.facts.iter().find_map(|fact| match fact {
        Fact::Intended(intended) if intended.op == id => Some(&intended.kind),
        _ => None,
    });
    let kind = intended.or(known.map(|op| &op.kind));
    let repeatable = matches!(kind, Some(OpKind::Effect(effect)) if effect.policy.replay_safe());
    repeatable && now.unwrap_or(before)
}

/// A digest of a failure. It differs from that of every outcome but by chance.
fn digest(error: &ErrorInfo) -> u64 {
    stable_hash(error.code.as_bytes()) ^ stable_hash(error.message.as_bytes()).rotate_left(3)
}

pub(super) fn apply(run: &mut Run, failed: &Failed, meta: Meta) {
    run.last_error = Some(failed.error.clone());
    let Some(cursor) = run.cursors.get_mut(usize::from(failed.cursor)) else {
        return;
    };
    if let Some(by) = &cursor.claimant {
        run.last_executed = Some(Executed { by: by.owner.clone(), at: meta.at });
    }
    let token = super::claimant_token(cursor).unwrap_or(TokenHash(0));
    cursor.completion =
        Some(Completion { claim: failed.claim, digest: complete::sealed(digest(&failed.error), token) });
    cursor.phase = match failed.retry_at {
        Some(at) => {
            cursor.retries += 1;
            Phase::Planned { visible_at: Some(at) }
        }
        None => Phase::Failed,
    };
}
