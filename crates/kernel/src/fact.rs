//! Facts: what became true. They are a published format, so they record decisions and never rules.
//!
//! A journal row carries the facts of one transition. Facts are written as JSON by serde, tagged by kind; a
//! field that has its usual value is left out.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::limits::{DELAY_MS_MAX, LEASE_MS_MIN};
use crate::outcome::Consume;
use crate::payload::present;
use crate::run::{Run, Wait};
use crate::spec::is_zero;
use crate::{
    Answered, Asked, Assigned, ChildAnswered, ChildEnded, ChildStarted, Decided, ErrorInfo, Fingerprint, OpId, OpKind,
    Outcome, Payload, Progressed, RequestId, Requested, Retrying, Rev, RunId, Seq, StartSpec, Status, Str, Timestamp,
    TokenHash,
};

/// The version of the fact format written by this release.
pub const FORMAT: u8 = 1;

/// The facts of one transition.
pub type Facts = SmallVec<[Fact; 4]>;

/// One row of a shard's log: what one transition made true of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its position in the shard's log.
    pub seq: Seq,
    /// The run it is about.
    pub run: RunId,
    /// The run's revision after it.
    pub rev: Rev,
    /// The position of the run's row before this one; zero for the first.
    pub prior: Seq,
    /// When it was decided, by the shard owner's clock.
    pub at: Timestamp,
    /// What became true.
    pub facts: Facts,
}

impl Row {
    /// Whether a run's journal begins with it: it says all there is to know of the run. A start that is not the first of
    /// its run is damage.
    #[must_use]
    pub fn begins(&self) -> bool {
        match self.facts.first() {
            Some(Fact::Started(_)) => self.rev == Rev(1),
            Some(Fact::Compacted(_)) => true,
            _ => false,
        }
    }
}

/// Something that became true of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The run began.
    Started(Box<Started>),
    /// The definition that will run it was fixed at the first claim.
    Pinned(Pinned),
    /// An attempt may be claimed from `visible_at` on.
    Scheduled(Scheduled),
    /// A live hint about a scheduled attempt was given to the notifier.
    Notified(TurnRef),
    /// A worker claimed the attempt.
    Claimed(Claimed),
    /// The lease was extended.
    Heartbeat(Heartbeat),
    /// A step said how far it has come.
    Progressed(Box<Progressed>),
    /// The lease ended without an answer.
    Expired(ClaimRef),
    /// The claim was given back before the worker had begun.
    Returned(ClaimRef),
    /// The step returned an outcome.
    Completed(Completed),
    /// The step failed.
    Failed(Box<Failed>),
    /// The outcome was applied to the run.
    Applied(Applied),
    /// A named signal arrived.
    SignalReceived(Box<SignalReceived>),
    /// A wait is over.
    Woken(Woken),
    /// A child was asked for.
    ChildStarted(Box<ChildStarted>),
    /// A child that was asked for exists already, or was refused.
    ChildAnswered(Box<ChildAnswered>),
    /// A child ended.
    ChildEnded(Box<ChildEnded>),
    /// The parent's record is gone.
    ParentPurged,
    /// The run in another shard, for which this record holds a key, has begun.
    Begun,
    /// The run ended.
    Ended(Box<Ended>),
    /// The attempt was set aside as a dead letter.
    DeadLettered(Box<DeadLettered>),
    /// A dead letter was put back.
    Requeued(CursorRef),
    /// An entry of the ledger was begun: an effect or a wait.
    Intended(Box<Intended>),
    /// An entry of the ledger ended.
    Resulted(Box<Resulted>),
    /// An effect failed, and is tried again by its own policy.
    Retrying(Box<Retrying>),
    /// A step took notice of an entry that had ended.
    Seen(Seen),
    /// Someone said what became of an effect that was in doubt.
    Resolved(Box<Resolved>),
    /// Someone wants the run to end, and it has something to undo first.
    Cancelling(Box<Cancelling>),
    /// A person was asked: a manual boundary opened.
    Asked(Arc<Asked>),
    /// A manual boundary was given to somebody, or given back.
    Assigned(Box<Assigned>),
    /// A manual boundary was decided.
    Decided(Arc<Decided>),
    /// A step published a state, for those who look at the run from outside.
    Published(Published),
    /// The run was asked to do something and to answer.
    Requested(Box<Requested>),
    /// The run answered.
    Answered(Box<Answered>),
    /// An input contradicted the facts; it was recorded and not obeyed.
    Anomaly(Box<Anomaly>),
    /// The run's record was removed.
    Purged,
    /// The run up to here, in one piece: earlier facts may be gone.
    Compacted(Box<Run>),
}

impl Fact {
    /// The word for this kind of fact, as in the journal.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Started(_) => "started",
            Self::Pinned(_) => "pinned",
            Self::Scheduled(_) => "scheduled",
            Self::Notified(_) => "notified",
            Self::Claimed(_) => "claimed",
            Self::Heartbeat(_) => "heartbeat",
            Self::Progressed(_) => "progressed",
            Self::Expired(_) => "expired",
            Self::Returned(_) => "returned",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Applied(_) => "applied",
            Self::SignalReceived(_) => "signal_received",
            Self::Woken(_) => "woken",
            Self::ChildStarted(_) => "child_started",
            Self::ChildAnswered(_) => "child_answered",
            Self::ChildEnded(_) => "child_ended",
            Self::ParentPurged => "parent_purged",
            Self::Begun => "begun",
            Self::Ended(_) => "ended",
            Self::DeadLettered(_) => "dead_lettered",
            Self::Requeued(_) => "requeued",
            Self::Intended(_) => "intended",
            Self::Resulted(_) => "resulted",
            Self::Retrying(_) => "retrying",
            Self::Seen(_) => "seen",
            Self::Resolved(_) => "resolved",
            Self::Cancelling(_) => "cancelling",
            Self::Asked(_) => "asked",
            Self::Assigned(_) => "assigned",
            Self::Decided(_) => "decided",
            Self::Published(_) => "published",
            Self::Requested(_) => "requested",
            Self::Answered(_) => "answered",
            Self::Anomaly(_) => "anomaly",
            Self::Purged => "purged",
            Self::Compacted(_) => "compacted",
        }
    }
}

/// The run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// What was asked for.
    pub spec: StartSpec,
    /// The request that asked for it.
    pub request: RequestId,
    /// The run that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The canonical hash of the input, kept for runs with a business key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<u64>,
    /// Set when this record only holds a business key for a run that lives in another shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserves: Option<RunId>,
    /// The record that holds this run's business key, when that is in another shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<RunId>,
}

/// Which run, step and attempt started a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    /// The parent run.
    pub run: RunId,
    /// The life of the parent in which the child was started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// The step that started it.
    pub step: Str,
    /// Which attempt of that step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// The child's key, for a child started inside a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Str>,
}

/// The definition that runs the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pinned {
    /// The fingerprint of the definition.
    pub fingerprint: Fingerprint,
    /// Its first step.
    pub step: Str,
}

/// An attempt may be claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheduled {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The attempt's number within the cursor: with run and cursor, the runnable key.
    pub turn: u32,
    /// The step; absent while the first step's name is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Str>,
    /// Not before this instant; absent means at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_at: Option<Timestamp>,
}

/// An attempt, by cursor and turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRef {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The attempt's number within the cursor.
    pub turn: u32,
}

/// A cursor of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorRef {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
}

/// Who claims: the worker's name, the hash of its token, and how long its leases last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// The worker.
    pub owner: Str,
    /// The hash of the token that only the worker knows.
    pub token: TokenHash,
    /// How long a lease lasts.
    pub lease_ms: u64,
    /// The process the worker lives in, when the engine itself runs it: its death ends the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Str>,
}

impl Claimant {
    /// A claimant whose leases are neither too short to be kept nor endless.
    #[must_use]
    pub fn new(owner: Str, token: TokenHash, lease_ms: u64, process: Option<Str>) -> Arc<Self> {
        Arc::new(Self { owner, token, lease_ms: lease_ms.clamp(LEASE_MS_MIN, DELAY_MS_MAX), process })
    }
}

/// A worker claimed the attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim's number.
    pub claim: u32,
    /// Who claims. Absent: the same as the cursor's claim before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<Claimant>>,
}

/// A claim of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRef {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim's number.
    pub claim: u32,
}

/// The lease was extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim's number.
    pub claim: u32,
    /// When the lease ends now.
    pub lease_until: Timestamp,
}

/// The step returned an outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completed {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim under which it ran.
    pub claim: u32,
    /// What it returned.
    pub outcome: Arc<Outcome>,
    /// Which waiting signals it uses up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consume: Consume,
    /// The error that the workflow's error handler answered with this outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<ErrorInfo>>,
}

/// The step failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim under which it ran.
    pub claim: u32,
    /// What went wrong.
    pub error: Arc<ErrorInfo>,
    /// When it is tried again; absent means that it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

/// The outcome was applied to the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The signals it used up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumed: Vec<u64>,
    /// What follows.
    pub then: After,
}

/// What follows from an applied outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// The step that the outcome names is planned.
    Step,
    /// The same step is planned again, and counts as a retry.
    Replay,
    /// The awaited signal had already arrived: the step that the outcome names, or the same one, is planned.
    Arrived,
    /// The cursor waits.
    Wait(Arc<Wait>),
    /// The run begins again at its first step.
    Continue,
    /// The cursor is finished; its run may be too.
    Finished,
}

/// A named signal arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalReceived {
    /// Its number within the run.
    pub id: u64,
    /// Its name.
    pub name: Str,
    /// What it carries.
    pub payload: Payload,
    /// A key under which the sender sends it only once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<Str>,
    /// The request that brought it.
    pub request: RequestId,
}

/// A wait is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Woken {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The token of the wait that is over.
    pub token: u64,
    /// What ended it.
    pub by: WakeReason,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeReason {
    /// A signal of an awaited name.
    Signal,
    /// The instant slept for.
    Timer,
    /// The join barrier.
    Children,
    /// The wait's deadline.
    Deadline,
    /// An entry of the ledger ended.
    Ledger,
}

/// The run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub status: Status,
    /// Its result, when the outcome in the same row does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub result: Option<Payload>,
    /// Its error, when the outcome in the same row does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<ErrorInfo>>,
    /// The request that ended it from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
}

/// The attempt was set aside as a dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLettered {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// Why.
    pub reason: ErrorInfo,
    /// The node that gave up.
    pub node: Str,
    /// The attempt as it was scheduled.
    pub envelope: Scheduled,
}

/// An entry of the ledger was begun, or an effect of it was begun again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intended {
    /// The entry's number.
    pub op: OpId,
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// Its name in its scope, and which one of that name.
    pub key: Str,
    /// What it is.
    pub kind: OpKind,
    /// The canonical hash of its input, if it has one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input: u64,
}

/// An entry of the ledger ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resulted {
    /// The entry's number.
    pub op: OpId,
    /// How.
    pub end: OpEnd,
    /// When, by the step's own account, which is no later than the row's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Someone said what became of an effect that was in doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// The entry's number.
    pub op: OpId,
    /// What became of it, or what is to become of it.
    pub how: Resolution,
    /// Who said so.
    pub actor: Str,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Str>,
    /// The request.
    pub request: RequestId,
}

/// What became of an effect that was in doubt, or what is to become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// It took place, with this result.
    Value(Payload),
    /// It did not take place, or not well.
    Failed(Arc<ErrorInfo>),
    /// It is executed once more.
    Retry,
    /// It took place, and was undone by hand.
    Compensated,
}

/// Someone wants the run to end, and it has something to undo first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cancelling {
    /// Why.
    pub reason: Arc<ErrorInfo>,
    /// The request.
    pub request: RequestId,
    /// Whether its open children end too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cascade: bool,
}

/// A step published a state, for those who look at the run from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The state.
    pub state: Payload,
}

/// A step took notice of an entry of its ledger that had ended without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The entry's number.
    pub op: OpId,
}

/// How an entry of the ledger ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpEnd {
    /// With this value.
    Value(Payload),
    /// With this error.
    Error(Arc<ErrorInfo>),
    /// With the signal of this number, which leaves the inbox.
    Signal(u64),
    /// With the update of this number.
    Update(u64),
    /// Its instant came.
    Elapsed,
    /// Its child ended, as the fact before says.
    Child,
    /// It was decided, as the fact before says.
    Decision,
    /// Its step does not wait for it any more.
    Withdrawn,
    /// Its error does not count: it is begun again.
    Reopened,
}

/// An input contradicted the facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anomaly {
    /// A stable word for the contradiction, like `stale_claim`.
    pub kind: Str,
    /// What came in and what stands against it.
    pub detail: Str,
}
