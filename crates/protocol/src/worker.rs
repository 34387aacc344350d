//! Workers: what they ask for, what they are given, and what they report.

use std::collections::BTreeMap;

use abide_kernel::{ClaimId, Consume, Payload, RunId, Status, WakeReason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{LEASE_MS, QUEUE};
use crate::{Entry, Error, Instant, LedgerEntry, Outcome, Problem, Recorded, Secret, Start};

/// A worker asks for attempts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimWork {
    /// The worker's name, as it is seen in inspection.
    pub worker: String,
    /// The hash of a token that the worker has made and keeps: the first 16 bytes of its SHA-256, in hexadecimal. What it
    /// reports on an attempt must come with the token.
    #[schemars(regex(pattern = "^[0-9a-f]{32}$"))]
    pub token_hash: String,
    /// The queues that it serves.
    #[serde(default = "default_queues")]
    pub queues: Vec<String>,
    /// The workflows that it can execute.
    pub workflows: Vec<Offered>,
    /// How many attempts it takes now.
    #[serde(default = "one")]
    pub most: u32,
    /// How long it holds an attempt without a heartbeat.
    #[serde(default = "default_lease")]
    pub lease_ms: u64,
    /// How long it waits for the first one.
    #[serde(default)]
    pub wait_ms: u64,
}

fn default_queues() -> Vec<String> {
    vec![QUEUE.to_owned()]
}

fn one() -> u32 {
    1
}

fn default_lease() -> u64 {
    LEASE_MS
}

/// A workflow that a worker can execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// Its name.
    pub workflow: String,
    /// Its version.
    #[serde(default = "one")]
    pub version: u32,
    /// What tells this code from other code of the same version, 16 hexadecimal digits: a run goes on only with the code that
    /// it began with.
    #[serde(default = "no_fingerprint")]
    #[schemars(regex(pattern = "^[0-9a-f]{16}$"))]
    pub fingerprint: String,
    /// Its first step.
    pub first_step: String,
}

fn no_fingerprint() -> String {
    "0".repeat(16)
}

/// Attempts that a worker was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claims {
    /// The attempts; none when the wait was over.
    pub claims: Vec<Attempt>,
}

/// An attempt at a step, held by the worker that got it until its lease ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// By which the worker names it in reports.
    #[serde(with = "crate::shape::claim")]
    #[schemars(with = "crate::shape::Claim")]
    pub claim: ClaimId,
    /// When the lease ends without a heartbeat.
    pub lease_until: Instant,
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Its workflow.
    pub workflow: String,
    /// The workflow's version.
    pub version: u32,
    /// Its queue.
    pub queue: String,
    /// Its business key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Words to find the run by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Which life of the run: how often it began anew.
    #[serde(default)]
    pub epoch: u32,
    /// The step to execute.
    pub step: String,
    /// How many steps the run has entered: the same in every attempt at this one.
    pub visit: u32,
    /// Which attempt at the step this is, counted from 1.
    pub attempt: u32,
    /// Attempts at it that failed, or asked to be replayed.
    pub retries: u32,
    /// Attempts at it whose worker was lost.
    pub reclaims: u32,
    /// What ended the wait before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Woken>")]
    pub woken_by: Option<WakeReason>,
    /// What the run was started with.
    #[schemars(with = "serde_json::Value")]
    pub input: Payload,
    /// Its state.
    #[schemars(with = "serde_json::Value")]
    pub state: Payload,
    /// The state that it published last, for those who look at it from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub published: Option<Payload>,
    /// What attempts at this visit of the step said of their progress: the latest value of each name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub progress: BTreeMap<String, Payload>,
    /// Signals that arrived and were not used up.
    pub signals: Vec<Arrived>,
    /// Its children.
    pub children: Vec<Offspring>,
    /// Effects and waits of this visit, and perhaps of earlier ones.
    pub ledger: Vec<LedgerEntry>,
    /// The number of the next entry of the ledger.
    pub next_op: u32,
    /// How many entries of the ledger have ended.
    pub ended: u32,
    /// When the run began, or began again.
    pub begun_at: Instant,
    /// Whether someone wants the run to end, and it undoes what it did first.
    pub cancelling: bool,
    /// The attempt's place in its run's trace, as W3C's `traceparent`, for spans that the worker makes below it.
    #[serde(default)]
    pub traceparent: String,
}

/// A signal that arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Arrived {
    /// Its number within the run.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What it carries.
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
    /// When it arrived.
    pub at: Instant,
}

/// A child of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offspring {
    /// The child.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The key it was started under, inside of a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its workflow.
    pub workflow: String,
    /// How it ended; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Standing>")]
    pub status: Option<Status>,
    /// Its last state, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub state: Option<Payload>,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub result: Option<Payload>,
    /// Its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// The run that had its business key, so that it never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Run>")]
    pub existing: Option<RunId>,
    /// Why it never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
}

/// What a worker says of attempts that it holds, and perhaps asks for more.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// The token whose hash the attempts were claimed with.
    #[schemars(with = "String")]
    pub token: Secret,
    /// What it says, in order.
    pub reports: Vec<Report>,
    /// More attempts, as far as there are any at once: what follows from the reports comes with their answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Box<ClaimWork>>,
}

/// What a worker says of one attempt.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The attempt.
    #[serde(with = "crate::shape::claim")]
    #[schemars(with = "crate::shape::Claim")]
    pub claim: ClaimId,
    /// What.
    pub say: Say,
}

/// What can be said of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Say {
    /// It goes on: the lease begins anew.
    Heartbeat {},
    /// It says how far it has come; the lease begins anew.
    Progress {
        /// Of what.
        name: String,
        /// How it stands.
        #[schemars(with = "serde_json::Value")]
        value: Payload,
    },
    /// It writes to its ledger.
    Record {
        /// What.
        entries: Vec<Entry>,
    },
    /// Its step returned.
    Complete {
        /// What.
        outcome: Outcome,
        /// What it writes to its ledger beside it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        entries: Vec<Entry>,
        /// Which of the signals it waited for it uses up.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(with = "crate::shape::Consumed")]
        consume: Consume,
        /// The error of the step that its handler answered with the outcome.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handled: Option<Error>,
        /// The run's journal begins anew once it has so many rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compact_after: Option<u64>,
    },
    /// Its step failed.
    Fail {
        /// How.
        error: Error,
        /// Whether and when it is tried again; without it a retryable error ends the run like any other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry: Option<Retry>,
        /// What it writes to its ledger beside it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        entries: Vec<Entry>,
        /// Effects whose errors made the step fail: a retry begins them again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reopen: Vec<u32>,
        /// Set when the code does not fit the ledger: the attempt becomes a dead letter, for other code to go on with.
        #[serde(default, skip_serializing_if = "is_default")]
        set_aside: bool,
    },
    /// It starts a child and does not wait for it. The same key gives the same child, over all attempts at the step.
    StartChild {
        /// The child's key.
        key: String,
        /// What is started.
        start: Box<Start>,
    },
    /// It never began: it goes back, and does not count as delivered.
    GiveBack {},
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// When a step that failed is tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How the delay grows.
    #[serde(default)]
    pub backoff: Backoff,
    /// The delay before the first retry.
    pub delay_ms: u64,
    /// No delay is longer than this; an hour if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms_max: Option<u64>,
    /// Part of the delay that is drawn at random, in percent.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub jitter_percent: u8,
    /// How many retries there may be; no end if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries_max: Option<u32>,
}

/// How a delay grows from retry to retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// Not at all.
    Constant,
    /// By the first delay each time.
    Linear,
    /// It doubles.
    #[default]
    Exponential,
}

/// What became of reports, in their order, and the attempts that followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reported {
    /// One answer each.
    pub answers: Vec<ReportAnswer>,
    /// More attempts, if they were asked for.
    pub claims: Vec<Attempt>,
}

/// What became of a report: it was recorded, or there is a problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportAnswer {
    /// It is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// When the lease ends now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Instant>,
    /// The child that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Run>")]
    pub child: Option<RunId>,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

/// Workers that were here lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workers {
    /// The workers, of all nodes.
    pub workers: Vec<Worker>,
    /// Nodes that did not say in time who works there.
    #[serde(default)]
    pub silent: Vec<String>,
}

/// A worker that was here lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// Its name.
    pub worker: String,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// The workflows that it can execute.
    pub workflows: Vec<Offered>,
    /// The node that it asked.
    #[serde(default)]
    pub node: String,
    /// When it last asked for something.
    pub seen_at: Instant,
}
