//! The meter: what happened here so far, in numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use abide_kernel::shard::Dispatch;
use abide_kernel::{Fact, Row, Run, Status, Str, Timestamp};
use hashbrown::HashMap;

use super::Histogram;

/// From a millisecond to a month.
const RUN_SECONDS: &[f64] = &[
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    15.0,
    60.0,
    300.0,
    1_800.0,
    7_200.0,
    43_200.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
];
const WAIT_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0];
const STORE_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 2_048.0, 4_096.0];

/// Queues that are told apart; what names make more would fill the memory of whoever collects.
const QUEUES_MAX: usize = 200;
/// What the others are counted under.
const OTHER_QUEUES: &str = "(others)";

/// The code of an error that says that code does not fit what is recorded.
const DIVERGED: &str = "diverged";

/// What happened here so far.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Meter {
    /// Runs that began.
    pub runs_started: u64,
    /// Runs that ended, by how.
    pub runs_completed: BTreeMap<Status, u64>,
    /// How long they took.
    pub run_seconds: Histogram,
    /// Attempts at steps that ended, by how.
    pub attempts: BTreeMap<&'static str, u64>,
    /// How long attempts waited for a worker, by queue.
    pub schedule_to_start: HashMap<Str, Histogram>,
    /// Leases that ended without an answer.
    pub leases_expired: u64,
    /// Writes that were refused because another owns the shard.
    pub fenced_writes: u64,
    /// Shards that were set aside because what is kept of them is damaged.
    pub shards_damaged: u64,
    /// Attempts that were set aside because the code does not fit what is recorded.
    pub divergences: u64,
    /// Attempts that were set aside.
    pub dead_letters: u64,
    /// Inputs that contradicted the facts.
    pub anomalies: u64,
    /// How long it took to make a batch durable.
    pub append_seconds: Histogram,
    /// How much of that was spent in the commit itself, where the store tells it apart.
    pub fsync_seconds: Histogram,
    /// How many rows such a batch had.
    pub batch_rows: Histogram,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            runs_started: 0,
            runs_completed: Status::ALL.into_iter().filter(|end| end.is_terminal()).map(|end| (end, 0)).collect(),
            run_seconds: Histogram::new(RUN_SECONDS),
            attempts: ["completed", "failed", "retried", "expired", "returned"].map(|how| (how, 0)).into(),
            schedule_to_start: HashMap::new(),
            leases_expired: 0,
            fenced_writes: 0,
            shards_damaged: 0,
            divergences: 0,
            dead_letters: 0,
            anomalies: 0,
            append_seconds: Histogram::new(STORE_SECONDS),
            fsync_seconds: Histogram::new(STORE_SECONDS),
            batch_rows: Histogram::new(ROWS),
        }
    }
}

impl Meter {
    /// Counts what a row says.
    pub(super) fn count<'a>(&mut self, row: &Row, run: impl Fn() -> Option<&'a Run>) {
        for fact in &row.facts {
            match fact {
                Fact::Started(started) if started.reserves.is_none() => self.runs_started += 1,
                Fact::Ended(ended) if !run().is_some_and(Run::is_reservation) => {
                    *self.runs_completed.entry(ended.status).or_default() += 1;
                    self.run_seconds.add(row.at.since(row.run.made_at()) as f64 / 1_000.0);
                }
                Fact::Completed(_) => self.attempt("completed"),
                Fact::Failed(failed) => self.attempt(if failed.retry_at.is_some() { "retried" } else { "failed" }),
                Fact::Returned(_) => self.attempt("returned"),
                Fact::Expired(_) => {
                    self.leases_expired += 1;
                    self.attempt("expired");
                }
                Fact::DeadLettered(letter) => {
                    self.dead_letters += 1;
                    self.divergences += u64::from(&*letter.reason.code == DIVERGED);
                }
                Fact::Anomaly(_) => self.anomalies += 1,
                _ => {}
            }
        }
    }

    fn attempt(&mut self, how: &'static str) {
        *self.attempts.entry(how).or_default() += 1;
    }

    /// An attempt leaves for its worker.
    pub(super) fn dispatched(&mut self, now: Timestamp, dispatch: &Dispatch) {
        let queue = &dispatch.started.spec.queue;
        let waited = now.since(dispatch.eligible_at) as f64 / 1_000.0;
        if let Some(known) = self.schedule_to_start.get_mut(queue) {
            known.add(waited);
            return;
        }
        let name = if self.schedule_to_start.len() < QUEUES_MAX { queue.clone() } else { OTHER_QUEUES.into() };
        self.schedule_to_start.entry(name).or_insert_with(|| Histogram::new(WAIT_SECONDS)).add(waited);
    }

    /// A group of batches was appended.
    pub(crate) fn appended(&mut self, rows: usize, took: Duration, syncing: Option<Duration>) {
        self.batch_rows.add(rows as f64);
        self.append_seconds.add(took.as_secs_f64());
        if let Some(syncing) = syncing {
            self.fsync_seconds.add(syncing.as_secs_f64());
        }
    }
}
