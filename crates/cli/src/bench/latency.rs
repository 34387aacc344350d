//! `abide bench latency`: one run in flight, against as many raw commits of one row.

use std::path::PathBuf;

use clap::Args;
use hdrhistogram::Histogram;
use serde_json::json;

use super::ROUNDS;
use super::fleet::Fleet;
use super::ground::Ground;
use super::load::{Load, Work};
use super::machine::no_op;
use super::report::Report;

/// One run in flight: how long it takes from start to result.
///
/// With --store postgres://… the rows go into that server, in a schema of the benchmark's own that is dropped afterwards;
/// else into files of its own.
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

/// Runs between two looks at the limit.
const IN_A_ROW: usize = 10;

impl Latency {
    pub(crate) fn measure(&self, store: &str) -> anyhow::Result<()> {
        let ground = Ground::of(store, self.dir.as_deref())?;
        let mut report = Report::default();
        let runs = self.runs / ROUNDS;
        let load = Load { workflow: "no_op", runs, steps: self.steps, in_flight: 1, shards: ground.shards() };
        for round in 0..ROUNDS {
            let plot = ground.fresh(&format!("engine-{round}"))?;
            let mut engine = Fleet::one(&plot.url, &load, no_op("no_op", self.steps))?;
            let first = engine.drive(&load, Work::Runs(50.min(runs)))?.gained;
            let mut limit = plot.limit(first.row_bytes())?;
            let (mut latency, mut raw) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
            // In turn, so that whatever else the machine does meanwhile slows both down.
            while latency.len() < runs as u64 {
                latency.add(engine.drive(&load, Work::Runs(IN_A_ROW))?.gained.latency()?)?;
                raw.add(limit.commits_in_a_row(IN_A_ROW, self.steps + 1)?)?;
            }
            engine.stop();
            let (p50, raw_p50) = (latency.value_at_quantile(0.5) as f64, raw.value_at_quantile(0.5) as f64);
            report.add("p50_us", p50);
            report.add("p99_us", latency.value_at_quantile(0.99) as f64);
            report.add("raw_six_commits_p50_us", raw_p50);
            report.add("ratio_to_limit", p50 / raw_p50);
        }
        let settings = [
            ("bench", json!("latency")),
            ("store", json!(ground.kind())),
            ("runs", json!(self.runs)),
            ("steps", json!(self.steps)),
        ];
        report.print(self.json, &settings);
        Ok(())
    }
}
