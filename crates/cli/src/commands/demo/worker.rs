//! The process that the demo kills: an engine with the demo's workflows, told what to do by lines on standard input.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

use abide::{Client, ClientError, Engine, OnConflict};
use abide_kernel::RunId;
use clap::Args;
use tokio::sync::mpsc;

use super::machines::{self, Order};
use super::protocol::{Ask, Told, tell};
use crate::failure::{Exit, Failure, Outcome};

/// How many lines may wait to be obeyed.
const ASKS_MAX: usize = 1_000;

/// The process that the demo kills.
#[derive(Debug, Args)]
pub(crate) struct DemoWorker {
    /// Where the store and the card service's book are.
    #[arg(long)]
    dir: PathBuf,
    /// Shards of the store.
    #[arg(long, default_value_t = 1)]
    shards: u16,
}

impl DemoWorker {
    pub(crate) fn perform(self) -> Outcome {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(self.work())
    }

    async fn work(self) -> Outcome {
        let url = format!("sqlite:{}", self.dir.join(super::STORE).display());
        let engine = Engine::open(&url)
            .register(machines::order(&self.dir.join(super::CHARGES)))
            .register(machines::pack())
            .node(&format!("worker-{}", std::process::id()))
            .shards(self.shards)
            .start()
            .await
            .map_err(|error| Failure::new(Exit::Failure, "engine", error.to_string()))?;
        tell(&Told::Ready);
        let client = engine.client();
        let mut asks = listen();
        while let Some(ask) = asks.recv().await {
            let client = client.clone();
            tokio::spawn(async move { obey(&client, ask).await });
        }
        engine.stop(Duration::from_secs(5)).await;
        Ok(Exit::Ok)
    }
}

/// Lines of standard input. It ends when the demo closes it, or is gone itself.
fn listen() -> mpsc::Receiver<Ask> {
    let (sender, receiver) = mpsc::channel(ASKS_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Ok(ask) = serde_json::from_str(&line)
                && sender.blocking_send(ask).is_err()
            {
                return;
            }
        }
    });
    receiver
}

async fn obey(client: &Client, ask: Ask) {
    let (number, answer) = match ask {
        Ask::Start { number, order } => (number, start(client, &order).await),
        Ask::Pay { number, order, run } => (number, pay(client, &order, run).await),
    };
    tell(&match answer {
        Ok(run) => Told::Acknowledged { number, run },
        Err(error) => Told::Refused { number, why: error.to_string() },
    });
}

/// The order's name is its key: asked again after a crash, the answer is the run that exists.
async fn start(client: &Client, order: &str) -> Result<RunId, ClientError> {
    let started = client.start("order", &Order::new(order)).key(order);
    Ok(started.on_conflict(OnConflict::Reuse).await?.id())
}

async fn pay(client: &Client, order: &str, run: RunId) -> Result<RunId, ClientError> {
    client.run(run).signal("paid", &100).dedup(order).await?;
    Ok(run)
}
