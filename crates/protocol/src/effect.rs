//! Effects: the outside work of runs, and what becomes of that which is in doubt.

use abide_kernel::{Approval, BoundaryId, EffectView, InDoubt, Interrupt, Payload, Policy, RunId, Standing};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Instant};

/// An effect of a run: the ledger's answer to "did it happen?".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Its key within the run.
    pub key: String,
    /// Whether and how it may be repeated.
    #[schemars(with = "String")]
    pub policy: Policy,
    /// Where it stands.
    #[schemars(with = "String")]
    pub standing: Standing,
    /// The key that the other side was given.
    pub idempotency_key: String,
    /// For one in doubt: the interrupt that an answer must name to allow a retry.
    pub interrupt: Option<u32>,
    /// Whose word let it begin, or begin once more.
    #[serde(default)]
    pub approval: Option<EffectApproval>,
    /// For one in doubt: what its code is told.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub doubt: Option<InDoubt>,
    /// How often it failed and was tried again.
    pub failures: u32,
    /// When it is tried again.
    pub retry_at: Option<Instant>,
    /// Whether it undoes something.
    pub undo: bool,
    /// When it was first recorded.
    pub begun_at: Instant,
    /// When it ended.
    pub ended_at: Option<Instant>,
    /// What it returned.
    #[schemars(with = "serde_json::Value")]
    pub value: Option<Payload>,
    /// How it failed, at last or for now.
    pub error: Option<Error>,
}

/// Whose word let an effect begin, or begin once more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EffectApproval {
    /// What was answered: the id of a boundary for a review, the number of an interrupt for a doubt.
    pub interrupt: String,
    /// Who.
    pub actor: String,
    /// Why.
    pub note: Option<String>,
    /// When.
    pub at: Instant,
}

impl EffectApproval {
    fn of(run: RunId, approval: &Approval) -> Self {
        Self {
            interrupt: match approval.interrupt {
                Interrupt::Review(op) => BoundaryId { run, op }.to_string(),
                Interrupt::Doubt(claim) => claim.to_string(),
            },
            actor: approval.actor.to_string(),
            note: approval.note.as_deref().map(str::to_owned),
            at: Instant(approval.at),
        }
    }
}

impl Effect {
    /// An effect of a run as it is shown.
    #[must_use]
    pub fn of(run: RunId, view: &EffectView) -> Self {
        Self {
            key: view.key.to_string(),
            policy: view.policy,
            standing: view.standing,
            idempotency_key: view.idempotency_key.clone(),
            interrupt: view.interrupt,
            approval: view.approval.as_deref().map(|approval| EffectApproval::of(run, approval)),
            doubt: view.doubt(),
            failures: view.failures,
            retry_at: view.retry_at.map(Instant),
            undo: view.undo,
            begun_at: Instant(view.begun_at),
            ended_at: view.ended_at.map(Instant),
            value: view.value.clone(),
            error: view.error.as_deref().map(Error::from),
        }
    }
}

/// The effects of a run, in the order they were begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effects {
    /// The effects.
    pub effects: Vec<Effect>,
}

/// An effect, and whose it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunEffect {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The effect.
    pub effect: Effect,
}

/// A page of effects in doubt, newest run first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectPage {
    /// The effects.
    pub effects: Vec<RunEffect>,
    /// Give it as `before` for the next page; absent at the end.
    #[schemars(with = "Option<crate::shape::Run>")]
    pub next: Option<RunId>,
}

/// What someone says of an effect that is in doubt.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// The effect's key.
    pub effect: String,
    /// What became of it, or is to become of it.
    pub how: How,
    /// The interrupt that is answered. A retry must name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<u32>,
    /// Who says so; the token's name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Roles in which they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What became of an effect, or is to become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It took place, with this result.
    Value(#[schemars(with = "serde_json::Value")] Payload),
    /// It did not take place, or not well: the code gets an error with this message.
    Failed(String),
    /// It is executed once more.
    Retry,
    /// It took place, and was undone by hand.
    Compensated,
}
