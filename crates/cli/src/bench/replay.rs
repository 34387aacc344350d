//! `abide bench replay`: how long a function with a long past takes to be brought back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use abide::{Engine, RunHandle, Status};
use anyhow::ensure;
use clap::Args;
use serde_json::json;

use super::ground::scratch;
use super::machine::long_past;
use super::report::Report;

/// Functions that did many effects and wait for a signal: from the signal to the end of the run.
///
/// Each is woken by an engine that was just opened: the run is read from the store, its function is brought to where it
/// waited, and it ends. Other lives of the engine are not measured.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Effects that each function did before it waits.
    #[arg(long, default_value_t = 10_000)]
    effects: usize,
    /// How many functions are woken, one after the other.
    #[arg(long, default_value_t = 5)]
    times: usize,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Replay {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let dir = scratch(self.dir.as_deref())?;
        let url = format!("sqlite:{}", dir.path().join("replay.db").display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut report = Report::default();
        runtime.block_on(self.replay(&url, &mut report))?;
        let settings = [("bench", json!("replay")), ("effects", json!(self.effects)), ("times", json!(self.times))];
        report.print(self.json, &settings);
        Ok(())
    }

    async fn replay(&self, url: &str, report: &mut Report) -> anyhow::Result<()> {
        let open = || Engine::open(url).register(long_past()).start();
        let began = Instant::now();
        let engine = open().await?;
        let mut ids = Vec::new();
        for _ in 0..self.times {
            ids.push(engine.client().start("long_past", &self.effects).await?.id());
        }
        for id in &ids {
            until_parked(&engine.client().run(*id)).await?;
        }
        engine.stop(Duration::from_secs(60)).await;
        report.add("fill_s", began.elapsed().as_secs_f64());
        for id in ids {
            let engine = open().await?;
            let run = engine.client().run(id);
            let began = Instant::now();
            run.signal("go", &()).await?;
            let did: usize = run.result().await?;
            report.add("replay_ms", began.elapsed().as_secs_f64() * 1_000.0);
            ensure!(did == self.effects, "expected {} effects, found {did}", self.effects);
            engine.stop(Duration::from_secs(60)).await;
        }
        Ok(())
    }
}

async fn until_parked(run: &RunHandle) -> anyhow::Result<()> {
    loop {
        match run.show().await?.status() {
            Status::AwaitingSignal => return Ok(()),
            Status::Executing | Status::Runnable => tokio::time::sleep(Duration::from_millis(50)).await,
            other => anyhow::bail!("expected the function to come to its wait, found it {other}"),
        }
    }
}
