//! Manual boundaries: what a run asks of people, who has it, and what they decided. A run has one open at most.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::spec::is_zero;
use crate::{BadId, OpId, Payload, RequestId, Run, RunId, Str, Timestamp};

/// A manual boundary, by its run and its entry in the ledger. It is also the token: a decision that names another one
/// is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryId {
    /// The run.
    pub run: RunId,
    /// The entry of its ledger; numbers are never used twice in a run.
    pub op: OpId,
}

impl BoundaryId {
    /// What its text form begins with.
    pub const PREFIX: &'static str = "manual_";
}

impl fmt::Display for BoundaryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:032x}.{}", Self::PREFIX, self.run.0, self.op)
    }
}

impl FromStr for BoundaryId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { expected: "manual_<32 hex digits>.<number>", found: text.chars().take(80).collect() };
        let (run, op) = text.strip_prefix(Self::PREFIX).and_then(|rest| rest.split_once('.')).ok_or_else(bad)?;
        let run = u128::from_str_radix(run, 16).map_err(|_| bad())?;
        let id = Self { run: RunId(run), op: op.parse().map_err(|_| bad())? };
        // One spelling only: no sign, no capitals and no zeros before.
        if id.to_string() == text { Ok(id) } else { Err(bad()) }
    }
}

impl Serialize for BoundaryId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BoundaryId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|error: BadId| serde::de::Error::custom(error.to_string()))
    }
}

/// What the key of a review ends with, after the key of the effect that is reviewed. No name of a step's own has a `#`.
pub const REVIEW: &str = "#review";

/// The key of the review of an effect: the boundary that must be approved before the effect begins.
#[must_use]
pub fn review_key(effect: &str) -> Str {
    [effect, REVIEW].concat().into()
}

/// What is asked of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManualKind {
    /// To let the run go on.
    Pause,
    /// To approve or to reject.
    Approval,
    /// To do a piece of work and to hand in its result.
    Task,
}

impl ManualKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Pause, Self::Approval, Self::Task];

    /// The word used everywhere: in JSON, on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Approval => "approval",
            Self::Task => "task",
        }
    }

    /// What may be chosen at a boundary of this kind.
    #[must_use]
    pub fn choices(self) -> &'static [Choice] {
        match self {
            Self::Pause => &[Choice::Resume],
            Self::Approval => &[Choice::Approve, Choice::Reject],
            Self::Task => &[Choice::Complete],
        }
    }
}

impl fmt::Display for ManualKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a person chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The paused run goes on.
    Resume,
    /// Yes.
    Approve,
    /// No.
    Reject,
    /// The work is done.
    Complete,
}

impl Choice {
    /// The word used everywhere: in JSON, on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Complete => "complete",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What follows when nobody has decided by the deadline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The wait is over without a decision, and the code says what follows.
    #[default]
    Elapse,
    /// This counts as decided.
    Decide {
        /// What.
        choice: Choice,
        /// What comes with it.
        #[serde(default, skip_serializing_if = "is_zero")]
        payload: Payload,
    },
}

/// A person is asked: a manual boundary opens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The entry of the ledger: with the run, the boundary's id.
    pub op: OpId,
    /// What is asked.
    pub kind: ManualKind,
    /// The name under which the step asks.
    pub key: Str,
    /// The step that asks.
    pub step: Str,
    /// What the person is shown, or the form of the work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub payload: Payload,
    /// Who decides acts in one of these roles; empty means anybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Str>,
    /// Whose it is from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee: Option<Str>,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What follows then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub on_timeout: OnTimeout,
}

impl Asked {
    /// The key of the effect that is reviewed, if this is a review.
    #[must_use]
    pub fn reviews(&self) -> Option<&str> {
        self.key.strip_suffix(REVIEW).filter(|_| self.kind == ManualKind::Approval)
    }
}

/// A boundary was given to somebody, or given back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assigned {
    /// The entry of the ledger.
    pub op: OpId,
    /// Whose it is now; absent when it was given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Str>,
    /// Who did so.
    pub actor: Str,
    /// The roles in which they did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Str>,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Str>,
    /// The request that brought it.
    pub request: RequestId,
}

/// A boundary was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// The entry of the ledger.
    pub op: OpId,
    /// What was chosen.
    pub choice: Choice,
    /// Who chose; absent when the deadline did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Str>,
    /// The roles in which they did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Str>,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Str>,
    /// What they handed in.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub payload: Payload,
    /// The request that brought it; absent when the deadline did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
}

/// A manual boundary as it stands, and all that happened to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manual {
    /// What was asked.
    pub asked: Arc<Asked>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee: Option<Str>,
    /// What happened to it, oldest first. Events are only ever added.
    pub events: Vec<ManualEvent>,
    /// How it ended; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ManualEnd>,
}

impl Manual {
    /// When it was asked.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.events.first().map_or_else(Timestamp::default, |event| event.at)
    }

    /// The decision, if there was one.
    #[must_use]
    pub fn decided(&self) -> Option<&Decided> {
        match &self.end {
            Some(ManualEnd::Decided(decided)) => Some(decided),
            _ => None,
        }
    }
}

/// How a manual boundary ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManualEnd {
    /// Somebody decided, or the deadline did.
    Decided(Arc<Decided>),
    /// Nobody decided in time.
    TimedOut,
    /// The step does not ask any more.
    Withdrawn,
    /// The run ended first.
    RunEnded,
}

impl ManualEnd {
    /// The word used everywhere: in JSON, on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Decided(decided) => match decided.choice {
                Choice::Resume => "resumed",
                Choice::Approve => "approved",
                Choice::Reject => "rejected",
                Choice::Complete => "completed",
            },
            Self::TimedOut => "timed_out",
            Self::Withdrawn => "withdrawn",
            Self::RunEnded => "run_ended",
        }
    }
}

/// Something that happened to a manual boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManualEvent {
    /// What.
    pub kind: ManualEventKind,
    /// When.
    pub at: Timestamp,
    /// By whom; absent when nobody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Str>,
    /// Whose it was from then on, for one that was given to somebody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Str>,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Str>,
    /// The request that brought it, so that a retry is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
}

/// The kinds of things that happen to a manual boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManualEventKind {
    /// It was asked.
    Created,
    /// It was given to somebody.
    Assigned,
    /// It was given back.
    Released,
    /// It went from one to another.
    Reassigned,
    /// It was decided.
    Completed,
    /// It ended without a decision.
    Closed,
}

impl ManualEventKind {
    /// The word used everywhere: in JSON, on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Assigned => "assigned",
            Self::Released => "released",
            Self::Reassigned => "reassigned",
            Self::Completed => "completed",
            Self::Closed => "closed",
        }
    }
}

impl Run {
    /// The boundary at which the run waits for a person, if it does.
    #[must_use]
    pub fn boundary(&self) -> Option<&Manual> {
        self.manual.iter().rev().find(|manual| manual.end.is_none())
    }

    /// A boundary of the run, open or over.
    #[must_use]
    pub fn manual(&self, op: OpId) -> Option<&Manual> {
        self.manual.iter().rev().find(|manual| manual.asked.op == op)
    }

    /// The id of one of its boundaries.
    #[must_use]
    pub fn boundary_id(&self, manual: &Manual) -> BoundaryId {
        BoundaryId { run: self.id, op: manual.asked.op }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D27: a boundary's id is also its token, and has one text form.
    #[test]
    fn an_id_survives_its_text_form() {
        let id = BoundaryId { run: RunId(0x0193_f2c4), op: 7 };
        assert_eq!(id.to_string().parse(), Ok(id));
        let bare = "0193f2c4000000000000000000000000";
        for wrong in
            ["manual_.7", "manual_0193f2c4.7", &alloc::format!("manual_{bare}"), &alloc::format!("run_{bare}.7")]
        {
            assert!(wrong.parse::<BoundaryId>().is_err(), "{wrong}");
        }
    }

    /// D27: each kind has choices of its own.
    #[test]
    fn every_choice_belongs_to_one_kind() {
        for choice in [Choice::Resume, Choice::Approve, Choice::Reject, Choice::Complete] {
            let kinds = ManualKind::ALL.into_iter().filter(|kind| kind.choices().contains(&choice));
            assert_eq!(kinds.count(), 1, "{choice}");
        }
    }
}
