//! `abide bench steps --url`: the same runs by workers of a server, against an engine in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide::{Engine, Machine, Outcome, StepError, done, next};
use anyhow::Context;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use super::ROUNDS;
use super::fleet::{Fleet, share};
use super::ground::Ground;
use super::load::{Load, Work, drive};
use super::machine::no_op;
use super::report::Report;

/// How long workers that stop wait for their steps.
const PATIENCE: Duration = Duration::from_secs(10);
/// Runs, commits and requests of which each takes its turn alone.
const ALONE: usize = 200;

/// A server and what is done there.
pub(crate) struct Served<'a> {
    pub(crate) url: &'a str,
    pub(crate) token: Option<&'a str>,
    pub(crate) workers: usize,
}

impl Served<'_> {
    /// Rounds of engine and server, in turn.
    pub(crate) fn measure(&self, ground: &Ground, load: &Load<'_>) -> anyhow::Result<Report> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut report = Report::default();
        // A workflow of its own, so that nobody else's workers take part.
        let name = format!("bench_{}", std::process::id());
        for round in 0..ROUNDS {
            let plot = ground.fresh(&format!("embedded-{round}"))?;
            let mut fleet = Fleet::one(&plot.url, load, no_op(load.workflow, load.steps))?;
            let warm = Work::Runs(load.in_flight.min(load.runs));
            let row_bytes = fleet.drive(load, warm)?.gained.row_bytes();
            let embedded = fleet.drive(load, Work::Runs(load.runs))?.elapsed;
            fleet.stop();
            let raw = plot.limit(row_bytes)?.commits_in_a_row(ALONE, 1)?;

            let (there, latency) = self.drive(&runtime, &name, load, warm)?;
            let gap = self.gap(&runtime, &format!("{name}_alone"), load.steps)?;
            let loopback = runtime.block_on(self.loopback())?;
            let steps = (load.runs * load.steps) as f64;
            report.add("steps_per_s", steps / there.as_secs_f64());
            report.add("embedded_steps_per_s", steps / embedded.as_secs_f64());
            report.add("ratio_to_embedded", embedded.as_secs_f64() / there.as_secs_f64());
            report.add("p50_us", latency.value_at_quantile(0.5) as f64);
            report.add("p99_us", latency.value_at_quantile(0.99) as f64);
            let p50 = |times: &Histogram<u64>| times.value_at_quantile(0.5) as f64;
            report.add("step_gap_p50_us", p50(&gap));
            report.add("raw_commit_p50_us", p50(&raw));
            report.add("loopback_p50_us", p50(&loopback));
            report.add("gap_ratio", p50(&gap) / (p50(&raw) + p50(&loopback)));
        }
        Ok(report)
    }

    /// Workers of the server, each with its share of what is in flight.
    async fn hire(&self, count: usize, room: usize, machine: impl Fn() -> Machine<u32>) -> anyhow::Result<Vec<Engine>> {
        let mut workers = Vec::new();
        for number in 0..count {
            let mut worker = Engine::open(self.url).node(&format!("bench-{number}")).register(machine());
            if let Some(token) = self.token {
                worker = worker.token(token);
            }
            workers.push(worker.queue("default", share(room, count, number).max(1)).start().await?);
        }
        Ok(workers)
    }

    fn drive(
        &self,
        runtime: &Runtime,
        name: &str,
        load: &Load<'_>,
        warm: Work,
    ) -> anyhow::Result<(Duration, Histogram<u64>)> {
        runtime.block_on(async {
            let workers = self.hire(self.workers, load.in_flight, || no_op(name, load.steps)).await?;
            let client = workers.first().context("at least one worker")?.client();
            drive(&client, name, warm, load.in_flight).await?;
            let began = Instant::now();
            let latency = drive(&client, name, Work::Runs(load.runs), load.in_flight).await?;
            let elapsed = began.elapsed();
            for worker in workers {
                worker.stop(PATIENCE).await;
            }
            Ok((elapsed, latency))
        })
    }

    /// From step to step of a run that is alone, in microseconds.
    fn gap(&self, runtime: &Runtime, name: &str, steps: usize) -> anyhow::Result<Histogram<u64>> {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let times = begun.clone();
        runtime.block_on(async {
            let workers = self.hire(1, 1, || timed(name, steps, &times)).await?;
            drive(&workers[0].client(), name, Work::Runs(ALONE), 1).await?;
            for worker in workers {
                worker.stop(PATIENCE).await;
            }
            anyhow::Ok(())
        })?;
        let mut gaps = Histogram::new(3)?;
        for run in begun.lock().chunks_exact(steps) {
            for pair in run.windows(2) {
                gaps.record((pair[1] - pair[0]).as_micros() as u64)?;
            }
        }
        Ok(gaps)
    }

    /// There and back, for a request that does nothing.
    async fn loopback(&self) -> anyhow::Result<Histogram<u64>> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("{}/healthz", self.url.trim_end_matches('/'));
        let mut times = Histogram::new(3)?;
        for _ in 0..ALONE {
            let began = Instant::now();
            client.get(&url).send().await?.error_for_status()?.bytes().await?;
            times.record(began.elapsed().as_micros() as u64)?;
        }
        Ok(times)
    }
}

/// A machine whose steps say when they begin.
fn timed(name: &str, steps: usize, times: &Arc<Mutex<Vec<Instant>>>) -> Machine<u32> {
    let mut machine = Machine::<u32>::new(name);
    for step in 1..=steps {
        let (times, following) = (times.clone(), format!("s{}", step + 1));
        machine = machine.step(&format!("s{step}"), move |_, state: u32| {
            times.lock().push(Instant::now());
            let outcome = if step == steps { done(&state) } else { next(&following, state + 1) };
            std::future::ready(Ok::<Outcome, StepError>(outcome))
        });
    }
    machine
}
