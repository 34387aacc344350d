//! A load of many runs on a fresh durable store, and what the same rows cost raw.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abide::{Client, Engine, Workflow};
use anyhow::Context;
use hdrhistogram::Histogram;

use super::ROUNDS;
use super::limit::Limit;
use super::report::{Report, resident_mb};

/// How much, and how much of it at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    /// The workflow, which takes a number and gives one.
    pub(crate) workflow: &'a str,
    /// How many runs.
    pub(crate) runs: usize,
    /// Steps or effects of each run.
    pub(crate) steps: usize,
    /// Runs in flight at once.
    pub(crate) in_flight: usize,
    /// Shards of the store.
    pub(crate) shards: u16,
}

/// What one round of the engine gave.
pub(crate) struct Round {
    elapsed: Duration,
    rows: u64,
    pub(crate) commits: u64,
    /// Transactions that wrote: batches and index rows. Each syncs the log once.
    pub(crate) writes: u64,
    pub(crate) row_bytes: usize,
    pub(crate) latency: Histogram<u64>,
    rss_mb: f64,
}

impl Load<'_> {
    /// Rounds of engine and raw limit, in turn. `more` adds what is particular to a round, given where raw files go.
    pub(crate) fn measure<W: Workflow>(
        &self,
        dir: &Path,
        workflow: impl Fn() -> W,
        mut more: impl FnMut(&Round, &Path, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<Report> {
        let mut report = Report::default();
        for round in 0..ROUNDS {
            let engine = self.engine_round(&dir.join(format!("engine-{round}.db")), workflow())?;
            let rows = self.runs * (self.steps + 1);
            let mut limit = Limit::open(&dir.join(format!("raw-{round}.db")), engine.row_bytes)?;
            let limit = limit.rows_per_s(rows, (self.in_flight / 2).max(1))?;
            self.add(&mut report, &engine, limit);
            more(&engine, &dir.join(format!("raw-commits-{round}.db")), &mut report)?;
        }
        Ok(report)
    }

    fn add(&self, report: &mut Report, round: &Round, limit: f64) {
        let seconds = round.elapsed.as_secs_f64();
        let steps = (self.runs * self.steps) as f64;
        // The limit writes one row per step and one per run, whatever the engine needs for them.
        let useful = steps + self.runs as f64;
        report.add("steps_per_s", steps / seconds);
        report.add("runs_per_s", self.runs as f64 / seconds);
        report.add("limit_rows_per_s", limit);
        report.add("ratio_to_limit", useful / seconds / limit);
        report.add("rows_per_step", round.rows as f64 / steps);
        report.add("row_bytes", round.row_bytes as f64);
        report.add("mean_batch", round.rows as f64 / round.commits as f64);
        report.add("commits", round.commits as f64);
        report.add("p50_us", round.latency.value_at_quantile(0.5) as f64);
        report.add("p99_us", round.latency.value_at_quantile(0.99) as f64);
        report.add("rss_mb", round.rss_mb);
    }

    fn engine_round(&self, path: &Path, workflow: impl Workflow) -> anyhow::Result<Round> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(async {
            let url = format!("sqlite:{}", path.display());
            let engine = Engine::open(&url)
                .register(workflow)
                .queue("default", self.in_flight)
                .shards(self.shards)
                .start()
                .await?;
            let client = engine.client();
            // A few runs first, so that files and caches have grown to their working size.
            drive(&client, self.workflow, self.in_flight.min(self.runs), self.in_flight).await?;
            let before = engine.metrics().store;
            let began = Instant::now();
            let latency = drive(&client, self.workflow, self.runs, self.in_flight).await?;
            let elapsed = began.elapsed();
            let after = engine.metrics().store;
            let rss_mb = resident_mb();
            engine.stop(Duration::from_secs(10)).await;
            let rows = after.rows - before.rows;
            Ok(Round {
                elapsed,
                rows,
                commits: after.commits - before.commits,
                writes: after.writes - before.writes,
                row_bytes: ((after.fact_bytes - before.fact_bytes) / rows.max(1)) as usize,
                latency,
                rss_mb,
            })
        })
    }
}

/// Starts `runs` runs, `in_flight` at a time, and waits for each. Gives each run's time in microseconds.
pub(crate) async fn drive(
    client: &Client,
    workflow: &str,
    runs: usize,
    in_flight: usize,
) -> anyhow::Result<Histogram<u64>> {
    let left = Arc::new(AtomicUsize::new(runs));
    let mut tasks = Vec::new();
    for _ in 0..in_flight {
        let (client, left, workflow) = (client.clone(), left.clone(), workflow.to_owned());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let began = Instant::now();
                let run = client.start(&workflow, &0u32).await?;
                run.result::<u32>().await?;
                times.push(began.elapsed().as_micros() as u64);
            }
            anyhow::Ok(times)
        }));
    }
    let mut latency = Histogram::new(3)?;
    for task in tasks {
        for time in task.await.context("a client task ended")?? {
            latency.record(time)?;
        }
    }
    Ok(latency)
}

/// A directory for the files: fresh, and gone afterwards.
pub(crate) fn scratch(base: Option<&Path>) -> anyhow::Result<tempfile::TempDir> {
    let base = base.map_or_else(|| PathBuf::from("."), Path::to_owned);
    tempfile::Builder::new()
        .prefix("abide-bench-")
        .tempdir_in(&base)
        .with_context(|| format!("making a directory in {}", base.display()))
}
