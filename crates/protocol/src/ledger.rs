//! The ledger of a run on the network: what a step reads of it, and what it writes to it.

use std::sync::Arc;

use abide_kernel as kernel;
use abide_kernel::transition::{manual, record};
use abide_kernel::{Choice, ManualKind, OnTimeout, Payload, Policy, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Instant, Moment, Start};

/// An entry of the ledger, as a step reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerEntry {
    /// Its number within the run, counted from 1.
    pub op: u32,
    /// Its key within the visit of the step that made it.
    pub key: String,
    /// In which visit of a step.
    pub visit: u32,
    /// What it is.
    pub what: Entered,
    /// The canonical hash of its input, in hexadecimal; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// When it was first recorded.
    pub at: Instant,
    /// How it ended; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EntryEnd>,
}

/// What an entry of the ledger is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Entered {
    /// Outside work.
    Effect {
        /// Whether and how it may be repeated.
        #[schemars(with = "crate::shape::EffectPolicy")]
        policy: Policy,
        /// The claim under which it was begun last; 0 when it was not, or may be begun again.
        claim: u32,
        /// How often it failed and was tried again.
        failures: u32,
        /// Not before this instant again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Instant>,
        /// Whether it undoes something.
        undo: bool,
    },
    /// A wait for an instant.
    Timer {
        /// The instant.
        until: Instant,
    },
    /// A wait for one signal.
    Signal {
        /// Its name.
        name: String,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Instant>,
    },
    /// A wait for one update.
    Update {
        /// Its name.
        name: String,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Instant>,
        /// Whether the step has answered it.
        answered: bool,
    },
    /// A child, and a wait for its end.
    Child {
        /// The child.
        #[schemars(with = "crate::shape::Run")]
        run: RunId,
    },
    /// A mark: the run goes the new way at an edit of its code.
    Patch {},
    /// A wait for a person.
    Manual {
        /// What is asked.
        #[schemars(with = "crate::shape::Kind")]
        kind: ManualKind,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Instant>,
    },
}

/// How an entry of the ledger ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EntryEnd {
    /// Its place among all entries that ended.
    pub ended: u32,
    /// Its place among all that the step took notice of, in which a replay meets them; 0 while it has not.
    pub seen: u32,
    /// When.
    pub at: Instant,
    /// The value it ended with; `null` too where it is absent, and neither of the others is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub value: Option<Payload>,
    /// The error it ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// There when its instant came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed: Option<Elapsed>,
}

/// The instant of an entry came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Elapsed {}

impl LedgerEntry {
    /// An entry by its number, as the kernel has it.
    #[must_use]
    pub fn of(op: u32, entry: &kernel::Op) -> Self {
        use kernel::{OpKind, OpState};
        let what = match &entry.kind {
            OpKind::Effect(effect) => Entered::Effect {
                policy: effect.policy,
                claim: effect.claim,
                failures: effect.retries.as_ref().map_or(0, |retries| retries.failures),
                retry_at: effect.retries.as_ref().and_then(|retries| retries.until).map(Into::into),
                undo: effect.undo,
            },
            OpKind::Timer { until } => Entered::Timer { until: (*until).into() },
            OpKind::Signal { name, until, .. } => {
                Entered::Signal { name: name.to_string(), until: until.map(Into::into) }
            }
            OpKind::Update { name, until, answered } => {
                Entered::Update { name: name.to_string(), until: until.map(Into::into), answered: *answered }
            }
            OpKind::Child { run } => Entered::Child { run: *run },
            OpKind::Patch => Entered::Patch {},
            OpKind::Manual { kind, until } => Entered::Manual { kind: *kind, until: until.map(Into::into) },
        };
        let end = entry.state.when().map(|when| {
            let (value, error, elapsed) = match &entry.state {
                OpState::Done { value, .. } => (Some(value.clone()), None, None),
                OpState::Failed { error, .. } => (None, Some((&**error).into()), None),
                OpState::Elapsed { .. } => (None, None, Some(Elapsed {})),
                OpState::Open => (None, None, None),
            };
            EntryEnd { ended: when.ended, seen: when.seen, at: when.at.into(), value, error, elapsed }
        });
        Self {
            op,
            key: entry.key.to_string(),
            visit: entry.visit,
            what,
            input: (entry.input != 0).then(|| format!("{:016x}", entry.input)),
            at: entry.at.into(),
            end,
        }
    }
}

/// One thing that a step writes to the ledger. Under a claim only its worker adds entries, so it numbers them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// It is about to do something, or begins to wait.
    Intend {
        /// The entry's number: the next one for a new entry.
        op: u32,
        /// Its key.
        key: String,
        /// The canonical hash of its input, 16 hexadecimal digits; absent if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = "^[0-9a-f]{16}$"))]
        input: Option<String>,
        /// What.
        what: Wanted,
    },
    /// An effect ended well.
    Done {
        /// The entry's number.
        op: u32,
        /// What it returned.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        value: Payload,
        /// When, by the worker's clock.
        at: Instant,
    },
    /// An effect failed for good.
    Failed {
        /// The entry's number.
        op: u32,
        /// How.
        error: Error,
        /// When, by the worker's clock.
        at: Instant,
    },
    /// An effect failed, and its own retry policy tries it again.
    Again {
        /// The entry's number.
        op: u32,
        /// How it failed.
        error: Error,
        /// How long to wait first.
        #[serde(default)]
        delay_ms: u64,
    },
    /// The step took notice of an entry that had ended without it.
    See {
        /// The entry's number.
        op: u32,
    },
    /// The step does not wait for it any more.
    Withdraw {
        /// The entry's number.
        op: u32,
    },
    /// The step waits after all for what it had withdrawn.
    WaitAgain {
        /// The entry's number.
        op: u32,
    },
    /// The step answers an update.
    Answer {
        /// The entry that got it.
        op: u32,
        /// What it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "serde_json::Value")]
        value: Option<Payload>,
        /// Why it says no.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rejected: Option<Error>,
        /// Set when the code never got it, because it could not read it.
        #[serde(default, skip_serializing_if = "is_false")]
        unread: bool,
    },
    /// The step publishes a state, for those who look at the run from outside.
    Publish {
        /// The state.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        state: Payload,
    },
}

/// What an entry is about to be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wanted {
    /// Outside work.
    Effect {
        /// Whether and how it may be repeated.
        #[schemars(with = "crate::shape::EffectPolicy")]
        policy: Policy,
        /// The entry at which a person approved it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        review: Option<u32>,
    },
    /// Work that undoes something, if the run fails or is cancelled.
    Undo {
        /// Whether and how it may be repeated.
        #[schemars(with = "crate::shape::EffectPolicy")]
        policy: Policy,
    },
    /// A wait for an instant.
    Timer {
        /// The instant.
        until: Moment,
    },
    /// A wait for one signal.
    Signal {
        /// Its name.
        name: String,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
    },
    /// A wait for one update.
    Update {
        /// Its name.
        name: String,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
    },
    /// A child, and a wait for its end.
    Child {
        /// What is started.
        start: Box<Start>,
    },
    /// A mark: the run goes the new way at an edit of its code.
    Patch {
        /// When, by the time that the code sees.
        at: Instant,
    },
    /// A wait for a person.
    Manual {
        /// What is asked.
        #[schemars(with = "crate::shape::Kind")]
        kind: ManualKind,
        /// What the person is shown, or the form of the work.
        #[serde(default)]
        #[schemars(with = "serde_json::Value")]
        payload: Payload,
        /// Who decides acts in one of these roles; empty means anybody.
        #[serde(default)]
        roles: Vec<String>,
        /// Whose it is from the beginning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assignee: Option<String>,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Moment>,
        /// What counts as decided when that has come; without it the wait ends without a decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        otherwise: Option<Otherwise>,
    },
}

/// What counts as decided when the time is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Otherwise {
    /// What.
    #[schemars(with = "crate::shape::Chosen")]
    pub choice: Choice,
    /// What comes with it.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl Entry {
    /// As the kernel has it. What children are started with depends on where: `spec` says it.
    ///
    /// # Errors
    /// What is wrong, where it cannot be said in the kernel's words.
    pub fn into_kernel(self, spec: impl Fn(Start) -> kernel::StartSpec) -> Result<record::Entry, String> {
        use record::Entry as To;
        Ok(match self {
            Self::Intend { op, key, input, what } => {
                let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let hash = |text: String| match u64::from_str_radix(&text, 16) {
                    Ok(hash) if text.len() == 16 && is_hex(&text) => Ok(hash),
                    Ok(_) | Err(_) => Err(format!("input: expected 16 hexadecimal digits, found {text:?}")),
                };
                let input = input.map(hash).transpose()?.unwrap_or_default();
                To::Intend { op, key: key.into(), input, what: what.into_kernel(spec) }
            }
            Self::Done { op, value, at } => To::End { op, outcome: Ok(value), at: at.0 },
            Self::Failed { op, error, at } => To::End { op, outcome: Err(Arc::new(error.into())), at: at.0 },
            Self::Again { op, error, delay_ms } => To::Again { op, error: Arc::new(error.into()), delay_ms },
            Self::See { op } => To::See { op },
            Self::Withdraw { op } => To::Withdraw { op },
            Self::WaitAgain { op } => To::WaitAgain { op },
            Self::Answer { op, value, rejected, unread } => {
                let reply = match (value, rejected) {
                    (Some(_), Some(_)) => return Err("answer: expected a value or a rejection, found both".into()),
                    (value, None) => kernel::Reply::Value(value.unwrap_or_default()),
                    (None, Some(error)) => kernel::Reply::Rejected(Arc::new(error.into())),
                };
                To::Answer { op, reply, unread }
            }
            Self::Publish { state } => To::Publish { state },
        })
    }
}

impl Wanted {
    fn into_kernel(self, spec: impl Fn(Start) -> kernel::StartSpec) -> record::Wanted {
        use record::Wanted as To;
        match self {
            Self::Effect { policy, review: None } => To::Effect(policy),
            Self::Effect { policy, review: Some(review) } => To::Reviewed { policy, review },
            Self::Undo { policy } => To::Undo(policy),
            Self::Timer { until } => To::Timer(until.into()),
            Self::Signal { name, deadline } => To::Signal { name: name.into(), deadline: deadline.map(Into::into) },
            Self::Update { name, deadline } => To::Update { name: name.into(), deadline: deadline.map(Into::into) },
            Self::Child { start } => To::Child(Box::new(spec(*start))),
            Self::Patch { at } => To::Patch { at: at.0 },
            Self::Manual { kind, payload, roles, assignee, deadline, otherwise } => {
                let asking = manual::Asking {
                    payload,
                    roles: roles.into_iter().map(Into::into).collect(),
                    assignee: assignee.map(Into::into),
                    deadline: deadline.map(Into::into),
                    on_timeout: otherwise.map_or(OnTimeout::Elapse, |otherwise| OnTimeout::Decide {
                        choice: otherwise.choice,
                        payload: otherwise.payload,
                    }),
                    kind,
                };
                To::Manual(Box::new(asking))
            }
        }
    }
}
