//! Retries of one effect, by a policy of its own: its error is recorded, it rests for as long as the policy says without a
//! worker, and begins again. The code of the function or step hears of none of it.

use std::sync::Arc;

use abide_kernel::transition::record::Entry;
use abide_kernel::{ErrorInfo, RetryPolicy, stable_hash};

use super::{Ledger, Local, LocalKind};
use crate::{Operation, StepError};

/// How an effect is tried again: when, and how its code is had once more.
pub(crate) struct Retry<F> {
    pub(super) policy: RetryPolicy,
    pub(super) call: fn(&F) -> F,
}

impl<F> Retry<F> {
    /// What must not happen twice is not tried again by itself, whatever a policy says.
    pub(super) fn check(&self, operation: &Operation) -> Result<(), StepError> {
        if operation.policy.replay_safe() {
            return Ok(());
        }
        let Operation { name, policy } = operation;
        let message =
            format!("effect {name:?} ({policy}) is never begun again by itself; it cannot have a retry policy");
        Err(StepError::new(message).code("retry_not_allowed").terminal())
    }
}

/// The code of an effect, for as often as it may be called in an attempt.
pub(super) struct Calls<F> {
    call: Option<F>,
    retry: Option<Retry<F>>,
    /// Whether a panic is something that happened, which a replay meets again: a function may undo what it did for it.
    pub(super) records_panics: bool,
}

impl<F> Calls<F> {
    pub(super) fn new(call: F, retry: Option<Retry<F>>) -> Self {
        Self { call: Some(call), retry, records_panics: true }
    }

    /// Of something that undoes, which is tried again until it is done.
    pub(super) fn once(call: F) -> Self {
        Self { call: Some(call), retry: None, records_panics: false }
    }

    /// The code for the next call.
    pub(super) fn next(&mut self) -> F {
        let again = self.retry.as_ref().zip(self.call.as_ref()).map(|(retry, call)| (retry.call)(call));
        again.or_else(|| self.call.take()).expect("an effect without a retry policy is called once in an attempt")
    }

    /// What becomes of an outcome: `None` when the effect rests and is called again.
    pub(super) fn judge<T>(
        &self,
        ledger: &Ledger,
        local: Local,
        outcome: Result<T, ErrorInfo>,
    ) -> Option<Result<T, ErrorInfo>> {
        match (outcome, &self.retry) {
            (Err(error), Some(retry)) if error.retryable => ledger.rest(local, error, retry.policy).err().map(Err),
            (outcome, _) => Some(outcome),
        }
    }
}

impl Ledger {
    /// Lets an effect that failed rest until it is tried again.
    ///
    /// # Errors
    /// Its error, which now stands, when the policy tries no more.
    fn rest(&self, local: Local, error: ErrorInfo, policy: RetryPolicy) -> Result<(), ErrorInfo> {
        let mut state = self.state.lock();
        let known = &mut state.entries[local];
        // The policy may have been edited: the one that is recorded counts.
        if !matches!(known.kind, LocalKind::Effect(policy) if policy.replay_safe()) {
            return Err(error);
        }
        let seed = stable_hash(format!("{}\u{0}{}", self.link.claim().run, known.key).as_bytes());
        let Some(delay_ms) = policy.delay(known.failures, seed ^ u64::from(known.failures)) else {
            // The policy of the function or step is not asked: this one is in its place.
            return Err(ErrorInfo { retryable: false, ..error });
        };
        known.failures += 1;
        (known.resting, known.go) = (true, false);
        state.calling.remove(&local);
        let op = state.write_effect(local, self.claim);
        state.buffer.push(Entry::Again { op, error: Arc::new(error), delay_ms });
        Ok(())
    }
}
