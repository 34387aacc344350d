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
use abide_kernel::{Fact, Row, Run, Timestamp};
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
            self.spans.observe(row, run);
            if logs {
                log(row, run());
            }
        }
    }

    /// An attempt leaves for its worker.
    pub(crate) fn observe_dispatch(&mut self, now: Timestamp, dispatch: &Dispatch) {
        self.meter.dispatched(now, dispatch);
        self.spans.begin(dispatch);
    }
}

/// One line for each change of a run. It never says what the run works with.
fn log(row: &Row, run: Option<&Run>) {
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
    match run.map(|run| &run.started.spec) {
        Some(spec) => {
            let (workflow, namespace, queue) = (&*spec.workflow, &*spec.namespace, &*spec.queue);
            tracing::info!(target: LOG, run = %id, rev, workflow, namespace, queue, error, "{facts}");
        }
        None => tracing::info!(target: LOG, run = %id, rev, error, "{facts}"),
    }
}
