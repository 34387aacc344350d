//! Telemetry: counts, spans and lines of the log, all read off facts after they became durable. Nothing depends on them, and
//! code that is replayed adds nothing to them.

mod histogram;
mod meter;
mod span;

pub use histogram::Histogram;
pub use meter::Meter;
pub use span::{EndedSpan, SpanOf, Tracer};
pub(crate) use span::{OpenSpans, attempt_span};

use abide_kernel::shard::{Batch, Dispatch};
use abide_kernel::{ClaimId, Fact, Row, Run, Str, Timestamp};
use tracing::Level;

use crate::core::Core;

/// What the lines about runs are called, for filters.
const LOG: &str = "abide::run";

impl Core {
    /// Takes notice of a batch that is durable.
    pub(crate) fn observe(&mut self, batch: &Batch) {
        let shard = self.shards[usize::from(batch.shard.0)].as_ref().filter(|shard| shard.epoch() == batch.epoch);
        let logs = tracing::enabled!(target: LOG, Level::INFO);
        for row in &batch.rows {
            let run = || shard.and_then(|shard| shard.run(row.run));
            self.meter.count(row, run);
            if logs {
                log(row, run(), &self.spans);
            }
            self.spans.observe(row, run);
        }
    }

    /// An attempt leaves for its worker.
    pub(crate) fn observe_dispatch(&mut self, now: Timestamp, dispatch: &Dispatch) {
        self.meter.dispatched(now, dispatch);
        self.spans.begin(dispatch, tracing::enabled!(target: LOG, Level::INFO));
    }
}

/// One line for each change of a run. It never says what the run works with.
fn log(row: &Row, run: Option<&Run>, spans: &OpenSpans) {
    let quiet = |fact: &Fact| matches!(fact, Fact::Heartbeat(_) | Fact::Progressed(_) | Fact::Notified(_));
    let kinds: Vec<&str> = row.facts.iter().filter(|fact| !quiet(fact)).map(Fact::kind).collect();
    if kinds.is_empty() || run.is_some_and(Run::is_reservation) {
        return;
    }
    let (id, rev, facts) = (row.run, row.rev.0, kinds.join(","));
    let error = row.facts.iter().find_map(|fact| match fact {
        Fact::Failed(failed) => Some(&*failed.error.code),
        Fact::DeadLettered(letter) => Some(&*letter.reason.code),
        _ => None,
    });
    let (step, attempt) = place(row, run, spans).unzip();
    let step = step.as_deref();
    match run.map(|run| &run.started.spec) {
        Some(spec) => {
            let (workflow, namespace, queue) = (&*spec.workflow, &*spec.namespace, &*spec.queue);
            tracing::info!(target: LOG, run = %id, rev, step, attempt, workflow, namespace, queue, error, "{facts}");
        }
        None => tracing::info!(target: LOG, run = %id, rev, step, attempt, error, "{facts}"),
    }
}

/// The step that a row is about, and which attempt at it: of the attempt that it ends, if it ends one; else where the run
/// stands. Of an attempt that another process handed out, the first is not known.
fn place(row: &Row, run: Option<&Run>, spans: &OpenSpans) -> Option<(Str, u32)> {
    let ended = row.facts.iter().find_map(ended_claim);
    if let Some(number) = ended {
        return spans.place(ClaimId { run: row.run, number });
    }
    let claimed = row.facts.iter().find_map(|fact| match fact {
        Fact::Claimed(claimed) => Some(claimed.cursor),
        _ => None,
    });
    let cursor = run?.cursors.get(usize::from(claimed.unwrap_or(0)))?;
    Some((cursor.step.clone()?, cursor.retries + cursor.reclaims))
}

/// The claim that a fact ends.
fn ended_claim(fact: &Fact) -> Option<u32> {
    match fact {
        Fact::Completed(completed) => Some(completed.claim),
        Fact::Failed(failed) => Some(failed.claim),
        Fact::Expired(claim) | Fact::Returned(claim) => Some(claim.claim),
        _ => None,
    }
}
