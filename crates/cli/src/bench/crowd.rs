//! `abide bench crowd`: workers that wait for work and watchers that follow runs, all in one process beside the server that
//! they burden, told what to do by the benchmark that started it.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use abide_kernel::Payload;
use abide_protocol::{ClaimWork, Claims, Offered, Signal, Start, StartMany, StartedMany, Workers};
use anyhow::{Context, bail, ensure};
use clap::Args;
use reqwest::{Client, RequestBuilder};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::descriptors;

/// A crowd of a benchmark: comes, waits, and ends when nobody tells it anything any more.
#[derive(Debug, Args)]
pub(crate) struct Crowd {
    #[arg(long)]
    url: String,
    #[arg(long)]
    workers: usize,
    #[arg(long)]
    watchers: usize,
}

/// How long it took until somebody of an idle crowd had what concerns them, in microseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Woken {
    pub(crate) watcher_us: Option<u64>,
    pub(crate) worker_us: Option<u64>,
}

/// The workflow of the runs that are followed, and of those that workers wait for.
const FOLLOWED: &str = "followed";
const AWAITED: &str = "awaited";
/// Runs that are started together, and watchers that come together.
const TOGETHER: usize = 500;
/// Followed runs begin after the benchmark.
const LATER_MS: u64 = 24 * 60 * 60 * 1_000;
/// How long a worker waits for work before it asks again.
const WAIT_MS: u64 = 60_000;
/// How long whoever is woken may take to notice.
const PATIENCE: Duration = Duration::from_secs(10);

impl Crowd {
    pub(crate) fn measure(self) -> anyhow::Result<()> {
        descriptors::raise_limit();
        Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(self.attend())
    }

    async fn attend(self) -> anyhow::Result<()> {
        let mut scene = Scene::new(&self.url)?;
        let runs = scene.start_followed(self.watchers).await?;
        scene.follow(&runs).await?;
        scene.hire(self.workers).await?;
        let mut out = std::io::stdout();
        writeln!(out, "\"ready\"")?;
        out.flush()?;
        // Each line asks for a waking; the end of them is the end.
        for line in std::io::stdin().lock().lines() {
            line?;
            let woken = Woken {
                watcher_us: if let Some(run) = runs.first() { Some(scene.wake_watcher(run).await?) } else { None },
                worker_us: if self.workers > 0 { Some(scene.wake_worker().await?) } else { None },
            };
            writeln!(out, "{}", serde_json::to_string(&woken)?)?;
            out.flush()?;
        }
        Ok(())
    }
}

/// The server, and those who wait there.
struct Scene {
    client: Client,
    base: String,
    /// Everybody; gone with this.
    people: JoinSet<()>,
    /// Whoever noticed something, by the run it was about.
    noticed: UnboundedReceiver<String>,
    notices: UnboundedSender<String>,
}

impl Scene {
    fn new(url: &str) -> anyhow::Result<Self> {
        let (notices, noticed) = unbounded_channel();
        let base = format!("{}/v1/namespaces/default", url.trim_end_matches('/'));
        Ok(Self { client: Client::builder().no_proxy().build()?, base, people: JoinSet::new(), noticed, notices })
    }

    async fn start_followed(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut runs = Vec::new();
        while runs.len() < count {
            let one = || Start { delay_ms: Some(LATER_MS), ..Start::new(FOLLOWED, Payload::null()) };
            let many = StartMany { runs: (runs.len()..count).take(TOGETHER).map(|_| one()).collect() };
            let started: StartedMany =
                answer(self.client.post(format!("{}/runs/batch", self.base)).json(&many)).await?;
            for one in started.answers {
                let started = one.started.with_context(|| format!("a run did not begin: {:?}", one.problem))?;
                runs.push(started.run.to_string());
            }
        }
        Ok(runs)
    }

    /// Lets each run be followed by somebody with a connection of their own.
    async fn follow(&mut self, runs: &[String]) -> anyhow::Result<()> {
        for some in runs.chunks(TOGETHER) {
            for run in some {
                let following = self.client.get(format!("{}/runs/{run}/events", self.base)).send();
                let (run, notices) = (run.clone(), self.notices.clone());
                self.people.spawn(async move {
                    let Ok(mut stream) = following.await else { return };
                    while let Ok(Some(piece)) = stream.chunk().await {
                        // What begins with a colon says only that the stream is alive.
                        if !piece.starts_with(b":") && notices.send(run.clone()).is_err() {
                            return;
                        }
                    }
                });
            }
            // Each hears first how its run began.
            for _ in some {
                tokio::time::timeout(PATIENCE, self.noticed.recv()).await.context("a watcher hears nothing")?;
            }
        }
        Ok(())
    }

    async fn hire(&mut self, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            let work = ClaimWork {
                worker: format!("idle-{number}"),
                token_hash: format!("{number:032x}"),
                queues: vec!["default".into()],
                workflows: vec![Offered {
                    workflow: AWAITED.into(),
                    version: 1,
                    fingerprint: "0".repeat(16),
                    first_step: "first".into(),
                }],
                most: 1,
                lease_ms: 30_000,
                wait_ms: WAIT_MS,
            };
            let asking = self.client.post(format!("{}/worker/claims", self.base)).json(&work);
            let notices = self.notices.clone();
            self.people.spawn(async move {
                while let Some(asking) = asking.try_clone() {
                    let Ok(claims) = answer::<Claims>(asking).await else { return };
                    for claim in claims.claims {
                        let _ = notices.send(claim.run.to_string());
                    }
                }
            });
        }
        let began = Instant::now();
        loop {
            let known: Workers = answer(self.client.get(format!("{}/workers", self.base))).await?;
            if known.workers.len() >= count {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "of {count} workers the server knows {}", known.workers.len());
        }
    }

    /// From before a signal is sent to a followed run until whoever follows it has heard.
    async fn wake_watcher(&mut self, run: &str) -> anyhow::Result<u64> {
        let signal = Signal { name: "go".into(), payload: Payload::null(), dedup: None };
        let began = Instant::now();
        let sent = self.client.post(format!("{}/runs/{run}/signals", self.base)).json(&signal);
        answer::<serde_json::Value>(sent).await?;
        self.hears(run, began).await
    }

    /// From before a run is started until a worker has its first step.
    async fn wake_worker(&mut self) -> anyhow::Result<u64> {
        let began = Instant::now();
        let start = self.client.post(format!("{}/runs", self.base)).json(&Start::new(AWAITED, Payload::null()));
        let started: serde_json::Value = answer(start).await?;
        let run = started["run"].as_str().context("a run")?.to_owned();
        self.hears(&run, began).await
    }

    async fn hears(&mut self, run: &str, began: Instant) -> anyhow::Result<u64> {
        loop {
            match tokio::time::timeout(PATIENCE, self.noticed.recv()).await {
                Ok(Some(noticed)) if noticed == run => return Ok(began.elapsed().as_micros() as u64),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => bail!("nobody heard of {run}"),
            }
        }
    }
}

async fn answer<T: for<'a> Deserialize<'a>>(request: RequestBuilder) -> anyhow::Result<T> {
    let answer = request.send().await?;
    let status = answer.status();
    let body = answer.bytes().await?;
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
    Ok(serde_json::from_slice(&body)?)
}
