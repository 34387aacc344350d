//! A run: the fold of its facts. It has no behaviour of its own; what may happen to it is in `transition`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::outcome::{Consume, Join};
use crate::payload::present;
use crate::spec::is_zero;
use crate::{
    Anomaly, Child, Claimant, ErrorInfo, Fact, Fingerprint, Manual, Op, OpId, OpKind, Outcome, Payload, RequestId, Rev,
    Row, RunId, Seq, Standing, Started, Status, Str, Timestamp, Update, WakeReason,
};

/// The version of the folded form of a run, as checkpoints keep it.
pub const RUN_FORMAT: u8 = 1;

/// One execution of a workflow, folded from its facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The version of this form.
    pub format: u8,
    /// Its id.
    pub id: RunId,
    /// How it was started: its identity.
    pub started: Arc<Started>,
    /// Which life of the run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// Its state version: how many journal rows it has.
    pub rev: Rev,
    /// The revision at which its journal begins since it was compacted; zero when it never was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compacted: Rev,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it began, or last began again.
    pub begun_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The definition that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The workflow's first step, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<Str>,
    /// The user's state: what the next step is given. A function's is the input it began with.
    pub state: Payload,
    /// The state that a function published last, for those who look at the run from outside.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub published: Option<Payload>,
    /// Where it stands in its steps: one cursor for a machine or function, several for a graph.
    pub cursors: SmallVec<[Cursor; 1]>,
    /// How many claims were ever made on it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claims: u32,
    /// How many signals it ever received.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub signals: u64,
    /// How many wait tokens it ever made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Signals that nobody has used up yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inbox: Vec<Signal>,
    /// The last deduplication keys seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dedup: Vec<Dedup>,
    /// The last signal that a progressing step used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_signal: Option<u64>,
    /// How many updates it was ever asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub updates_seen: u64,
    /// What it was asked to do and has not answered, and the answers it gave last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<Update>,
    /// Its children, in the order they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Child>,
    /// The ledger: effects and durable waits of steps, in the order they were begun, without those of steps long left.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub ops: Arc<Vec<Op>>,
    /// How many entries the ledger had before those.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ops_dropped: u32,
    /// How many entries of the ledger ever ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ops_ended: u32,
    /// How many of them their steps took notice of.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ops_seen: u32,
    /// The entries of the ledger that are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpId>,
    /// Someone wants it to end, and it undoes what it did first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelling: Option<Arc<crate::Cancelling>>,
    /// Claims that were taken away for that: their workers did nothing wrong, and are told why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<Taken>,
    /// What people were and are asked, oldest first.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub manual: Arc<Vec<Manual>>,
    /// The parent's record is gone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub orphaned: bool,
    /// Of a record that holds a key for a run in another shard: whether that run has begun.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begun: bool,
    /// How often it began again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continuations: u32,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub result: Option<Payload>,
    /// The last error of any step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Arc<ErrorInfo>>,
    /// Who executed the last step that was recorded, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_executed: Option<Executed>,
    /// What its steps said of themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<alloc::boxed::Box<crate::Progress>>,
    /// It has left the statuses that occupy its business key. A freed key is not taken back within an epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub key_freed: bool,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Inputs that contradicted the facts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anomalies: Vec<SeenAnomaly>,
}

/// Where a run stands in one line of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// The step; absent while the first step's name is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Str>,
    /// Steps that must have finished before this one begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Str>,
    /// How many steps were entered, this one included. It stays the same when a step is tried or woken again.
    pub visit: u32,
    /// How many attempts were scheduled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub turn: u32,
    /// Attempts of this step that failed or asked to be replayed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// Attempts of this step whose worker was lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reclaims: u32,
    /// What the cursor does now.
    pub phase: Phase,
    /// The names awaited last: used up by the next progressing outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<Str>,
    /// What ended the last wait of this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_by: Option<WakeReason>,
    /// Who claimed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimant: Option<Arc<Claimant>>,
    /// The last completion, to recognise its duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
}

/// What a cursor does now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The step is planned: needs apart, an attempt can be scheduled.
    Planned {
        /// Not before this instant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        visible_at: Option<Timestamp>,
    },
    /// An attempt can be claimed from `visible_at` on.
    Scheduled {
        /// Not before this instant.
        visible_at: Timestamp,
        /// Its place among attempts of equal priority and time.
        arrival: Seq,
    },
    /// A worker holds the attempt.
    Claimed(Claim),
    /// The step returned; its outcome is not applied yet.
    Completed {
        /// The claim under which it ran.
        claim: u32,
        /// What it returned.
        outcome: Arc<Outcome>,
        /// Which waiting signals it uses up.
        consume: Consume,
        /// The last signal that was presented to it.
        seen: u64,
    },
    /// The step failed and is not tried again; the run is about to end.
    Failed,
    /// The cursor waits and holds nothing.
    Waiting(Arc<Wait>),
    /// The attempt was set aside.
    DeadLettered(Arc<DeadLetter>),
    /// The cursor is finished.
    Finished {
        /// What it returned.
        result: Payload,
    },
    /// The run ended first.
    Closed,
}

/// A claim that was taken from its worker, who has not let go of it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The claim's number.
    pub claim: u32,
    /// By what its worker is known.
    pub token: crate::TokenHash,
}

/// A worker's hold on an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The claim's number.
    pub number: u32,
    /// When the lease ends, as journaled.
    pub lease_until: Timestamp,
    /// When the lease ends by heartbeats kept in memory only. A take-over re-arms the claim instead.
    #[serde(skip)]
    pub extended_until: Timestamp,
    /// Since when the attempt could be claimed: its place in time, should it be given back.
    pub visible_at: Timestamp,
    /// The attempt's place among attempts of equal priority and time, should it be given back.
    pub arrival: Seq,
    /// The last signal that was presented to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seen: u64,
}

impl Claim {
    /// When the lease really ends.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.lease_until.max(self.extended_until)
    }
}

/// What a cursor waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// What for.
    #[serde(rename = "for")]
    pub kind: WaitKind,
    /// The guard: a fenced signal with another token is stale.
    pub token: u64,
    /// Wake at this instant at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The step to run then; the same one again if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Str>,
}

/// What a wait is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// A signal of one of these names.
    Signal {
        /// The names.
        names: Vec<Str>,
        /// Signals up to this one were seen by the step that waits, and do not wake it again.
        #[serde(default, skip_serializing_if = "is_zero")]
        after: u64,
    },
    /// The instant alone.
    Timer,
    /// Children.
    Children(Barrier),
    /// The end of an open entry of the ledger.
    Ledger,
}

/// A join barrier: it counts the children asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// When it is satisfied.
    pub join: Join,
    /// Children asked for and neither ended nor answered.
    pub pending: u32,
    /// Children that ended well.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub succeeded: u32,
    /// Children that ended otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
}

impl Barrier {
    /// Whether nothing more needs to be waited for.
    #[must_use]
    pub fn satisfied(&self) -> bool {
        let over = self.pending == 0;
        match self.join {
            Join::AllTerminal => over,
            Join::AllSucceeded => over || self.failed > 0,
            Join::Any => over || self.succeeded > 0,
            Join::Quorum(k) => over || self.succeeded >= k || self.succeeded + self.pending < k,
        }
    }
}

/// A named message that waits in a run's inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// Its number within the run.
    pub id: u64,
    /// Its name.
    pub name: Str,
    /// What it carries.
    pub payload: Payload,
    /// When it arrived.
    pub at: Timestamp,
}

/// A deduplication key that was seen, and the signal it came with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dedup {
    /// The sender's key, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Str>,
    /// The request that brought it.
    pub request: RequestId,
    /// The signal's number.
    pub signal: u64,
}

/// Who executed a step, and when that was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Executed {
    /// The worker.
    pub by: Str,
    /// When.
    pub at: Timestamp,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Its terminal status.
    pub status: Status,
    /// When.
    pub at: Timestamp,
    /// The request that ended it from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
}

/// A dead letter: an attempt that was set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Why.
    pub reason: ErrorInfo,
    /// The node that gave up.
    pub node: Str,
    /// When.
    pub at: Timestamp,
    /// The attempt as it was scheduled.
    pub envelope: crate::Scheduled,
}

/// A completion that was recorded: the claim and a digest of its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The claim.
    pub claim: u32,
    /// A digest of the outcome.
    pub digest: u64,
}

/// An anomaly and when it was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenAnomaly {
    /// What it was.
    #[serde(flatten)]
    pub anomaly: Anomaly,
    /// When.
    pub at: Timestamp,
}

/// Where and when a fact was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The position of its row.
    pub seq: Seq,
    /// The instant of its row.
    pub at: Timestamp,
}

/// A journal that does not make sense: the fold cannot begin or go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJournal(pub String);

impl core::fmt::Display for BadJournal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadJournal {}

fn is_empty<T>(list: &Arc<Vec<T>>) -> bool {
    list.is_empty()
}

impl Run {
    /// Where the run stands.
    #[must_use]
    pub fn status(&self) -> Status {
        if let Some(end) = &self.end {
            return end.status;
        }
        let mut status = Status::Runnable;
        let mut rank = 0;
        for cursor in &self.cursors {
            let (found, weight) = match &cursor.phase {
                Phase::Claimed(_) | Phase::Completed { .. } | Phase::Failed => (Status::Executing, 5),
                Phase::Scheduled { .. } => (Status::Runnable, 4),
                Phase::Planned { .. } if self.needs_met(cursor) => (Status::Runnable, 4),
                Phase::DeadLettered(_) => (Status::DeadLettered, 3),
                Phase::Waiting(wait) => match wait.kind {
                    WaitKind::Signal { .. } => (Status::AwaitingSignal, 2),
                    WaitKind::Timer => (Status::Sleeping, 2),
                    WaitKind::Children(_) => (Status::AwaitingChildren, 2),
                    WaitKind::Ledger => (self.ledger_status(), 2),
                },
                Phase::Planned { .. } | Phase::Finished { .. } | Phase::Closed => (Status::Runnable, 0),
            };
            if weight > rank {
                (status, rank) = (found, weight);
            }
        }
        status
    }

    /// The state as it is seen from outside: what was published, or else what the next step is given.
    #[must_use]
    pub fn visible_state(&self) -> &Payload {
        self.published.as_ref().unwrap_or(&self.state)
    }

    /// Whether all steps that `cursor` needs have finished.
    #[must_use]
    pub fn needs_met(&self, cursor: &Cursor) -> bool {
        // A cursor keeps its name in the plan, whatever steps it goes through.
        let finished = |need: &Str| {
            self.started
                .spec
                .steps
                .iter()
                .zip(&self.cursors)
                .any(|(planned, at)| planned.step == *need && matches!(at.phase, Phase::Finished { .. }))
        };
        cursor.needs.iter().all(finished)
    }

    /// The step at which the cursor began, and begins again: planned at the start, or the workflow's first.
    #[must_use]
    pub fn planned_step(&self, cursor: usize) -> Option<&Str> {
        let planned = self.started.spec.steps.get(cursor).map(|planned| &planned.step);
        planned.or(self.first_step.as_ref())
    }

    /// Whether this is only a record that holds a business key for a run in another shard.
    #[must_use]
    pub fn is_reservation(&self) -> bool {
        self.started.reserves.is_some()
    }

    /// Whether it holds a key for a run in another shard that is not known to have begun.
    #[must_use]
    pub fn awaits_beginning(&self) -> bool {
        self.is_reservation() && !self.begun && self.end.is_none()
    }

    /// Whether the run occupies its business key now.
    #[must_use]
    pub fn occupies_key(&self) -> bool {
        match &self.started.spec.key {
            Some(_) if self.is_reservation() => self.end.is_none(),
            Some(_) => self.started.reservation.is_none() && !self.key_freed,
            None => false,
        }
    }

    /// How many rows its journal has: all since its start, or since it was compacted last.
    #[must_use]
    pub fn journal_rows(&self) -> u64 {
        self.rev.0.saturating_add(1).saturating_sub(self.compacted.0.max(1))
    }

    /// The earliest instant at which something must happen to the run by itself. An attempt that could be claimed from the
    /// moment it was scheduled has none: it stands in line.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.end.is_some() {
            return None;
        }
        let cursors = self.cursors.iter().filter_map(|cursor| match &cursor.phase {
            Phase::Scheduled { visible_at, .. } => Some(*visible_at).filter(|at| *at > self.updated_at),
            Phase::Claimed(claim) => Some(claim.until()),
            Phase::Waiting(wait) => wait.until,
            _ => None,
        });
        cursors.chain(self.started.spec.deadline).chain(self.open_ops().filter_map(|(_, op)| op.due())).min()
    }

    /// Where a run stands that waits for its ledger: what a person would look at first.
    fn ledger_status(&self) -> Status {
        let mut status = Status::Sleeping;
        for (id, op) in self.open_ops() {
            let found = match &op.kind {
                OpKind::Effect(_) if self.standing(id) == Some(Standing::InDoubt) => return Status::InDoubt,
                OpKind::Effect(_) | OpKind::Timer { .. } | OpKind::Patch => continue,
                OpKind::Signal { .. } | OpKind::Update { .. } => Status::AwaitingSignal,
                OpKind::Child { .. } => Status::AwaitingChildren,
                OpKind::Manual { .. } => Status::AwaitingDecision,
            };
            if status == Status::Sleeping || found == Status::AwaitingDecision {
                status = found;
            }
        }
        status
    }

    /// Folds one more fact. What a fact says is taken as true: it was decided before it was written.
    pub fn apply(&mut self, fact: &Fact, meta: Meta) {
        self.updated_at = meta.at;
        crate::transition::apply(self, fact, meta);
        if let Some(key) = &self.started.spec.key
            && !self.key_freed
            && !self.is_reservation()
        {
            self.key_freed = !key.occupied.contains(self.status());
        }
    }

    /// Folds a row: its facts and its revision.
    pub fn apply_row(&mut self, row: &Row) {
        let meta = Meta { seq: row.seq, at: row.at };
        for fact in &row.facts {
            self.apply(fact, meta);
        }
        self.rev = row.rev;
    }

    /// Begins a fold with a run's first row.
    ///
    /// # Errors
    /// When the row does not begin with `started` or `compacted`.
    pub fn begin(row: &Row) -> Result<Self, BadJournal> {
        let mut run = match row.facts.first() {
            Some(Fact::Started(started)) => crate::transition::start::begin(row.run, started, row.at),
            Some(Fact::Compacted(run)) => (**run).clone(),
            Some(other) => {
                return Err(BadJournal(format!("a journal begins with started or compacted, found {}", other.kind())));
            }
            None => {
                return Err(BadJournal("a journal row holds at least one fact, found none".into()));
            }
        };
        let meta = Meta { seq: row.seq, at: row.at };
        for fact in &row.facts[1..] {
            run.apply(fact, meta);
        }
        run.rev = row.rev;
        Ok(run)
    }
}
