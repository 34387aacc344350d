//! What stands beside an effect: whose word let it begin, how it failed before it is tried again, and what is said of one
//! that is in doubt.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{EffectView, ErrorInfo, OpId, Policy, Standing, Str, Timestamp};

/// Somebody's word that let an effect begin, once. It is for the interrupt it names and for no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// What was answered.
    pub interrupt: Interrupt,
    /// Who answered.
    pub actor: Str,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Str>,
    /// When.
    pub at: Timestamp,
}

/// What holds an effect up until somebody has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interrupt {
    /// A control has it reviewed before it begins: the boundary at this entry of the ledger.
    Review(OpId),
    /// It is in doubt, having begun under this claim.
    Doubt(u32),
}

/// How an effect failed that its own retry policy tries again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retries {
    /// How often it failed and was, or will be, tried again.
    pub failures: u32,
    /// Its last error.
    pub error: Arc<ErrorInfo>,
    /// It begins again at this instant; absent once that has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// An effect failed, and its own retry policy tries it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrying {
    /// The entry's number.
    pub op: OpId,
    /// How it failed.
    pub error: Arc<ErrorInfo>,
    /// When it may begin again.
    pub until: Timestamp,
}

/// An effect that is in doubt, as an error with a form of its own: serialized, it is a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InDoubt {
    /// A stable word: `unsafe_once_incomplete_effect` or `reconcile_incomplete_effect`.
    pub reason: Str,
    /// The intent that has no result: the idempotency key that the other side was given.
    pub intent_id: String,
    /// The effect's key within the run.
    pub effect: Str,
    /// Whether and how it may be repeated.
    pub policy: Policy,
    /// The interrupt that an answer must name to allow a retry.
    pub interrupt: u32,
}

impl fmt::Display for InDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, intent_id, effect, interrupt, .. } = self;
        write!(
            f,
            "{reason}: effect {effect:?} ({intent_id}) may or may not have happened; interrupt {interrupt} waits for an answer"
        )
    }
}

impl core::error::Error for InDoubt {}

impl EffectView {
    /// What is said of it while it is in doubt.
    #[must_use]
    pub fn doubt(&self) -> Option<InDoubt> {
        let interrupt = self.interrupt.filter(|_| self.standing == Standing::InDoubt)?;
        let reason = alloc::format!("{}_incomplete_effect", self.policy);
        let (effect, policy) = (self.key.clone(), self.policy);
        Some(InDoubt { reason: reason.into(), intent_id: self.idempotency_key.clone(), effect, policy, interrupt })
    }
}
