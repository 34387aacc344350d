//! `abide bench sql`: how long it takes from the commit of a transaction that calls `abide.start` until the run's first
//! step begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide::{Engine, Machine, done};
use abide_store::postgres::raw_client;
use abide_store::{PostgresUrl, StoreUrl};
use anyhow::{Context, bail};
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::sync::mpsc;

use super::ground::Ground;
use super::report::Report;

/// Runs that are started by SQL: from COMMIT until the first step begins.
#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// How many transactions, one after the other.
    #[arg(long, default_value_t = 100)]
    tries: u64,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl Sql {
    pub(crate) fn measure(&self, store: &str) -> anyhow::Result<()> {
        let ground = Ground::of(store, None)?;
        if !matches!(ground, Ground::Database(_)) {
            bail!("runs are started by SQL in a database: give one, --store postgres://…");
        }
        let plot = ground.fresh("sql")?;
        let StoreUrl::Postgres(url) = plot.url.parse()? else { bail!("expected the URL of a database") };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (latency, started) = runtime.block_on(self.drive(&plot.url, &url))?;
        let mut report = Report::default();
        for (name, quantile) in [("commit_to_step_p50_ms", 0.5), ("commit_to_step_p99_ms", 0.99)] {
            report.add(name, latency.value_at_quantile(quantile) as f64 / 1_000.0);
        }
        report.add("committed", latency.len() as f64);
        report.add("started", started as f64);
        let settings = [("bench", json!("sql")), ("tries", json!(self.tries))];
        report.print(self.json, &settings);
        Ok(())
    }

    /// Every other transaction is rolled back. Gives how long the others took, and how many runs began at all.
    async fn drive(&self, store: &str, url: &PostgresUrl) -> anyhow::Result<(Histogram<u64>, usize)> {
        let (began, mut begins) = mpsc::unbounded_channel();
        let began = Arc::new(began);
        let machine = Machine::<u64>::new("order").step("first", move |_, n: u64| {
            // Whoever measures may be through.
            let _ = began.send((n, Instant::now()));
            async move { Ok(done(&n)) }
        });
        let engine = Engine::open(store).register(machine).start().await?;
        let client = raw_client(url).await?;
        client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)").await?;
        let (mut latency, mut started) = (Histogram::<u64>::new(3)?, 0);
        for n in 0..self.tries {
            let order = |id: u64| format!("BEGIN; INSERT INTO orders VALUES ({id}); SELECT start('order', '{id}')");
            client.batch_execute(&order(self.tries + n)).await?;
            client.batch_execute("ROLLBACK").await?;
            client.batch_execute(&order(n)).await?;
            let committing = Instant::now();
            client.batch_execute("COMMIT").await?;
            let next = tokio::time::timeout(PATIENCE, begins.recv()).await.context("no run began in time")?;
            let (which, at) = next.context("the engine is gone")?;
            if which != n {
                bail!("run {which} began, and {n} was expected");
            }
            started += 1;
            latency.record(u64::try_from(at.duration_since(committing).as_micros())?)?;
        }
        engine.stop(PATIENCE).await;
        while begins.try_recv().is_ok() {
            started += 1;
        }
        Ok((latency, started))
    }
}
