//! Refusals: typed answers that say no. They are expected, part of the protocol, and change nothing.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{LetterId, RunId, Status, Str, Timestamp};

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "code")]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such run.
    NotFound {
        /// The run asked for.
        run: RunId,
    },
    /// The run has ended; nothing more can be done to it within this epoch.
    RunOver {
        /// The run asked for.
        run: RunId,
        /// How it ended.
        status: Status,
    },
    /// The run has not ended, and the command needs it to.
    RunOpen {
        /// The run asked for.
        run: RunId,
        /// Where it stands.
        status: Status,
    },
    /// The claim is not, or no longer, the current one of any step of the run.
    StaleClaim {
        /// The claim's number that was given.
        claim: u32,
        /// The number of the current claim, if there is one.
        current: Option<u32>,
    },
    /// The token does not belong to the claim.
    WrongToken {
        /// The claim's number that was given.
        claim: u32,
    },
    /// The attempt may not be claimed yet.
    AttemptNotVisible {
        /// When it may.
        visible_at: Timestamp,
    },
    /// The attempt is held, and its lease has not ended.
    ActiveClaim {
        /// The claim that holds it.
        claim: u32,
        /// When its lease ends.
        lease_until: Timestamp,
    },
    /// The attempt has not completed, so there is no result to apply.
    ResultNotCompleted {
        /// The claim's number that was given.
        claim: u32,
    },
    /// The lease had ended when the message arrived.
    LeaseExpired {
        /// The claim's number that was given.
        claim: u32,
        /// When its lease ended.
        lease_until: Timestamp,
    },
    /// The attempt was completed before, with another result.
    ConflictingCompletion {
        /// The claim's number that was given.
        claim: u32,
    },
    /// The fenced signal's token is not the current one; the wait it was meant for is over.
    StaleToken {
        /// The token given.
        token: u64,
        /// The current token, if the run waits.
        current: Option<u64>,
    },
    /// A value exceeds a limit.
    TooLarge {
        /// What is too large.
        what: String,
        /// The most that is allowed.
        limit: u64,
        /// What was found.
        found: u64,
    },
    /// A bounded place is full; try again later.
    Busy {
        /// What is full.
        what: String,
        /// How much it holds.
        limit: u64,
    },
    /// A value is not acceptable.
    Invalid {
        /// Which field.
        what: String,
        /// What was expected there.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A child of that key exists with another workflow or input.
    ChildConflict {
        /// The child's key.
        key: Str,
        /// The child that has it.
        child: RunId,
    },
    /// The run is not a dead letter.
    NotDeadLettered {
        /// The run asked for.
        run: RunId,
        /// Where it stands.
        status: Status,
    },
    /// The effect may or may not have happened, and its policy forbids to execute it again by itself.
    InDoubt {
        /// Its number in the ledger.
        op: u32,
        /// Its key.
        key: Str,
    },
    /// The run is being cancelled: it undoes what it did first.
    Cancelling {
        /// The run asked for.
        run: RunId,
    },
    /// The run has no such effect.
    NoEffect {
        /// The key asked for.
        key: Str,
    },
    /// The effect is not in doubt.
    NotInDoubt {
        /// Its key.
        key: Str,
        /// Where it stands.
        found: Str,
    },
    /// The answer is for another interrupt of the effect.
    WrongInterrupt {
        /// The interrupt given.
        given: Option<u32>,
        /// The one that waits for an answer.
        current: u32,
    },
    /// The effect needs an approval that it does not have: nobody approved, or that word was for another effect.
    NotApproved {
        /// The entry of the ledger that was given as its review.
        op: u32,
        /// The effect's key.
        key: Str,
    },
    /// The effect ended before: what was recorded then stands.
    EffectEnded {
        /// Its number in the ledger.
        op: u32,
    },
    /// A person is asked already: a run has one manual boundary at a time.
    SecondBoundary {
        /// The entry of the ledger that would have asked.
        op: u32,
        /// The entry that asks.
        open: u32,
    },
    /// The boundary is not, or no longer, the one at which the run waits for a person.
    StaleBoundary {
        /// The entry of the ledger that was given.
        op: u32,
        /// The entry that asks now, if one does.
        current: Option<u32>,
    },
    /// The boundary was decided before: that decision stands.
    AlreadyDecided {
        /// The entry of the ledger that was given.
        op: u32,
        /// How it was decided.
        decided: Str,
        /// By whom; absent when the deadline did.
        by: Option<Str>,
    },
    /// The time for the decision was over when it arrived.
    DecisionLate {
        /// The entry of the ledger that was given.
        op: u32,
        /// When it was over.
        until: Timestamp,
    },
    /// The boundary is somebody else's.
    NotAssignee {
        /// The entry of the ledger that was given.
        op: u32,
        /// Whose it is.
        assignee: Str,
    },
    /// None of the roles given is one of those asked for.
    WrongRole {
        /// The entry of the ledger that was given.
        op: u32,
        /// The roles asked for.
        roles: Vec<Str>,
    },
    /// The run ended without answering the update.
    Unanswered {
        /// The run.
        run: RunId,
        /// The update's name.
        name: Str,
        /// How the run ended.
        status: Status,
    },
    /// There is no such dead letter: it was put back or discarded, or never was.
    NoLetter {
        /// The dead letter asked for.
        letter: LetterId,
    },
    /// The stored record of the run is damaged; the run is set aside, others go on.
    Corrupt {
        /// The run.
        run: RunId,
        /// What was found, with the position in the journal.
        found: String,
    },
    /// The outcome is not known: the shard was reloaded. Retry with the same request id; where there is none, look first.
    Unknown,
    /// The engine stops or has stopped, and takes no more commands.
    Closed {
        /// Why.
        reason: String,
    },
}

impl Refusal {
    /// The stable word for this refusal, as in JSON and in `docs/errors`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::RunOver { .. } => "run_over",
            Self::RunOpen { .. } => "run_open",
            Self::StaleClaim { .. } => "stale_claim",
            Self::WrongToken { .. } => "wrong_token",
            Self::AttemptNotVisible { .. } => "attempt_not_visible",
            Self::ActiveClaim { .. } => "active_claim",
            Self::ResultNotCompleted { .. } => "result_not_completed",
            Self::LeaseExpired { .. } => "lease_expired",
            Self::ConflictingCompletion { .. } => "conflicting_completion",
            Self::StaleToken { .. } => "stale_token",
            Self::TooLarge { .. } => "too_large",
            Self::Busy { .. } => "busy",
            Self::Invalid { .. } => "invalid",
            Self::ChildConflict { .. } => "child_conflict",
            Self::NotDeadLettered { .. } => "not_dead_lettered",
            Self::InDoubt { .. } => "in_doubt",
            Self::Cancelling { .. } => "cancelling",
            Self::NoEffect { .. } => "no_effect",
            Self::NotInDoubt { .. } => "not_in_doubt",
            Self::WrongInterrupt { .. } => "wrong_interrupt",
            Self::NotApproved { .. } => "not_approved",
            Self::EffectEnded { .. } => "effect_ended",
            Self::SecondBoundary { .. } => "second_boundary",
            Self::StaleBoundary { .. } => "stale_boundary",
            Self::AlreadyDecided { .. } => "already_decided",
            Self::DecisionLate { .. } => "decision_late",
            Self::NotAssignee { .. } => "not_assignee",
            Self::WrongRole { .. } => "wrong_role",
            Self::Unanswered { .. } => "unanswered",
            Self::NoLetter { .. } => "no_letter",
            Self::Corrupt { .. } => "corrupt",
            Self::Unknown => "unknown",
            Self::Closed { .. } => "closed",
        }
    }

    /// Whether the same request may succeed when it is sent again.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unknown)
    }

    pub(crate) fn invalid(what: &str, expected: &str, found: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), expected: expected.into(), found: found.into() }
    }
}

impl Refusal {
    fn fmt_manual(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecondBoundary { op, open } => write!(
                f,
                "entry {op} asks for a person while entry {open} still does; a run has one manual boundary at a time"
            ),
            Self::StaleBoundary { op, current: Some(current) } => {
                write!(f, "boundary {op} is stale: the run waits at boundary {current}")
            }
            Self::StaleBoundary { op, current: None } => {
                write!(f, "boundary {op} is stale: the run does not wait for a person")
            }
            Self::AlreadyDecided { op, decided, by } => {
                let by = by.as_deref().unwrap_or("its deadline");
                write!(f, "boundary {op} was {decided} before by {by}; that decision stands")
            }
            Self::DecisionLate { op, until } => {
                write!(f, "the time for boundary {op} was over at {} ms", until.0)
            }
            Self::NotAssignee { op, assignee } => write!(f, "boundary {op} is assigned to {assignee}"),
            Self::WrongRole { op, roles } => {
                write!(f, "boundary {op} asks for the role {}, and none of those given is", roles.join(" or "))
            }
            _ => Ok(()),
        }
    }
}

impl Refusal {
    /// What is said of effects and of undoing them.
    fn fmt_effect(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InDoubt { op, key } => {
                write!(
                    f,
                    "effect {key:?} (entry {op}) may or may not have happened; resolve it before it is tried again"
                )
            }
            Self::Cancelling { run } => write!(f, "{run} is being cancelled already: it undoes what it did first"),
            Self::NoEffect { key } => write!(f, "the run has no effect {key:?} in its ledger"),
            Self::NotInDoubt { key, found } => {
                write!(f, "effect {key:?} is {found}, not in doubt: there is nothing to resolve")
            }
            Self::WrongInterrupt { given: Some(given), current } => {
                write!(f, "interrupt {given} is not the one that waits for an answer: that is {current}")
            }
            Self::WrongInterrupt { given: None, current } => {
                write!(f, "allowing a retry needs the interrupt it answers, which is {current}")
            }
            Self::NotApproved { op, key } => {
                write!(f, "effect {key:?} begins only when its review is approved, and entry {op} is no such approval")
            }
            Self::EffectEnded { op } => {
                write!(f, "the effect at entry {op} of the ledger has ended; what was recorded stands")
            }
            _ => f.write_str(self.code()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { run } => write!(f, "there is no run {run} in this store"),
            Self::RunOver { run, status } => {
                write!(f, "{run} has ended as {status}; nothing more can be done to it")
            }
            Self::RunOpen { run, status } => write!(f, "{run} is {status}; this needs a run that has ended"),
            Self::StaleClaim { claim, current: Some(current) } => {
                write!(f, "claim {claim} is stale: the current claim is {current}")
            }
            Self::StaleClaim { claim, current: None } => {
                write!(f, "claim {claim} is stale: nobody holds a claim now")
            }
            Self::WrongToken { claim } => write!(f, "the token given does not belong to claim {claim}"),
            Self::AttemptNotVisible { visible_at } => {
                write!(f, "the attempt may be claimed from {} ms on", visible_at.0)
            }
            Self::ActiveClaim { claim, lease_until } => {
                write!(f, "claim {claim} holds the attempt until {} ms", lease_until.0)
            }
            Self::ResultNotCompleted { claim } => {
                write!(f, "claim {claim} has not completed: there is no result to apply")
            }
            Self::LeaseExpired { claim, lease_until } => {
                write!(f, "the lease of claim {claim} ended at {} ms; the step will run again", lease_until.0)
            }
            Self::ConflictingCompletion { claim } => {
                write!(f, "claim {claim} was completed before with another result; the first one stands")
            }
            Self::StaleToken { token, .. } => write!(f, "wait token {token} is stale: that wait is over"),
            Self::TooLarge { what, limit, found } => {
                write!(f, "{what} is too large: at most {limit}, found {found}")
            }
            Self::Busy { what, limit } => write!(f, "{what} is full ({limit}); try again later"),
            Self::Invalid { what, expected, found } => write!(f, "{what}: expected {expected}, found {found}"),
            Self::ChildConflict { key, child } => {
                write!(f, "child key {key:?} belongs to {child}, which has another workflow or input")
            }
            Self::NotDeadLettered { run, status } => write!(f, "{run} is {status}, not a dead letter"),
            Self::InDoubt { .. }
            | Self::Cancelling { .. }
            | Self::NoEffect { .. }
            | Self::NotInDoubt { .. }
            | Self::WrongInterrupt { .. }
            | Self::NotApproved { .. }
            | Self::EffectEnded { .. } => self.fmt_effect(f),
            Self::SecondBoundary { .. }
            | Self::StaleBoundary { .. }
            | Self::AlreadyDecided { .. }
            | Self::DecisionLate { .. }
            | Self::NotAssignee { .. }
            | Self::WrongRole { .. } => self.fmt_manual(f),
            Self::Unanswered { run, name, status } => {
                write!(f, "{run} ended as {status} without answering update {name:?}; look at its result and error")
            }
            Self::NoLetter { letter } => {
                write!(f, "there is no dead letter {letter}: it was put back or discarded, or never was")
            }
            Self::Corrupt { run, found } => write!(f, "the stored record of {run} is damaged: {found}"),
            Self::Unknown => f.write_str("the outcome is unknown: retry with the same request id; where there is none, look before you ask again"),
            Self::Closed { reason } => write!(f, "the engine takes no more commands: {reason}"),
        }
    }
}

impl core::error::Error for Refusal {}
