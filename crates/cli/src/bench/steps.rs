//! `abide bench steps`: R runs of S no-op steps with F in flight on a fresh durable store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abide::{Client, Engine};
use anyhow::Context;
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::json;

use super::ROUNDS;
use super::limit::Limit;
use super::machine::no_op;
use super::report::{Report, resident_mb};

/// Many runs in flight: steps per second, against raw rows per second.
#[derive(Debug, Args)]
pub(crate) struct Steps {
    /// How many runs.
    #[arg(long, default_value_t = 20_000)]
    runs: usize,
    /// Steps of each run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Runs in flight at once.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Shards of the store.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What one round of the engine gave.
struct Round {
    elapsed: Duration,
    rows: u64,
    commits: u64,
    row_bytes: usize,
    latency: Histogram<u64>,
    rss_mb: f64,
}

impl Steps {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let dir = scratch(self.dir.as_deref())?;
        let mut report = Report::default();
        for round in 0..ROUNDS {
            let engine = self.engine_round(&dir.path().join(format!("engine-{round}.db")))?;
            let rows = self.runs * (self.steps + 1);
            let mut limit = Limit::open(&dir.path().join(format!("raw-{round}.db")), engine.row_bytes)?;
            let limit = limit.rows_per_s(rows, (self.in_flight / 2).max(1))?;
            self.add(&mut report, &engine, limit);
        }
        let settings = [
            ("bench", json!("steps")),
            ("runs", json!(self.runs)),
            ("steps", json!(self.steps)),
            ("in_flight", json!(self.in_flight)),
            ("shards", json!(self.shards)),
        ];
        report.print(self.json, &settings);
        Ok(())
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

    fn engine_round(&self, path: &Path) -> anyhow::Result<Round> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(async {
            let url = format!("sqlite:{}", path.display());
            let engine = Engine::open(&url)
                .register(no_op(self.steps))
                .queue("default", self.in_flight)
                .shards(self.shards)
                .start()
                .await?;
            let client = engine.client();
            // A few runs first, so that files and caches have grown to their working size.
            drive(&client, self.in_flight.min(self.runs), self.in_flight).await?;
            let before = engine.metrics().store;
            let began = Instant::now();
            let latency = drive(&client, self.runs, self.in_flight).await?;
            let elapsed = began.elapsed();
            let after = engine.metrics().store;
            let rss_mb = resident_mb();
            engine.stop(Duration::from_secs(10)).await;
            let rows = after.rows - before.rows;
            Ok(Round {
                elapsed,
                rows,
                commits: after.commits - before.commits,
                row_bytes: ((after.fact_bytes - before.fact_bytes) / rows.max(1)) as usize,
                latency,
                rss_mb,
            })
        })
    }
}

/// Starts `runs` runs, `in_flight` at a time, and waits for each. Gives each run's time in microseconds.
pub(crate) async fn drive(client: &Client, runs: usize, in_flight: usize) -> anyhow::Result<Histogram<u64>> {
    let left = Arc::new(AtomicUsize::new(runs));
    let mut tasks = Vec::new();
    for _ in 0..in_flight {
        let (client, left) = (client.clone(), left.clone());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let began = Instant::now();
                let run = client.start("no_op", &0u32).await?;
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
