//! What a shard is told and what it tells: commands, answers, and what leaves once it is durable.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::envelope::{DeadEnvelope, Envelope};
use crate::payload::present;
use crate::transition::{
    child::StartingChild, complete::Completing, fail::Failing, manual, progress, record::Recording, resolve::Resolving,
    signal, start::StartAnswer, update,
};
use crate::{
    Child, ClaimId, Claimant, ErrorInfo, LetterId, Op, OpId, Payload, Refusal, Reply, RequestId, Rev, Row, Run, RunId,
    Scheduled, Seq, ShardEpoch, ShardId, Signal, StartSpec, Status, Str, Timestamp, TokenHash, WakeReason,
};

/// A caller's mark on a command, given back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A worker known to a shard, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

/// What a shard can be asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Start a run.
    Start {
        /// The client's request.
        request: RequestId,
        /// What to start.
        spec: Box<StartSpec>,
    },
    /// Send a named signal to a run.
    Signal {
        /// The run.
        run: RunId,
        /// What is sent.
        sent: Box<signal::Sent>,
    },
    /// Ask a run to do something.
    Update {
        /// The run.
        run: RunId,
        /// What is asked.
        asked: Box<update::Requesting>,
        /// When the caller is told.
        told: Told,
    },
    /// Decide what a run asks of a person.
    Decide {
        /// The run.
        run: RunId,
        /// What the person says.
        deciding: Box<manual::Deciding>,
    },
    /// Give what a run asks of a person to somebody, or give it back.
    Assign {
        /// The run.
        run: RunId,
        /// What the person says.
        assigning: Box<manual::Assigning>,
    },
    /// Keep a lease.
    Heartbeat {
        /// The claim.
        claim: ClaimId,
        /// The hash of its token.
        token: TokenHash,
    },
    /// Say how far a step has come, and keep its lease.
    Progress {
        /// The claim.
        claim: ClaimId,
        /// The hash of its token.
        token: TokenHash,
        /// What the worker says.
        progressing: Box<progress::Progressing>,
    },
    /// Record what a step returned.
    Complete {
        /// The run.
        run: RunId,
        /// What the worker says.
        completing: Completing,
    },
    /// Record that a step failed.
    Fail {
        /// The run.
        run: RunId,
        /// What the worker says.
        failing: Box<Failing>,
    },
    /// Write to the ledger of a claimed step.
    Record {
        /// The run.
        run: RunId,
        /// What the worker says.
        recording: Box<Recording>,
    },
    /// Say what became of an effect that is in doubt.
    Resolve {
        /// The run.
        run: RunId,
        /// What is said.
        resolving: Box<Resolving>,
    },
    /// Give back a claim whose step never began.
    GiveBack {
        /// The claim.
        claim: ClaimId,
        /// The hash of its token.
        token: TokenHash,
    },
    /// Start a child inside a step.
    StartChild {
        /// The parent.
        run: RunId,
        /// What the worker says.
        starting: Box<StartingChild>,
    },
    /// End a run from outside.
    Cancel {
        /// The run.
        run: RunId,
        /// The client's request.
        request: RequestId,
        /// Whether its open children end too.
        cascade: bool,
        /// Why.
        reason: Arc<ErrorInfo>,
    },
    /// A fenced signal: end the wait that has this token, if it is due.
    Wake {
        /// The run.
        run: RunId,
        /// The wait's token.
        token: u64,
    },
    /// An intent from outside: schedule this attempt.
    Schedule {
        /// The run.
        run: RunId,
        /// The attempt.
        intent: Scheduled,
    },
    /// The notifier was told of an attempt.
    Notified {
        /// The run.
        run: RunId,
        /// The cursor.
        cursor: u16,
        /// The attempt.
        turn: u32,
    },
    /// Put a run's dead letters back.
    Requeue {
        /// The run.
        run: RunId,
    },
    /// Give up a run that is a dead letter.
    Discard {
        /// The run.
        run: RunId,
    },
    /// Put an envelope that was set aside back in line, or give it up.
    Settle {
        /// Which dead letter.
        letter: LetterId,
        /// The envelope as it was set aside.
        envelope: Box<Envelope>,
        /// What becomes of it.
        how: Settling,
    },
    /// Let a run's journal begin anew with the run as it stands: what was before it may go.
    Compact {
        /// The run.
        run: RunId,
    },
    /// Remove a terminal run.
    Purge {
        /// The run.
        run: RunId,
    },
    /// Bring a torn run in order.
    Recover {
        /// The run.
        run: RunId,
        /// Its journal, for children that were asked for and never began.
        journal: Vec<Row>,
    },
    /// Tell me when the run has ended.
    Watch {
        /// The run.
        run: RunId,
    },
    /// Tell me what the store's index rows do not say yet.
    Unflushed,
    /// Show me the run as it stands.
    Show {
        /// The run.
        run: RunId,
    },
}

impl Command {
    /// The run that must be in memory before the command can be decided, if it is about one.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::Start { .. } | Self::Unflushed | Self::Settle { .. } => None,
            Self::Signal { run, .. }
            | Self::Update { run, .. }
            | Self::Decide { run, .. }
            | Self::Assign { run, .. }
            | Self::Complete { run, .. }
            | Self::Fail { run, .. }
            | Self::Record { run, .. }
            | Self::Resolve { run, .. }
            | Self::StartChild { run, .. }
            | Self::Cancel { run, .. }
            | Self::Wake { run, .. }
            | Self::Schedule { run, .. }
            | Self::Notified { run, .. }
            | Self::Requeue { run }
            | Self::Discard { run }
            | Self::Compact { run }
            | Self::Purge { run }
            | Self::Recover { run, .. }
            | Self::Watch { run }
            | Self::Show { run } => Some(*run),
            Self::Heartbeat { claim, .. } | Self::Progress { claim, .. } | Self::GiveBack { claim, .. } => {
                Some(claim.run)
            }
        }
    }

    /// The run of which it waits for what may take months: its end, or its answer.
    #[must_use]
    pub fn awaits(&self) -> Option<RunId> {
        match self {
            Self::Watch { run } | Self::Update { run, told: Told::Answered, .. } => Some(*run),
            _ => None,
        }
    }

    /// Whether nothing comes of it but its answer.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        matches!(self, Self::Watch { .. } | Self::Show { .. } | Self::Unflushed)
    }

    /// Whether it may be given again when nobody knows what became of it: it carries a request or a claim by which its
    /// second coming is recognised, or it changes nothing.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Start { .. }
            | Self::Signal { .. }
            | Self::Update { .. }
            | Self::Decide { .. }
            | Self::Assign { .. }
            | Self::Heartbeat { .. }
            | Self::Complete { .. }
            | Self::Fail { .. }
            | Self::Resolve { .. }
            | Self::GiveBack { .. }
            | Self::Cancel { .. }
            | Self::Wake { .. }
            | Self::Notified { .. }
            | Self::Compact { .. }
            | Self::Watch { .. }
            | Self::Unflushed
            | Self::Show { .. } => true,
            // The answer to the second would not be the answer to the first.
            Self::Record { .. }
            | Self::Progress { .. }
            | Self::StartChild { .. }
            | Self::Schedule { .. }
            | Self::Requeue { .. }
            | Self::Discard { .. }
            | Self::Settle { .. }
            | Self::Purge { .. }
            | Self::Recover { .. } => false,
        }
    }
}

/// When the caller of an update is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// When the update is accepted.
    Accepted,
    /// When the run has answered it, or has ended.
    Answered,
}

/// What becomes of an envelope that was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Settling {
    /// Its message goes back in line. It may be set aside again.
    Requeue,
    /// It is given up.
    Discard,
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To a start.
    Started(StartAnswer),
    /// To a signal.
    Signalled(signal::Accepted),
    /// To an update that is accepted.
    Requested(update::Accepted),
    /// To an update: what the run answered.
    Answered(Reply),
    /// To a heartbeat: when the lease ends now.
    Extended {
        /// When.
        lease_until: Timestamp,
    },
    /// To a completion, failure, cancel and the like: it is recorded, and the run's revision then.
    Recorded {
        /// The run's revision.
        rev: Rev,
        /// Whether it had been recorded before.
        duplicate: bool,
    },
    /// To a child start.
    Child(RunId),
    /// To a dead letter that was put back or discarded: it is no longer set aside.
    Settled,
    /// To a watch: the run has ended.
    Ended(Box<Ending>),
    /// To a show: the run, and the position of its last row.
    Run(Box<Run>, Seq),
    /// What the store's index rows do not say yet.
    Unflushed(Unflushed),
    /// No.
    Refused(Refusal),
}

/// What the store's index rows do not say yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unflushed {
    /// Runs that changed, without their folded state.
    pub records: Vec<Record>,
    /// Runs that were purged.
    pub gone: Vec<RunId>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// The run.
    pub run: RunId,
    /// Its terminal status.
    pub status: Status,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub result: Option<Payload>,
    /// Its error.
    pub error: Option<Arc<ErrorInfo>>,
}

/// An attempt, handed to the worker that claimed it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dispatch {
    /// Of which workers.
    pub worker: WorkerId,
    /// The one that claimed it.
    pub by: Arc<Claimant>,
    /// The claim.
    pub claim: ClaimId,
    /// The run's identity and how it was started.
    pub started: Arc<crate::Started>,
    /// Which life of the run.
    pub epoch: u32,
    /// The step to execute.
    pub step: Str,
    /// How many steps the cursor has entered: stable across attempts.
    pub visit: u32,
    /// The attempt's number: with run and cursor, the runnable key.
    pub turn: u32,
    /// The cursor.
    pub cursor: u16,
    /// Attempts of this step that failed or asked to be replayed.
    pub retries: u32,
    /// Attempts of this step whose worker was lost.
    pub reclaims: u32,
    /// What ended the wait before it, if there was one.
    pub woken_by: Option<WakeReason>,
    /// The run's state.
    pub state: Payload,
    /// The state that was published last.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub published: Option<Payload>,
    /// What attempts at this visit of the step said of themselves: the latest value of each name.
    pub progress: Vec<crate::ProgressEvent>,
    /// The signals in its inbox.
    pub signals: Vec<Signal>,
    /// Its children.
    pub children: Vec<Child>,
    /// The ledger: effects and waits of this visit, and perhaps of earlier ones.
    pub ops: Arc<Vec<Op>>,
    /// How many entries the ledger had before those.
    pub ops_dropped: u32,
    /// How many entries of the ledger have ended.
    pub ops_ended: u32,
    /// When the run began, or began again.
    pub begun_at: Timestamp,
    /// Set when someone wants the run to end, and it undoes what it did first.
    pub cancelling: bool,
    /// Since when it could be claimed.
    pub eligible_at: Timestamp,
    /// When the lease ends unless it is extended.
    pub lease_until: Timestamp,
}

impl Dispatch {
    /// About how many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let signals = self.signals.iter().map(|signal| signal.payload.bytes());
        let ledger = self.ops.iter().map(|op| match &op.state {
            crate::OpState::Done { value, .. } => value.bytes() + 200,
            _ => 200,
        });
        self.started.spec.input.bytes() + self.state.bytes() + signals.chain(ledger).sum::<usize>()
    }
}

/// What leaves a shard once the position it was decided on is durable.
#[derive(Clone, Debug)]
pub enum Output {
    /// An answer to a caller.
    Answer(Ticket, Answer),
    /// An attempt for a worker.
    Dispatch(Box<Dispatch>),
    /// A claim ended without its worker: let the step know.
    Revoked(ClaimId),
    /// An entry of the ledger ended, or a child of it began, while its step executes.
    Told {
        /// The claim of the step.
        claim: ClaimId,
        /// The entry's number.
        id: OpId,
        /// The entry.
        op: Box<Op>,
    },
    /// A step said how far it has come: whoever follows the run may look.
    Progressed(RunId),
    /// An attempt can be claimed; for the notifier, if one is configured.
    Scheduled {
        /// The run.
        run: RunId,
        /// The attempt.
        intent: Scheduled,
        /// Its queue.
        queue: Str,
    },
    /// An envelope for a shard.
    Deliver(Envelope),
}

/// What a shard needs from the store before it can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// A run.
    Run(RunId),
    /// The run that occupies a business key, by the key's full identity.
    Key(String),
    /// Deadlines of runs outside memory, from this instant on.
    Due {
        /// From here on.
        from: Timestamp,
    },
    /// The next page of a line of waiting attempts.
    Ready {
        /// The line.
        line: String,
        /// Behind this place.
        after: LinePlace,
        /// The shard's own time: what became ready by it counts, whatever the clock says.
        now: Timestamp,
    },
}

/// A place in the line of waiting attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinePlace {
    /// Lower comes first.
    pub priority: i32,
    /// When it could be claimed first.
    pub eligible_at: Timestamp,
    /// Its place in the log.
    pub arrival: Seq,
    /// The run, which settles what is left.
    pub run: RunId,
}

/// What must be appended, whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The shard.
    pub shard: ShardId,
    /// The ownership under which it is written.
    pub epoch: ShardEpoch,
    /// The rows, with dense positions.
    pub rows: Vec<Row>,
    /// Envelopes to other shards, or to runs outside memory.
    pub envelopes: Vec<Envelope>,
    /// For each sender, the last envelope consumed.
    pub consumed: Vec<(ShardId, u64)>,
    /// Envelopes that could not be processed and are set aside.
    pub dead: Vec<DeadEnvelope>,
    /// Dead letters that were put back or discarded. What follows from that is in the same batch.
    pub settled: Vec<LetterId>,
}

impl Batch {
    /// Whether there is nothing to append.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.envelopes.is_empty() && self.consumed.is_empty() && self.settled.is_empty()
    }
}

/// What is written behind: the index rows of runs that changed, and how far they are complete.
#[derive(Clone, Debug, Default)]
pub struct Flush {
    /// The shard.
    pub shard: ShardId,
    /// The ownership under which it is written.
    pub epoch: ShardEpoch,
    /// Index rows cover the log up to here.
    pub through: Seq,
    /// Runs that changed.
    pub records: Vec<Record>,
    /// Runs that were purged, and the position of the row that says so: all their rows before it are emptied.
    pub purged: Vec<(RunId, Seq)>,
    /// Runs that were compacted, and the position of the row that says so: all their rows before it are emptied.
    pub compacted: Vec<(RunId, Seq)>,
}

/// A run's index row: what finds it again, and its folded state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The run.
    pub run: RunId,
    /// The position of its last journal row.
    pub head: Seq,
    /// The revision it is folded to.
    pub rev: Rev,
    /// Its tenant.
    pub namespace: Str,
    /// Its workflow.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// Its queue.
    pub queue: Str,
    /// Its status.
    pub status: Status,
    /// Its step.
    pub step: Option<Str>,
    /// Its business key.
    pub key: Option<Str>,
    /// The full identity of the key it occupies now.
    pub occupies: Option<String>,
    /// Its parent.
    pub parent: Option<RunId>,
    /// The words it can be found by.
    pub labels: Vec<(Str, Str)>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When something happens to it by itself.
    pub due: Option<Timestamp>,
    /// The line in which its first attempt waits that can be claimed, now or later, and its place there.
    pub ready: Option<(String, LinePlace)>,
    /// Whether it only holds a key for a run elsewhere.
    pub reservation: bool,
    /// Its folded state, as JSON; empty when its journal is to be folded instead.
    pub checkpoint: Vec<u8>,
}
