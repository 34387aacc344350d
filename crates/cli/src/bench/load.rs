//! A load of many runs on a fresh durable store, and what the same rows cost raw.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abide::{Client, Workflow};
use anyhow::Context;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::ROUNDS;
use super::fleet::{Fleet, Round, share};
use super::ground::{Ground, Plot};
use super::report::Report;

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

/// How long a load goes on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Until so many runs have ended.
    Runs(usize),
    /// Until it is time.
    For(Duration),
    /// Until so many runs wait for a signal or a far timer, and nothing is left to do.
    Park(usize),
}

impl Work {
    /// The part of it that the `number`-th of `count` does.
    pub(super) fn share(self, count: usize, number: usize) -> Self {
        match self {
            Self::Runs(runs) => Self::Runs(share(runs, count, number)),
            Self::For(time) => Self::For(time),
            Self::Park(runs) => Self::Park(share(runs, count, number)),
        }
    }
}

impl Load<'_> {
    /// Rounds of engine and raw limit, in turn. `more` adds what is particular to a round.
    pub(crate) fn measure<W: Workflow>(
        &self,
        ground: &Ground,
        workflow: impl Fn() -> W,
        more: impl FnMut(&Round, &Plot, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<Report> {
        self.measure_fleet(ground, |url| Fleet::one(url, self, workflow()), more)
    }

    /// The same with several nodes, of which each has its share.
    pub(crate) fn measure_nodes(&self, ground: &Ground, nodes: usize) -> anyhow::Result<Report> {
        self.measure_fleet(ground, |url| Fleet::many(url, self, nodes), |_, _, _| Ok(()))
    }

    fn measure_fleet(
        &self,
        ground: &Ground,
        open: impl Fn(&str) -> anyhow::Result<Fleet>,
        mut more: impl FnMut(&Round, &Plot, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<Report> {
        let mut report = Report::default();
        for round in 0..ROUNDS {
            let plot = ground.fresh(&format!("engine-{round}"))?;
            let mut fleet = open(&plot.url)?;
            // A few runs first, so that files and caches have grown to their working size.
            fleet.drive(self, Work::Runs(self.in_flight.min(self.runs)))?;
            let engine = fleet.drive(self, Work::Runs(self.runs))?;
            fleet.stop();
            let rows = self.runs * (self.steps + 1);
            let limit = plot.limit(engine.gained.row_bytes())?.rows_per_s(rows, (self.in_flight / 2).max(1))?;
            self.add(&mut report, &engine, limit)?;
            more(&engine, &plot, &mut report)?;
        }
        Ok(report)
    }

    fn add(&self, report: &mut Report, round: &Round, limit: f64) -> anyhow::Result<()> {
        let (seconds, gained) = (round.elapsed.as_secs_f64(), &round.gained);
        let steps = (self.runs * self.steps) as f64;
        // The limit writes one row per step and one per run, whatever the engine needs for them.
        let useful = steps + self.runs as f64;
        let latency = gained.latency()?;
        report.add("steps_per_s", steps / seconds);
        report.add("runs_per_s", self.runs as f64 / seconds);
        report.add("limit_rows_per_s", limit);
        report.add("ratio_to_limit", useful / seconds / limit);
        report.add("rows_per_step", gained.rows as f64 / steps);
        report.add("row_bytes", gained.row_bytes() as f64);
        report.add("mean_batch", gained.rows as f64 / gained.commits as f64);
        report.add("commits", gained.commits as f64);
        report.add("p50_us", latency.value_at_quantile(0.5) as f64);
        report.add("p99_us", latency.value_at_quantile(0.99) as f64);
        report.add("rss_mb", gained.rss_mb);
        Ok(())
    }
}

/// Starts runs, as many as `work` says and `in_flight` at a time, and waits for each. Gives each run's time in microseconds.
pub(crate) async fn drive(
    client: &Client,
    workflow: &str,
    work: Work,
    in_flight: usize,
) -> anyhow::Result<Histogram<u64>> {
    let (runs, until) = match work {
        Work::Runs(runs) | Work::Park(runs) => (runs, None),
        Work::For(time) => (usize::MAX, Some(Instant::now() + time)),
    };
    let left = Arc::new(AtomicUsize::new(runs));
    let mut tasks = Vec::new();
    for _ in 0..in_flight {
        let (client, left, workflow) = (client.clone(), left.clone(), workflow.to_owned());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let began = Instant::now();
                if until.is_some_and(|until| began >= until) {
                    break;
                }
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
