//! `abide bench steps`: R runs of S no-op steps with F in flight on a fresh durable store.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::ROUNDS;
use super::fleet::Fleet;
use super::ground::Ground;
use super::load::{Load, Work};
use super::machine::no_op;
use super::report::Report;
use super::served::Served;

/// Many runs in flight: steps per second, against raw rows per second.
///
/// With --store postgres://… the rows go into that server, in a schema of the benchmark's own that is dropped afterwards;
/// else into files of its own.
#[derive(Debug, Args)]
pub(crate) struct Steps {
    /// How many runs.
    #[arg(long, default_value_t = 20_000)]
    runs: usize,
    /// Steps of each run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Runs in flight at once, on all nodes together.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Shards of the store; without it as many as an engine gives it, 1 in a file and 64 in a database.
    #[arg(long)]
    shards: Option<u16>,
    /// Nodes that share the work, each a process of its own. More than one need a database.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// A server whose workers do the same, against an engine in this process; see also --workers. Start it on a file of the
    /// same disk.
    #[arg(long, value_name = "URL", conflicts_with_all = ["nodes", "pinned"])]
    url: Option<String>,
    /// The token by which the server knows the workers and the client.
    #[arg(long, env = "ABIDE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// With --url: how many workers share what is in flight.
    #[arg(long, default_value_t = 2, requires = "url")]
    workers: usize,
    /// Measure what another's open transaction costs, which keeps the database from clearing dead rows away: three pairs of
    /// spells without and with one.
    #[arg(long)]
    pinned: bool,
    /// With --pinned: how long each spell takes.
    #[arg(long, default_value_t = 60, requires = "pinned")]
    seconds: u64,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Steps {
    pub(crate) fn measure(&self, store: &str) -> anyhow::Result<()> {
        let ground = Ground::of(store, self.dir.as_deref())?;
        let (runs, steps, in_flight, nodes) = (self.runs, self.steps, self.in_flight, self.nodes);
        let shards = self.shards.unwrap_or(ground.shards());
        let load = Load { workflow: "no_op", runs, steps, in_flight, shards };
        let served = self.url.as_deref().map(|url| Served { url, token: self.token.as_deref(), workers: self.workers });
        let report = match (&ground, nodes) {
            _ if self.workers == 0 => bail!("expected at least 1 worker, found 0"),
            _ if let Some(served) = &served => served.measure(&ground, &load)?,
            _ if self.pinned => self.measure_pinned(&ground, &load)?,
            (_, 1) => load.measure(&ground, || no_op("no_op", steps), |_, _, _| Ok(()))?,
            (_, 0) => bail!("expected at least 1 node, found 0"),
            (Ground::Database(_), _) => load.measure_nodes(&ground, nodes)?,
            (Ground::Files(_), _) => bail!("{nodes} nodes cannot share a file: give a database, --store postgres://…"),
        };
        let settings = [
            ("bench", json!("steps")),
            ("store", json!(ground.kind())),
            ("runs", json!(runs)),
            ("steps", json!(steps)),
            ("in_flight", json!(in_flight)),
            ("shards", json!(shards)),
            if self.url.is_some() { ("workers", json!(self.workers)) } else { ("nodes", json!(nodes)) },
        ];
        report.print(self.json, &settings);
        Ok(())
    }

    /// Spells of the same load on the same store, without and with a transaction that stays open.
    fn measure_pinned(&self, ground: &Ground, load: &Load<'_>) -> anyhow::Result<Report> {
        let Ground::Database(database) = ground else {
            bail!("a file has no transactions of others: give a database, --store postgres://…");
        };
        let plot = ground.fresh("pinned")?;
        let mut fleet = match self.nodes {
            1 => Fleet::one(&plot.url, load, no_op("no_op", self.steps))?,
            nodes => Fleet::many(&plot.url, load, nodes)?,
        };
        fleet.drive(load, Work::Runs(self.in_flight.min(self.runs)))?;
        let mut report = Report::default();
        let mut spell = || -> anyhow::Result<f64> {
            let round = fleet.drive(load, Work::For(Duration::from_secs(self.seconds)))?;
            Ok(round.gained.runs as f64 * self.steps as f64 / round.elapsed.as_secs_f64())
        };
        for _ in 0..ROUNDS {
            let free = spell()?;
            let pin = database.pin()?;
            let pinned = spell()?;
            drop(pin);
            report.add("free_steps_per_s", free);
            report.add("pinned_steps_per_s", pinned);
            report.add("pinned_ratio", pinned / free);
        }
        report.add("seconds", self.seconds as f64);
        fleet.stop();
        Ok(report)
    }
}
