//! `abide bench latency`: one run in flight, against as many raw commits of one row.

use std::path::PathBuf;
use std::time::Duration;

use abide::Engine;
use clap::Args;
use serde_json::json;

use super::ROUNDS;
use super::limit::Limit;
use super::load::{drive, scratch};
use super::machine::no_op;
use super::report::Report;

/// One run in flight: how long it takes from start to result.
#[derive(Debug, Args)]
pub(crate) struct Latency {
    /// How many runs, one after the other.
    #[arg(long, default_value_t = 2_000)]
    runs: usize,
    /// Steps of each run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Latency {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let dir = scratch(self.dir.as_deref())?;
        let mut report = Report::default();
        let rounds = ROUNDS;
        for round in 0..rounds {
            let runs = self.runs / rounds;
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let url = format!("sqlite:{}", dir.path().join(format!("engine-{round}.db")).display());
            let (latency, row_bytes) = runtime.block_on(async {
                let engine = Engine::open(&url).register(no_op(self.steps)).start().await?;
                drive(&engine.client(), "no_op", 50.min(runs), 1).await?;
                let latency = drive(&engine.client(), "no_op", runs, 1).await?;
                let store = engine.metrics().store;
                engine.stop(Duration::from_secs(10)).await;
                anyhow::Ok((latency, (store.fact_bytes / store.rows.max(1)) as usize))
            })?;
            let mut limit = Limit::open(&dir.path().join(format!("raw-{round}.db")), row_bytes)?;
            let raw = limit.commits_in_a_row(runs, self.steps + 1)?;
            let (p50, raw_p50) = (latency.value_at_quantile(0.5) as f64, raw.value_at_quantile(0.5) as f64);
            report.add("p50_us", p50);
            report.add("p99_us", latency.value_at_quantile(0.99) as f64);
            report.add("raw_six_commits_p50_us", raw_p50);
            report.add("ratio_to_limit", p50 / raw_p50);
        }
        let settings = [("bench", json!("latency")), ("runs", json!(self.runs)), ("steps", json!(self.steps))];
        report.print(self.json, &settings);
        Ok(())
    }
}
