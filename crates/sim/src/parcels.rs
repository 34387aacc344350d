//! Parcels: a workflow that no node has the code of, as workers outside execute it. Three steps: one that goes on, one that
//! waits for a signal, and one with an effect that must not happen twice.

use std::sync::Arc;

use abide::{Payload, Policy};
use abide_kernel::shard::{Command, Dispatch};
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::{Consume, Fingerprint, Moment, OpId, OpState, Outcome, Timestamp, TokenHash, WakeReason};

const HOUR_MS: u64 = 3_600_000;

/// The key of the effect in the ledger.
pub(crate) const EFFECT: &str = "post";

/// What a worker that has the code says of it.
pub(crate) fn definition() -> Definition {
    Definition { workflow: "parcel".into(), version: 1, fingerprint: Fingerprint(1), first_step: "pack".into() }
}

/// An attempt that a worker holds, and how far it has come.
pub(crate) struct Attempt {
    pub(crate) given: Dispatch,
    pub(crate) effect: Posting,
}

/// How far the effect of the last step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// It is not part of this step, or its result was known.
    None,
    /// Somebody may have called it: the attempt waits for word of that.
    Doubted(OpId),
    /// Its intent has to be durable first.
    Wanted(OpId),
    /// Its intent is on its way.
    Intended(OpId),
    /// It may be called.
    Allowed(OpId),
    /// It was called.
    Called(OpId),
}

/// What an attempt does next.
pub(crate) enum Next {
    /// Say that the effect is about to be called.
    Intend(Command),
    /// Nothing, before it is known whether that is durable.
    Wait,
    /// Call the effect.
    Call,
    /// Say what the step returned.
    Return(Command),
}

impl Attempt {
    pub(crate) fn new(given: Dispatch) -> Self {
        let effect = if &*given.step == "send" { posting(&given) } else { Posting::None };
        Self { given, effect }
    }

    /// Whether its step has begun with something that others may see.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.effect, Posting::None | Posting::Doubted(_) | Posting::Wanted(_))
    }

    pub(crate) fn next(&mut self, token: TokenHash, now: Timestamp) -> Next {
        match self.effect {
            Posting::Wanted(op) => {
                self.effect = Posting::Intended(op);
                Next::Intend(self.intend(op, token))
            }
            Posting::Doubted(_) => {
                let seen = self.given.ops_ended;
                Next::Return(self.complete(token, Outcome::Suspend { seen }, Vec::new()))
            }
            Posting::Intended(_) => Next::Wait,
            Posting::Allowed(op) => {
                self.effect = Posting::Called(op);
                Next::Call
            }
            Posting::Called(op) => {
                let end = Entry::End { op, outcome: Ok(number(1)), at: now };
                Next::Return(self.complete(token, self.outcome(), vec![end]))
            }
            Posting::None => Next::Return(self.complete(token, self.outcome(), Vec::new())),
        }
    }

    /// A completion under a token, whoever's it is.
    pub(crate) fn complete(&self, token: TokenHash, outcome: Outcome, entries: Vec<Entry>) -> Command {
        let completing = Completing {
            claim: self.given.claim.number,
            token,
            outcome: Arc::new(outcome),
            consume: Consume::default(),
            error: None,
            compact_after: None,
            entries,
        };
        Command::Complete { run: self.given.claim.run, completing }
    }

    /// Says that the effect is about to be called.
    pub(crate) fn intend(&self, op: OpId, token: TokenHash) -> Command {
        let what = Wanted::Effect(Policy::UnsafeOnce);
        let entries = vec![Entry::Intend { op, key: EFFECT.into(), input: 0, what }];
        let recording = Recording { claim: self.given.claim.number, token, entries };
        Command::Record { run: self.given.claim.run, recording: Box::new(recording) }
    }

    fn outcome(&self) -> Outcome {
        let given = &self.given;
        let state = given.state.clone();
        let woken = given.woken_by.is_some_and(|by| matches!(by, WakeReason::Signal | WakeReason::Deadline));
        match &*given.step {
            "pack" => Outcome::Next { step: "wait".into(), state },
            "wait" if woken || given.signals.iter().any(|signal| &*signal.name == "paid") => {
                Outcome::Next { step: "send".into(), state }
            }
            "wait" => {
                let deadline = Some(Moment::In(2 * HOUR_MS));
                Outcome::Await { signals: vec!["paid".into()], then: None, deadline, state }
            }
            _ => Outcome::Done { result: state },
        }
    }
}

/// What is known of the effect when the attempt is given.
fn posting(given: &Dispatch) -> Posting {
    let ops = (given.ops_dropped + 1..).zip(given.ops.iter());
    let known = ops.clone().find(|(_, op)| &*op.key == EFFECT && op.visit == given.visit);
    match known {
        Some((op, known)) if matches!(known.state, OpState::Open) => match known.effect() {
            Some(effect) if effect.claim != 0 => Posting::Doubted(op),
            _ => Posting::Wanted(op),
        },
        Some(_) => Posting::None,
        None => Posting::Wanted(given.ops_dropped + given.ops.len() as u32 + 1),
    }
}

/// A number as a payload.
pub(crate) fn number(n: u64) -> Payload {
    Payload::parse(n.to_string()).unwrap_or_default()
}
