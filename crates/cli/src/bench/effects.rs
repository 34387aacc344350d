//! `abide bench effects`: R functions of E effects that do nothing, with F in flight on a fresh durable store.

use std::path::PathBuf;

use abide::Policy;
use clap::Args;
use serde_json::json;

use super::fleet::Round;
use super::ground::{Ground, Plot, scratch};
use super::load::Load;
use super::machine::effects;
use super::report::Report;

/// Functions whose effects do nothing: effects per second, against raw rows per second. An effect counts as a step.
#[derive(Debug, Args)]
pub(crate) struct Effects {
    /// How many runs.
    #[arg(long, default_value_t = 20_000)]
    runs: usize,
    /// Effects of each run.
    #[arg(long, default_value_t = 5)]
    effects: usize,
    /// Runs in flight at once.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// What may happen to an effect of which nobody knows: pure, idempotent, dedupe, reconcile, unsafe_once.
    #[arg(long, default_value_t = Policy::Idempotent)]
    policy: Policy,
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

/// How often the raw commits of one run are measured at most.
const RAW_TIMES_MAX: usize = 2_000;

impl Effects {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let ground = Ground::Files(scratch(self.dir.as_deref())?);
        let (runs, steps, in_flight, shards) = (self.runs, self.effects, self.in_flight, self.shards);
        let load = Load { workflow: "effects", runs, steps, in_flight, shards };
        let workflow = || effects(self.effects, self.policy);
        let more = |round: &Round, plot: &Plot, report: &mut Report| self.add(round, plot, report);
        let report = load.measure(&ground, workflow, more)?;
        let settings = [
            ("bench", json!("effects")),
            ("runs", json!(runs)),
            ("effects", json!(self.effects)),
            ("in_flight", json!(in_flight)),
            ("policy", json!(self.policy)),
            ("shards", json!(shards)),
        ];
        report.print(self.json, &settings);
        Ok(())
    }

    fn add(&self, round: &Round, plot: &Plot, report: &mut Report) -> anyhow::Result<()> {
        report.add("fsyncs", round.gained.writes as f64);
        if self.in_flight > 1 {
            return Ok(());
        }
        // One at a time, nothing shares a commit: what a run takes is what its own commits take.
        let commits = round.gained.commits as f64 / self.runs as f64;
        let times = self.runs.min(RAW_TIMES_MAX);
        let raw = plot.limit(round.gained.row_bytes())?.commits_in_a_row(times, commits.round() as usize)?;
        let latency = round.gained.latency()?;
        let (p50, raw_p50) = (latency.value_at_quantile(0.5) as f64, raw.value_at_quantile(0.5) as f64);
        report.add("commits_per_run", commits);
        report.add("raw_commits_p50_us", raw_p50);
        report.add("latency_ratio", p50 / raw_p50);
        Ok(())
    }
}
