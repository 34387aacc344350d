//! The engines under load: one in this process, or several nodes in processes of their own that share a store.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use abide::{Engine, Workflow};
use abide_store::Counters;
use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::load::{Load, Work, drive};
use super::machine::parked;
use super::parked::{settle, start_all};
use super::report::resident_mb;

/// How long an engine that stops waits for its steps.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) enum Fleet {
    One(Box<One>),
    Many(Vec<Node>),
}

/// What a piece of load gave.
pub(crate) struct Round {
    pub(crate) elapsed: Duration,
    pub(crate) gained: Gained,
}

/// What one engine did of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gained {
    pub(crate) runs: u64,
    pub(crate) rows: u64,
    pub(crate) commits: u64,
    /// Transactions that wrote: batches and index rows. Each syncs the log once.
    pub(crate) writes: u64,
    pub(crate) fact_bytes: u64,
    pub(crate) rss_mb: f64,
    /// How long runs took, in microseconds: each time with how many took it.
    pub(crate) times: Vec<(u64, u64)>,
}

impl Fleet {
    /// An engine in this process.
    pub(crate) fn one(url: &str, load: &Load<'_>, workflow: impl Workflow) -> anyhow::Result<Self> {
        Ok(Self::One(Box::new(One::open(url, load, workflow)?)))
    }

    /// So many nodes, whose workflow is the one of no-op steps.
    pub(crate) fn many(url: &str, load: &Load<'_>, nodes: usize) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for number in 0..nodes {
            all.push(Node::start(url, load, share(load.in_flight, nodes, number))?);
        }
        all.iter_mut().try_for_each(|node| node.hear::<String>().map(drop))?;
        Ok(Self::Many(all))
    }

    /// Lets every engine do its share.
    pub(crate) fn drive(&mut self, load: &Load<'_>, work: Work) -> anyhow::Result<Round> {
        let began = Instant::now();
        let mut gained = Gained::default();
        match self {
            Self::One(one) => gained.add(one.drive(load.workflow, work, load.in_flight)?),
            Self::Many(nodes) => {
                let count = nodes.len();
                for (number, node) in nodes.iter_mut().enumerate() {
                    node.tell(&work.share(count, number))?;
                }
                for node in nodes {
                    gained.add(node.hear()?);
                }
            }
        }
        Ok(Round { elapsed: began.elapsed(), gained })
    }

    pub(crate) fn stop(self) {
        match self {
            Self::One(one) => one.stop(),
            // Without anybody to listen to a node stops.
            Self::Many(nodes) => nodes.into_iter().for_each(Node::end),
        }
    }
}

/// The part of `whole` that the `number`-th of `count` does.
pub(super) fn share(whole: usize, count: usize, number: usize) -> usize {
    whole / count + usize::from(number < whole % count)
}

impl Gained {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.rows += other.rows;
        self.commits += other.commits;
        self.writes += other.writes;
        self.fact_bytes += other.fact_bytes;
        self.rss_mb += other.rss_mb;
        self.times.extend(other.times);
    }

    /// The mean size of a row's facts.
    pub(crate) fn row_bytes(&self) -> usize {
        (self.fact_bytes / self.rows.max(1)) as usize
    }

    pub(crate) fn latency(&self) -> anyhow::Result<Histogram<u64>> {
        let mut latency = Histogram::new(3)?;
        for (time, count) in &self.times {
            latency.record_n(*time, *count)?;
        }
        Ok(latency)
    }
}

/// An engine, with a runtime for those who use it.
pub(crate) struct One {
    runtime: Runtime,
    engine: Engine,
}

impl One {
    pub(super) fn open(url: &str, load: &Load<'_>, workflow: impl Workflow) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let engine = Engine::open(url).register(workflow).register(parked());
        let engine = engine.queue("default", load.in_flight).shards(load.shards);
        let engine = runtime.block_on(engine.start())?;
        Ok(Self { runtime, engine })
    }

    pub(super) fn drive(&self, workflow: &str, work: Work, in_flight: usize) -> anyhow::Result<Gained> {
        let before = self.engine.metrics().store;
        let latency = match work {
            Work::Park(runs) => self.park(runs)?,
            Work::Runs(_) | Work::For(_) => {
                self.runtime.block_on(drive(&self.engine.client(), workflow, work, in_flight))?
            }
        };
        let Counters { rows, commits, writes, fact_bytes, .. } = self.engine.metrics().store;
        Ok(Gained {
            runs: latency.len(),
            rows: rows - before.rows,
            commits: commits - before.commits,
            writes: writes - before.writes,
            fact_bytes: fact_bytes - before.fact_bytes,
            rss_mb: resident_mb(),
            times: latency.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect(),
        })
    }

    fn park(&self, runs: usize) -> anyhow::Result<Histogram<u64>> {
        self.runtime.block_on(async {
            let keys = format!("key-{}", std::process::id());
            start_all(&self.engine.client(), &keys, runs, &['s', 't']).await?;
            settle(&self.engine).await
        })?;
        Ok(Histogram::new(3)?)
    }

    pub(super) fn stop(self) {
        self.runtime.block_on(self.engine.stop(PATIENCE));
    }
}

/// A node in a process of its own, and the way to talk with it: a line of JSON for a line of JSON.
pub(crate) struct Node {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Node {
    fn start(url: &str, load: &Load<'_>, in_flight: usize) -> anyhow::Result<Self> {
        let Load { steps, shards, .. } = load;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "node", "--steps", &steps.to_string(), "--shards", &shards.to_string()])
            .args(["--in-flight", &in_flight.to_string()])
            // Not as an argument, which everybody sees: it may have a password.
            .env("ABIDE_STORE", url)
            // Ctrl-C is for the benchmark, which tidies up; a node ends when nobody tells it anything any more.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a node")?;
        let to = child.stdin.take().context("the node has an input")?;
        let from = BufReader::new(child.stdout.take().context("the node has an output")?);
        Ok(Self { child, to, from })
    }

    fn tell(&mut self, work: &Work) -> anyhow::Result<()> {
        writeln!(self.to, "{}", serde_json::to_string(work)?).context("a node does not listen")
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            bail!("a node ended before it was told to: {}", self.child.wait()?);
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn end(self) {
        let Self { mut child, to, .. } = self;
        drop(to);
        let _ = child.wait();
    }
}
