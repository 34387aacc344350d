//! Counts, as Prometheus collects them. No run, key or namespace is ever a label.

use std::fmt;

use abide_runtime::{Engine, Histogram, Metrics};
use abide_store::{Depth, Fault};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text as openmetrics};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::answer::{Answered, Refused, internal, text};
use crate::call::Call;
use crate::limits::QUEUES_SHOWN_MAX;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn count(call: Call) -> Answered {
    let seen = call.blocking(Seen::of).await??;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(seen));
    let mut written = String::new();
    openmetrics::encode(&mut written, &registry).map_err(|error| internal(&error.to_string()))?;
    Ok(text(OPENMETRICS, written))
}

/// What there is to count, at one moment.
#[derive(Debug)]
struct Seen {
    metrics: Metrics,
    depths: Vec<Depth>,
    store_bytes: u64,
    now: abide_kernel::Timestamp,
}

impl Seen {
    fn of(engine: &Engine) -> Result<Self, Refused> {
        let read = || Ok::<_, Fault>((engine.depths()?, engine.store_bytes()?));
        let (depths, store_bytes) = read()?;
        let depths = bounded(depths);
        Ok(Self { metrics: engine.metrics(), depths, store_bytes, now: engine.now() })
    }
}

impl Collector for Seen {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sheet = Sheet(encoder);
        sheet.labelled_gauge("abide_build_info", "The release.", "version", [(env!("CARGO_PKG_VERSION"), 1.0)])?;
        self.runs(&mut sheet)?;
        self.queues(&mut sheet)?;
        self.trouble(&mut sheet)?;
        self.store(&mut sheet)
    }
}

impl Seen {
    fn runs(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let meter = &self.metrics.meter;
        sheet.counter("abide_runs_started", "Runs that began.", meter.runs_started)?;
        let ended = meter.runs_completed.iter().map(|(status, count)| (status.name(), *count));
        sheet.labelled_counter("abide_runs_completed", "Runs that ended, by how.", "outcome", ended)?;
        sheet.histogram("abide_run_duration_seconds", "From a run's start to its end.", &meter.run_seconds)?;
        let attempts = meter.attempts.iter().map(|(how, count)| (*how, *count));
        sheet.labelled_counter("abide_step_attempts", "Attempts at steps that ended, by how.", "outcome", attempts)?;
        sheet.gauge(
            "abide_attempts_executing",
            "Attempts that local workers execute.",
            self.metrics.executing as f64,
        )?;
        sheet.gauge("abide_runs_resident", "Runs in memory.", self.metrics.resident_runs as f64)
    }

    fn queues(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let waits = self.metrics.meter.schedule_to_start.iter().map(|(queue, waited)| (&**queue, waited));
        let help = "From when an attempt could be claimed to when its worker was given it.";
        sheet.histograms("abide_schedule_to_start_seconds", help, "queue", waits)?;
        let depths = self.depths.iter().map(|depth| (depth.queue.as_str(), depth.waiting as f64));
        let help = "Runs of the whole store with an attempt that waits to be claimed.";
        sheet.labelled_gauge("abide_queue_depth", help, "queue", depths)?;
        let age = |depth: &Depth| depth.oldest.map_or(0, |oldest| self.now.since(oldest)) as f64 / 1_000.0;
        let ages = self.depths.iter().map(|depth| (depth.queue.as_str(), age(depth)));
        let help = "How long the oldest of them has waited.";
        sheet.labelled_gauge("abide_queue_oldest_age_seconds", help, "queue", ages)
    }

    fn trouble(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let (metrics, meter) = (&self.metrics, &self.metrics.meter);
        let help = "Runs for which something should have happened by itself a second ago, and has not.";
        sheet.gauge("abide_timers_overdue", help, metrics.timers_overdue as f64)?;
        sheet.counter("abide_leases_expired", "Leases that ended without an answer.", meter.leases_expired)?;
        let help = "Writes that were refused because another owns the shard.";
        sheet.counter("abide_fenced_writes", help, meter.fenced_writes)?;
        let help = "Shards that were set aside because what is kept of them is damaged.";
        sheet.counter("abide_shards_damaged", help, meter.shards_damaged)?;
        let help = "Attempts that were set aside because the code does not fit what is recorded.";
        sheet.counter("abide_divergences", help, meter.divergences)?;
        sheet.counter("abide_dead_letters", "Attempts that were set aside.", meter.dead_letters)?;
        sheet.counter("abide_anomalies", "Inputs that contradicted the facts.", meter.anomalies)
    }

    fn store(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let (meter, store) = (&self.metrics.meter, &self.metrics.store);
        sheet.histogram("abide_append_seconds", "Time to make a batch durable.", &meter.append_seconds)?;
        let help = "Time of that spent in the commit, where the store tells it apart.";
        sheet.histogram("abide_fsync_seconds", help, &meter.fsync_seconds)?;
        sheet.histogram("abide_batch_rows", "Journal rows in a batch.", &meter.batch_rows)?;
        sheet.gauge("abide_store_bytes", "Size of the store.", self.store_bytes as f64)?;
        sheet.gauge("abide_index_rows_behind", "Runs whose index rows are behind.", self.metrics.behind as f64)?;
        sheet.counter("abide_store_reads", "Reads of the store.", store.reads)?;
        sheet.counter("abide_store_writes", "Writes to the store.", store.writes)?;
        sheet.counter("abide_store_commits", "Batches made durable.", store.commits)?;
        sheet.counter("abide_journal_rows", "Journal rows made durable.", store.rows)?;
        sheet.counter("abide_journal_bytes", "Bytes of facts made durable.", store.fact_bytes)
    }
}

/// What the others are called, as where waits are counted.
const OTHERS: &str = "(others)";

/// Whoever starts a run names its queue, so that there may be any number of them: those in which most waits are shown by
/// name, and the others together.
fn bounded(mut depths: Vec<Depth>) -> Vec<Depth> {
    if depths.len() <= QUEUES_SHOWN_MAX {
        return depths;
    }
    depths.sort_by(|one, other| other.waiting.cmp(&one.waiting).then_with(|| one.queue.cmp(&other.queue)));
    let rest = depths.split_off(QUEUES_SHOWN_MAX);
    depths.sort_by(|one, other| one.queue.cmp(&other.queue));
    depths.push(Depth {
        queue: OTHERS.into(),
        waiting: rest.iter().map(|depth| depth.waiting).sum(),
        oldest: rest.iter().filter_map(|depth| depth.oldest).min(),
        running: rest.iter().map(|depth| depth.running).sum(),
    });
    depths
}

/// What is being written. Counters get their `_total` from the format.
struct Sheet<'a>(DescriptorEncoder<'a>);

impl Sheet<'_> {
    fn describe(&mut self, name: &'static str, help: &str, kind: MetricType) -> Result<MetricEncoder<'_>, fmt::Error> {
        // The format ends the sentence itself.
        self.0.encode_descriptor(name, help.trim_end_matches('.'), None, kind)
    }

    fn counter(&mut self, name: &'static str, help: &str, value: u64) -> fmt::Result {
        self.describe(name, help, MetricType::Counter)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: f64) -> fmt::Result {
        self.describe(name, help, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn histogram(&mut self, name: &'static str, help: &str, value: &Histogram) -> fmt::Result {
        encode(&mut self.describe(name, help, MetricType::Histogram)?, value)
    }

    fn labelled_counter<'b>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'b str, u64)>,
    ) -> fmt::Result {
        let mut family = self.describe(name, help, MetricType::Counter)?;
        for (word, value) in values {
            family.encode_family(&[(label, word)])?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    fn labelled_gauge<'b>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'b str, f64)>,
    ) -> fmt::Result {
        let mut family = self.describe(name, help, MetricType::Gauge)?;
        for (word, value) in values {
            family.encode_family(&[(label, word)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn histograms<'b>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'b str, &'b Histogram)>,
    ) -> fmt::Result {
        let mut family = self.describe(name, help, MetricType::Histogram)?;
        for (word, value) in values {
            encode(&mut family.encode_family(&[(label, word)])?, value)?;
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, value: &Histogram) -> fmt::Result {
    let buckets: Vec<(f64, u64)> = value.buckets().collect();
    encoder.encode_histogram::<NoLabelSet>(value.sum(), value.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use abide_kernel::Timestamp;

    use super::*;

    /// AB-20: made-up names of queues do not make a series each, and nothing of them is left out.
    #[test]
    fn past_so_many_queues_the_others_are_counted_together() {
        let depth = |number: usize| Depth {
            queue: format!("q{number:04}"),
            waiting: number as u64,
            oldest: (number > 0).then_some(Timestamp(1_000 - number as i64)),
            running: 1,
        };
        let few: Vec<Depth> = (0..QUEUES_SHOWN_MAX).map(depth).collect();
        assert_eq!(bounded(few.clone()), few);
        let many = bounded((0..QUEUES_SHOWN_MAX + 3).map(depth).collect());
        assert_eq!(many.len(), QUEUES_SHOWN_MAX + 1);
        let others = many.last().unwrap();
        assert_eq!((others.queue.as_str(), others.waiting, others.running), ("(others)", 3, 3));
        assert_eq!(others.oldest, Some(Timestamp(998)));
        assert_eq!(many[0].queue, "q0003");
    }
}
