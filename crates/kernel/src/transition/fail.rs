//! Fail: a step failed and no handler answered; the retry policy decides, else the run ends.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::{Transition, complete};
use crate::{
    Completion, Ended, ErrorInfo, Executed, Fact, Failed, Meta, Phase, Refusal, RetryPolicy, Run, Scheduled, Status,
    Timestamp, TokenHash, stable_hash,
};

/// What a worker says when its step has failed.
#[derive(Clone, Debug)]
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
}

/// Records a failure, and when the step is tried again, if at all. An empty transition means: the same failure
/// was recorded before.
///
/// # Errors
/// When the fence is not the current one, the lease has ended, or something else was recorded under the claim.
pub fn decide(run: &Run, failing: &Failing, now: Timestamp) -> Result<Transition, Refusal> {
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
    let cursor = &run.cursors[usize::from(index)];
    let delay = match failing.retry {
        Some(policy) if failing.error.retryable => policy.delay(cursor.retries, failing.seed),
        _ => None,
    };
    let retry_at = delay.map(|ms| now.after(ms));
    let mut transition = Transition::of([Fact::Failed(Box::new(Failed {
        cursor: index,
        claim: failing.claim,
        error: failing.error.clone(),
        retry_at,
    }))]);
    if retry_at.is_some() {
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
