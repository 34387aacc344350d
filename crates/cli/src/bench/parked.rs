//! `abide bench parked`: runs that wait on a signal or a far timer, what they cost, and how fast they come back.
//!
//! The store is filled by a process of its own, which is killed with SIGKILL while the runs are parked.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abide::{Client, Engine, RunId, Workflow};
use anyhow::{Context, bail};
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::json;

use super::ground::scratch;
use super::machine::{parked, parked_function};
use super::report::{Report, resident_mb};

/// Runs that wait: half on a signal, half on a far timer, each with a unique key and 100 bytes of state.
#[derive(Debug, Args)]
pub(crate) struct Parked {
    /// How many runs.
    #[arg(long, default_value_t = 100_000)]
    runs: usize,
    /// How many of them are woken, one after the other.
    #[arg(long, default_value_t = 1_000)]
    wake: usize,
    /// Functions that wait for a signal, and what they leave behind in memory when they are out of it.
    #[arg(long, conflicts_with = "idle_s")]
    functions: bool,
    /// Only watch the engine do nothing for so long, then wake one.
    #[arg(long)]
    idle_s: Option<u64>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Fill this store, say so, and wait to be killed.
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
}

/// Starts sent at once.
const CHUNK: usize = 1_000;

impl Parked {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        if let Some(store) = &self.fill {
            return runtime.block_on(self.fill_and_wait(store));
        }
        let dir = scratch(self.dir.as_deref())?;
        let mut report = Report::default();
        match self.idle_s {
            Some(seconds) => runtime.block_on(self.idle(dir.path(), seconds, &mut report))?,
            None if self.functions => runtime.block_on(self.park_functions(dir.path(), &mut report))?,
            None => runtime.block_on(self.park(dir.path(), &mut report))?,
        }
        report.print(self.json, &[("bench", json!("parked")), ("runs", json!(self.runs))]);
        Ok(())
    }

    /// Fills a store in another process, kills it, and measures what comes back.
    async fn park(&self, dir: &Path, report: &mut Report) -> anyhow::Result<()> {
        // The same on a store with few runs, to compare with.
        let few = dir.join("few.db");
        let engine = open(&few).await?;
        let ids = start_all(&engine.client(), "key", 2 * self.wake, &['s', 't']).await?;
        settle(&engine).await?;
        let empty = wake(&engine.client(), &ids, self.wake).await?;
        engine.stop(Duration::from_secs(10)).await;

        let store = dir.join("parked.db");
        let mut filler = Command::new(std::env::current_exe()?)
            .args(["bench", "parked", "--runs", &self.runs.to_string(), "--fill"])
            .arg(&store)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the process that fills the store")?;
        let mut line = String::new();
        let stdout = filler.stdout.take().context("the process has an output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let (rss, fill_s) = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["parked", rss, seconds] => (rss.parse::<f64>()?, seconds.parse::<f64>()?),
            _ => bail!("the process that fills the store ended early: {line:?}"),
        };
        filler.kill()?;
        filler.wait()?;

        let began = Instant::now();
        let engine = open(&store).await?;
        engine.client().start("parked", "s first").await?;
        let reopen = began.elapsed();
        let ids = read_ids(&store)?;
        let woken = wake(&engine.client(), &ids, self.wake).await?;
        let reopened_rss = resident_mb();
        engine.stop(Duration::from_secs(10)).await;

        report.add("rss_mb", rss);
        report.add("fill_s", fill_s);
        report.add("reopen_s", reopen.as_secs_f64());
        report.add("reopened_rss_mb", reopened_rss);
        report.add("wake_p50_us", woken.value_at_quantile(0.5) as f64);
        report.add("wake_p99_us", woken.value_at_quantile(0.99) as f64);
        report.add("wake_empty_p50_us", empty.value_at_quantile(0.5) as f64);
        let ratio = woken.value_at_quantile(0.5) as f64 / empty.value_at_quantile(0.5) as f64;
        report.add("wake_ratio", ratio);
        report.add("woken", woken.len() as f64);
        report.add("store_mb", std::fs::metadata(&store)?.len() as f64 / 1_048_576.0);
        Ok(())
    }

    async fn fill_and_wait(&self, store: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        let engine = open(store).await?;
        let ids = start_all(&engine.client(), "key", self.runs, &['s', 't']).await?;
        write_ids(store, &ids)?;
        drop(ids);
        settle(&engine).await?;
        let mut out = std::io::stdout();
        writeln!(out, "parked {} {}", resident_mb(), began.elapsed().as_secs_f64())?;
        out.flush()?;
        loop {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
        }
    }

    /// Parks functions, lets them leave memory, and wakes some of them.
    async fn park_functions(&self, dir: &Path, report: &mut Report) -> anyhow::Result<()> {
        let engine = open_with(&dir.join("functions.db"), parked_function()).await?;
        let client = engine.client();
        let opened = resident_mb();
        // What is compared is an engine that has worked, with its caches full: functions came, did not wait, and are gone.
        start_all(&client, "gone", self.runs / 2, &['e']).await?;
        settle(&engine).await?;
        let before = resident_mb();
        let began = Instant::now();
        let ids = start_all(&client, "key", self.runs, &['s']).await?;
        settle(&engine).await?;
        let fill_s = began.elapsed().as_secs_f64();
        let after = resident_mb();
        let woken = wake(&client, &ids, self.wake).await?;
        engine.stop(Duration::from_secs(10)).await;
        report.add("rss_open_mb", opened);
        report.add("rss_before_mb", before);
        report.add("rss_mb", after);
        report.add("rss_growth_mb", after - before);
        report.add("fill_s", fill_s);
        report.add("wake_p50_us", woken.value_at_quantile(0.5) as f64);
        report.add("wake_p99_us", woken.value_at_quantile(0.99) as f64);
        report.add("woken", woken.len() as f64);
        Ok(())
    }

    /// Watches an engine with parked runs do nothing.
    async fn idle(&self, dir: &Path, seconds: u64, report: &mut Report) -> anyhow::Result<()> {
        let engine = open(&dir.join("idle.db")).await?;
        let ids = start_all(&engine.client(), "key", self.runs, &['s', 't']).await?;
        settle(&engine).await?;
        let before = engine.metrics().store;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = engine.metrics().store;
        let woken = wake(&engine.client(), &ids, 1).await?;
        engine.stop(Duration::from_secs(10)).await;
        report.add("store_reads_before_idle", before.reads as f64);
        report.add("store_writes_before_idle", before.writes as f64);
        report.add("idle_s", seconds as f64);
        report.add("idle_store_reads", (after.reads - before.reads) as f64);
        report.add("idle_store_writes", (after.writes - before.writes) as f64);
        report.add("woken", woken.len() as f64);
        Ok(())
    }
}

async fn open(store: &Path) -> anyhow::Result<Engine> {
    open_with(store, parked()).await
}

async fn open_with(store: &Path, workflow: impl Workflow) -> anyhow::Result<Engine> {
    let url = format!("sqlite:{}", store.display());
    Ok(Engine::open(&url).register(workflow).queue("default", 256).start().await?)
}

/// Starts the runs, of each kind in turn, and gives the ids of those that wait on a signal, which are of kind `s`.
pub(super) async fn start_all(client: &Client, keys: &str, runs: usize, kinds: &[char]) -> anyhow::Result<Vec<RunId>> {
    let mut ids = Vec::new();
    let mut next = 0;
    while next < runs {
        let chunk: Vec<usize> = (next..runs.min(next + CHUNK)).collect();
        next += chunk.len();
        let starts = chunk.iter().map(|number| {
            let kind = kinds[number % kinds.len()];
            let state = format!("{kind}{number:099}");
            client.start("parked", &state).key(&format!("{keys}-{number}"))
        });
        for (number, started) in chunk.iter().zip(client.start_many(starts).await?) {
            let id = started?.id();
            if kinds[number % kinds.len()] == 's' {
                ids.push(id);
            }
        }
    }
    Ok(ids)
}

/// Waits until every run is parked and its index row is written.
pub(super) async fn settle(engine: &Engine) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let metrics = engine.metrics();
        if metrics.executing == 0 && metrics.behind == 0 && metrics.resident_runs == 0 {
            return Ok(());
        }
        if began.elapsed() > Duration::from_secs(120) {
            bail!("the runs do not come to rest: {metrics:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Signals runs chosen over the whole list, one after the other, and waits for each to end.
async fn wake(client: &Client, ids: &[RunId], count: usize) -> anyhow::Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    // A step that shares no factor with the length visits every place once.
    let stride = (ids.len() * 618 / 1_000).max(1) | 1;
    let mut place = ids.len() / 3;
    for _ in 0..count.min(ids.len()) {
        let run = client.run(ids[place % ids.len()]);
        place += stride;
        let began = Instant::now();
        run.signal("go", &1u32).await?;
        let result = run.result::<String>().await?;
        times.record(began.elapsed().as_micros() as u64)?;
        anyhow::ensure!(result == "woken", "expected the woken run to end, found {result:?}");
    }
    Ok(times)
}

fn ids_file(store: &Path) -> PathBuf {
    store.with_extension("ids")
}

fn write_ids(store: &Path, ids: &[RunId]) -> anyhow::Result<()> {
    let mut bytes = Vec::with_capacity(ids.len() * 16);
    for id in ids {
        bytes.extend_from_slice(&id.0.to_be_bytes());
    }
    std::fs::write(ids_file(store), bytes)?;
    Ok(())
}

fn read_ids(store: &Path) -> anyhow::Result<Vec<RunId>> {
    let mut bytes = Vec::new();
    std::fs::File::open(ids_file(store))?.read_to_end(&mut bytes)?;
    Ok(bytes.as_chunks::<16>().0.iter().map(|id| RunId(u128::from_be_bytes(*id))).collect())
}
