//! The ledger of a run: effects and durable waits, each known by its key within the visit of the step that made it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::spec::is_zero;
use crate::transition::resolve::COMPENSATED;
use crate::{Approval, ErrorInfo, ManualKind, Payload, Phase, Retries, Run, RunId, Str, Timestamp};

/// Whether and how an effect may be repeated: what the engine does when it does not know whether it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Deterministic, and nobody sees it: repeated at will.
    Pure,
    /// Twice with the same key is the same as once: repeated after a crash.
    #[default]
    Idempotent,
    /// Repeating it is safe and wasteful: repeated after a crash, never when a result is recorded.
    Dedupe,
    /// Someone else knows the truth: surfaced after a crash, and never repeated by itself.
    Reconcile,
    /// Twice is harmful: in doubt after a crash, and never repeated by itself.
    UnsafeOnce,
}

impl Policy {
    /// All policies, from the most to the least repeatable.
    pub const ALL: [Self; 5] = [Self::Pure, Self::Idempotent, Self::Dedupe, Self::Reconcile, Self::UnsafeOnce];

    /// The word used everywhere: in JSON, SQL, the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Idempotent => "idempotent",
            Self::Dedupe => "dedupe",
            Self::Reconcile => "reconcile",
            Self::UnsafeOnce => "unsafe_once",
        }
    }

    /// Whether the engine may execute it again by itself when its outcome is not known.
    #[must_use]
    pub fn replay_safe(self) -> bool {
        matches!(self, Self::Pure | Self::Idempotent | Self::Dedupe)
    }

    /// Whether it may only be used under a control.
    #[must_use]
    pub fn requires_control(self) -> bool {
        self == Self::UnsafeOnce
    }

    /// Whether its intent must be durable before it is executed.
    #[must_use]
    pub fn intends_first(self) -> bool {
        !self.replay_safe()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
    }
}

/// A word that is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected one of pure, idempotent, dedupe, reconcile, unsafe_once")
    }
}

impl core::error::Error for UnknownPolicy {}

/// An entry of the ledger, by its number within the run, counted from 1.
pub type OpId = u32;

/// An entry of the ledger: something a step did or waits for, durably.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// Its name in its scope, and which one of that name: its identity within the visit.
    pub key: Str,
    /// Which of the run's cursors made it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// In which visit of a step.
    pub visit: u32,
    /// What it is.
    pub kind: OpKind,
    /// The canonical hash of its input, if it has one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input: u64,
    /// When it was first recorded.
    pub at: Timestamp,
    /// How far it is.
    pub state: OpState,
}

/// What an entry of the ledger is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// Outside work.
    Effect(Effect),
    /// A wait for an instant.
    Timer {
        /// The instant.
        until: Timestamp,
    },
    /// A wait for one signal.
    Signal {
        /// Its name.
        name: Str,
        /// Wait until this instant at the latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Where it comes from, until the code has seen it: a wait that is given up before gives it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        got: Option<Box<Got>>,
    },
    /// A wait for one update: something the run is asked to do, and answers.
    Update {
        /// Its name.
        name: Str,
        /// Wait until this instant at the latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Whether the code has answered what it got.
        #[serde(default, skip_serializing_if = "is_zero")]
        answered: bool,
    },
    /// A child, and a wait for its end.
    Child {
        /// The child.
        run: RunId,
    },
    /// A mark: the run goes the new way at an edit of its code.
    Patch,
    /// A manual boundary: a wait for a person. What is asked is in [`Run::manual`].
    Manual {
        /// What kind of boundary.
        kind: ManualKind,
        /// Wait until this instant at the latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
}

/// Which signal a wait got; what it carried is the wait's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Got {
    /// Its number within the run.
    pub id: u64,
    /// When it arrived.
    pub at: Timestamp,
}

impl OpKind {
    /// The instant at which a wait ends at the latest.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Timer { until } => Some(*until),
            Self::Signal { until, .. } | Self::Update { until, .. } | Self::Manual { until, .. } => *until,
            Self::Effect(_) | Self::Child { .. } | Self::Patch => None,
        }
    }
}

/// An effect as the ledger has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Whether and how it may be repeated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub policy: Policy,
    /// The claim under which it was begun last; zero when it was not, or when someone allowed it to be begun again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claim: u32,
    /// Whose word let it begin, or begin once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Arc<Approval>>,
    /// How it failed, while its own retry policy tries it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Arc<Retries>>,
    /// Whether it undoes something, and takes place only when the run fails or is cancelled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undo: bool,
}

/// How far an entry of the ledger is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpState {
    /// Begun, and not known to have ended.
    Open,
    /// Ended with a value.
    Done {
        /// Where it stands among those that ended.
        when: EndedAt,
        /// The value.
        value: Payload,
    },
    /// Ended with an error.
    Failed {
        /// Where it stands among those that ended.
        when: EndedAt,
        /// The error.
        error: Arc<ErrorInfo>,
    },
    /// The instant came.
    Elapsed {
        /// Where it stands among those that ended.
        when: EndedAt,
    },
}

/// When an entry of the ledger ended, and when its step took notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedAt {
    /// Its place among all entries that ended.
    pub ended: u32,
    /// Its place among all entries that the step took notice of; zero while it has not. A replay follows this order.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seen: u32,
    /// The instant.
    pub at: Timestamp,
}

impl OpState {
    /// When it ended, if it has.
    #[must_use]
    pub fn when(&self) -> Option<EndedAt> {
        match self {
            Self::Open => None,
            Self::Done { when, .. } | Self::Failed { when, .. } | Self::Elapsed { when } => Some(*when),
        }
    }

    pub(crate) fn when_mut(&mut self) -> Option<&mut EndedAt> {
        match self {
            Self::Open => None,
            Self::Done { when, .. } | Self::Failed { when, .. } | Self::Elapsed { when } => Some(when),
        }
    }
}

/// Where an effect stands, in the words of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It will be begun, for the first time or again.
    NotStarted,
    /// A worker executes it.
    Running,
    /// It may or may not have happened: nobody knows, and it is not repeated.
    InDoubt,
    /// It happened, and its result is recorded.
    Committed,
    /// It failed, and its error is recorded.
    Failed,
    /// It took place and was undone.
    Compensated,
}

impl Standing {
    /// The word used everywhere: in JSON, on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Running => "running",
            Self::InDoubt => "in_doubt",
            Self::Committed => "committed",
            Self::Failed => "failed",
            Self::Compensated => "compensated",
        }
    }
}

/// An effect as people see it: the ledger's answer to "did it happen?".
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectView {
    /// Its key within the run.
    pub key: Str,
    /// Whether and how it may be repeated.
    pub policy: Policy,
    /// Where it stands.
    pub standing: Standing,
    /// The key that the other side was given.
    pub idempotency_key: String,
    /// When it was first recorded.
    pub begun_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// For one in doubt: the interrupt that an answer must name to allow a retry.
    pub interrupt: Option<u32>,
    /// Whose word let it begin, or begin once more.
    pub approval: Option<Arc<Approval>>,
    /// How often it failed and was tried again by its own retry policy.
    pub failures: u32,
    /// When it is tried again, while it waits for that.
    pub retry_at: Option<Timestamp>,
    /// Whether it undoes something.
    pub undo: bool,
    /// What it returned.
    pub value: Option<Payload>,
    /// How it failed, at last or for now.
    pub error: Option<Arc<ErrorInfo>>,
}

impl Op {
    /// The instant at which it ends, or begins again, by itself, while it is open.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        match (&self.state, &self.kind) {
            (OpState::Open, OpKind::Effect(effect)) => effect.retries.as_ref()?.until,
            (OpState::Open, wait) => wait.until(),
            _ => None,
        }
    }

    /// Whether it is a wait for an instant, a signal or an update that its step gave up: it ended before its time, with
    /// nothing. A replay gives it up at the same place; code that comes to wait for it all the same waits again.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        let waits = matches!(self.kind, OpKind::Timer { .. } | OpKind::Signal { .. } | OpKind::Update { .. });
        let early = |at: Timestamp| self.kind.until().is_none_or(|until| at < until);
        waits && matches!(&self.state, OpState::Elapsed { when } if early(when.at))
    }

    /// The effect, if it is one.
    #[must_use]
    pub fn effect(&self) -> Option<&Effect> {
        match &self.kind {
            OpKind::Effect(effect) => Some(effect),
            _ => None,
        }
    }
}

impl Run {
    /// Whether an entry is of the visit that its cursor is in.
    pub(crate) fn is_current(&self, op: &Op) -> bool {
        self.cursors.get(usize::from(op.cursor)).is_some_and(|cursor| cursor.visit == op.visit)
    }

    /// An entry of the ledger.
    #[must_use]
    pub fn op(&self, id: OpId) -> Option<&Op> {
        let index = id.checked_sub(self.ops_dropped + 1)?;
        self.ops.get(index as usize)
    }

    pub(crate) fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        let index = id.checked_sub(self.ops_dropped + 1)?;
        Arc::make_mut(&mut self.ops).get_mut(index as usize)
    }

    /// The number that the next new entry of the ledger gets.
    #[must_use]
    pub fn next_op(&self) -> OpId {
        self.ops_dropped + self.ops.len() as u32 + 1
    }

    /// All entries of the ledger, with their numbers.
    pub fn ops(&self) -> impl Iterator<Item = (OpId, &Op)> {
        (self.ops_dropped + 1..).zip(self.ops.iter())
    }

    /// The entries that are open, in the order they were made.
    pub fn open_ops(&self) -> impl Iterator<Item = (OpId, &Op)> {
        self.open.iter().filter_map(|id| Some((*id, self.op(*id)?)))
    }

    /// The effects of the ledger as people see them, in the order they were begun.
    pub fn effects(&self) -> impl Iterator<Item = EffectView> {
        self.ops().filter_map(|(id, _)| self.effect_view(id))
    }

    /// One effect as people see it.
    #[must_use]
    pub fn effect_view(&self, id: OpId) -> Option<EffectView> {
        let (op, standing) = (self.op(id)?, self.standing(id)?);
        let effect = op.effect()?;
        let retries = effect.retries.as_ref();
        let (value, error) = match &op.state {
            OpState::Done { value, .. } => (Some(value.clone()), None),
            OpState::Failed { error, .. } => (None, Some(error.clone())),
            OpState::Open => (None, retries.map(|retries| retries.error.clone())),
            OpState::Elapsed { .. } => (None, None),
        };
        Some(EffectView {
            key: op.key.clone(),
            policy: effect.policy,
            standing,
            idempotency_key: self.idempotency_key(op),
            begun_at: op.at,
            ended_at: op.state.when().map(|when| when.at),
            interrupt: (standing == Standing::InDoubt).then_some(effect.claim),
            approval: effect.approval.clone(),
            failures: retries.map_or(0, |retries| retries.failures),
            retry_at: op.due(),
            undo: effect.undo,
            value,
            error,
        })
    }

    /// The key that the code of an effect gives to the other side.
    fn idempotency_key(&self, op: &Op) -> String {
        let cursor = self.cursors.get(usize::from(op.cursor));
        let step = cursor.and_then(|cursor| cursor.step.as_deref()).unwrap_or_default();
        format!("{}-{}-{step}-{}/{}", self.id, self.epoch, op.visit, op.key)
    }

    /// Where an effect stands; `None` when there is no such effect.
    #[must_use]
    pub fn standing(&self, id: OpId) -> Option<Standing> {
        let op = self.op(id)?;
        let effect = op.effect()?;
        Some(match &op.state {
            OpState::Done { .. } => Standing::Committed,
            // It would have undone something of a life that another followed.
            OpState::Elapsed { .. } => Standing::NotStarted,
            OpState::Failed { error, .. } if &*error.code == COMPENSATED => Standing::Compensated,
            OpState::Failed { .. } => Standing::Failed,
            OpState::Open if effect.claim == 0 => Standing::NotStarted,
            OpState::Open if self.holds(op.cursor, effect.claim) => Standing::Running,
            OpState::Open if effect.policy.replay_safe() => Standing::NotStarted,
            OpState::Open => Standing::InDoubt,
        })
    }

    /// Whether `claim` is the one that is held on the cursor now.
    fn holds(&self, cursor: u16, claim: u32) -> bool {
        let at = self.cursors.get(usize::from(cursor));
        at.is_some_and(|at| matches!(&at.phase, Phase::Claimed(held) if held.number == claim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JI-2, JI-3, JI-8, JI-34: five policies, of which one is the default and one needs a control.
    #[test]
    fn policies_have_one_word_each_and_their_own_rules() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
            assert_eq!(policy.requires_control(), policy == Policy::UnsafeOnce);
            assert_eq!(policy.intends_first(), !policy.replay_safe());
        }
        assert_eq!(Policy::default(), Policy::Idempotent);
        assert!("once".parse::<Policy>().is_err());
    }
}
