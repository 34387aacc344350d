//! Reviews: an effect that a control interrupts begins when a person has approved exactly that effect. The question is a
//! manual boundary; a run has one at a time, so a review waits for its turn.

use std::future::poll_fn;
use std::panic::Location;
use std::task::{Poll, Waker};

use abide_kernel::transition::manual::Asking;
use abide_kernel::transition::record::Wanted;
use abide_kernel::{BoundaryId, Choice, ManualKind, OpState, Payload, Policy, Str, review_key};
use serde::{Deserialize, Serialize};

use super::manual::{AskedFor, Decision};
use super::{Known, Ledger, Local, LocalKind, divergence};
use crate::control::Ruling;
use crate::{Operation, StepError};

/// What a reviewer is shown: the operation that waits for their yes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Review {
    /// The effect's name, without its scope.
    pub operation: String,
    /// The effect's key within the run.
    pub effect: String,
    /// Whether and how it may be repeated.
    pub policy: Policy,
    /// What it is about, if the code says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Payload>,
    /// The key that the other side will be given.
    pub idempotency_key: String,
}

/// Why an effect was not executed: a reviewer said no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rejection {
    /// The effect's key within the run.
    pub effect: String,
    /// The interrupt that was answered.
    pub interrupt: BoundaryId,
    /// Who said no.
    pub actor: String,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The code of the error of an effect that a reviewer rejected.
const REJECTED: &str = "rejected";

impl StepError {
    /// Who rejected the effect whose error this is, and why.
    #[must_use]
    pub fn rejection(&self) -> Option<Rejection> {
        let details = self.info.details.as_ref().filter(|_| &*self.info.code == REJECTED)?;
        details.decode().ok()
    }
}

/// An effect that is about to be reviewed.
pub(super) struct Reviewing<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) effect: Local,
    pub(super) operation: &'a Operation,
    /// The key that the other side will be given.
    pub(super) key: String,
    /// The canonical hash of its input, or zero: what was approved is that input.
    pub(super) hash: u64,
    pub(super) place: &'static Location<'static>,
}

impl Reviewing<'_> {
    /// Asks, and waits for a yes.
    ///
    /// # Errors
    /// When a person said no, or nobody said yes in time.
    pub(super) async fn approved(self, asking: Asking, input: Option<Payload>) -> Result<(), StepError> {
        let Self { ledger, effect, operation, key, hash, place } = self;
        let name = ledger.key(effect);
        let shown = Review {
            operation: operation.name.clone(),
            effect: name.to_string(),
            policy: operation.policy,
            input,
            idempotency_key: key,
        };
        let asking = Asking { payload: Payload::encode(&shown)?, ..asking };
        asking.validate().map_err(|refusal| StepError::new(&refusal).code(refusal.code()).terminal())?;
        let local = ledger.review_point(effect, hash, place);
        let asked = AskedFor { ledger, local };
        let state = poll_fn(|cx| ledger.reviewed(local, &asking, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        drop(asked);
        let decision = Decision::of(&state)?;
        let interrupt = BoundaryId { run: ledger.link.claim().run, op: ledger.op(local).unwrap_or_default() };
        match (decision.choice(), decision.actor()) {
            (Some(Choice::Approve), Some(_)) => {
                ledger.approve(effect, local);
                Ok(())
            }
            (Some(_), Some(actor)) => {
                let note = decision.note().map(str::to_owned);
                let why = note.as_deref().map(|note| format!(": {note}")).unwrap_or_default();
                let message = format!("effect {name:?} was rejected by {actor}{why}");
                let rejection = Rejection { effect: name.to_string(), interrupt, actor: actor.into(), note };
                Err(StepError::new(message).code(REJECTED).terminal().details(Payload::encode(&rejection)?))
            }
            _ => {
                let message = format!("nobody approved effect {name:?} in time ({interrupt})");
                Err(StepError::new(message).code("approval_expired").terminal())
            }
        }
    }
}

impl Ledger {
    /// What must be asked before an effect begins. One that has begun is not reviewed any more; one whose review is
    /// recorded is, whatever the controls say now.
    pub(super) fn review(&self, effect: Local, ruling: &Ruling<'_>) -> Option<Asking> {
        let state = self.state.lock();
        let known = &state.entries[effect];
        let recorded = || state.reviewed && state.by_key.contains_key(&review_key(&known.key));
        match ruling {
            Ruling::Reviewed(reviewers) => (known.op.is_none() || recorded()).then(|| reviewers.asking()),
            Ruling::Free => recorded().then(|| Asking::new(ManualKind::Approval)),
        }
    }

    /// Whether no control changes any more what the code gets at the next effect of this name: it has ended, it is in doubt,
    /// or its review ended without a yes.
    pub(super) fn stands(&self, name: &str) -> bool {
        let state = self.state.lock();
        let key = state.next_key(name);
        let entry = |key: &Str| state.by_key.get(key).map(|local| &state.entries[*local]);
        let refused = |review: &Known| {
            review.state != OpState::Open && Decision::of(&review.state).is_ok_and(|decision| !decision.is_approved())
        };
        entry(&key).is_some_and(|effect| effect.state != OpState::Open || effect.is_in_doubt())
            || entry(&review_key(&key)).is_some_and(refused)
    }

    /// The entry of the review of an effect. One that is new is written when it is its turn.
    fn review_point(&self, effect: Local, input: u64, place: &'static Location<'static>) -> Local {
        let mut state = self.state.lock();
        let key = review_key(&state.entries[effect].key);
        state.last_point = Some((key.clone(), place));
        if let Some(observer) = self.link.observer() {
            observer.asked(self.link.claim().run, &key);
        }
        let Some(local) = state.by_key.get(&key).copied() else {
            state.go_beyond();
            return state.add(Known { asked: true, ..Known::new(key, LocalKind::Manual, input) });
        };
        state.ask(local);
        let known = &state.entries[local];
        if let Some(error) = divergence(known, LocalKind::Manual, input, place) {
            Self::end_attempt(&mut state, error);
        }
        local
    }

    /// How a review ended, if the code may know; else its future is woken when it may, or when it is its turn to ask.
    fn reviewed(&self, local: Local, asking: &Asking, waker: &Waker) -> Option<OpState> {
        let mut state = self.state.lock();
        if state.entries[local].delivered {
            state.waiting.remove(&local);
            return Some(state.entries[local].state.clone());
        }
        let asks =
            |known: &Known| known.kind == LocalKind::Manual && known.op.is_some() && known.state == OpState::Open;
        if state.entries[local].op.is_none() && !state.entries.iter().any(asks) {
            state.write_intent(local, Wanted::Manual(Box::new(asking.clone())));
        }
        state.wait(local, waker);
        None
    }

    /// An effect may begin: its intent names the review at which it was approved.
    fn approve(&self, effect: Local, review: Local) {
        let mut state = self.state.lock();
        state.entries[effect].review = state.entries[review].op;
    }
}
