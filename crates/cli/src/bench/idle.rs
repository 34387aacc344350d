//! `abide bench idle`: what several nodes ask of a database when none has anything to do, and what a server costs when all
//! who are connected wait.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::fleet::Fleet;
use super::ground::{Ground, scratch};
use super::load::{Load, Work};
use super::quiet::Quiet;
use super::report::Report;

/// Nodes with parked runs and nothing to do: the statements that the server counts meanwhile.
///
/// The server must have loaded pg_stat_statements. `other_statements` are those that are no renewals of leases.
///
/// With --workers or --watchers it is a server of Abide on a file of its own instead, with so many workers that wait for work
/// and watchers that follow a run each: `cpu_percent` of one core and `rss_mb` while nothing happens, and how long it takes
/// until one of each that something concerns has heard of it.
#[derive(Debug, Args)]
pub(crate) struct Idle {
    /// How many runs are parked, on all nodes together.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
    /// Nodes that share the database, each a process of its own.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// A server instead, with so many workers that wait for work, each with a connection of its own.
    #[arg(long, conflicts_with_all = ["runs", "nodes"], value_parser = clap::value_parser!(u64).range(..=CROWD_MAX))]
    workers: Option<u64>,
    /// A server instead, with so many that follow a run each, each with a connection of its own.
    #[arg(long, conflicts_with_all = ["runs", "nodes"], value_parser = clap::value_parser!(u64).range(..=CROWD_MAX))]
    watchers: Option<u64>,
    /// How long they are watched.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs in flight at once while the store is filled.
const IN_FLIGHT: usize = 256;
/// How long the nodes may still be busy with what was parked last: index rows are written a moment after.
const SETTLING: Duration = Duration::from_secs(2);

/// A server takes no more connections.
const CROWD_MAX: u64 = 15_000;

impl Idle {
    pub(crate) fn measure(&self, store: &str) -> anyhow::Result<()> {
        if self.workers.is_some() || self.watchers.is_some() {
            return self.measure_server();
        }
        let ground = Ground::of(store, None)?;
        let Ground::Database(database) = &ground else {
            bail!("nodes share a database: give one, --store postgres://…");
        };
        let shards = ground.shards();
        let load = Load { workflow: "parked", runs: self.runs, steps: 1, in_flight: IN_FLIGHT, shards };
        let plot = ground.fresh("idle")?;
        let mut fleet = Fleet::many(&plot.url, &load, self.nodes)?;
        fleet.drive(&load, Work::Park(self.runs))?;
        std::thread::sleep(SETTLING);
        let counting = database.count_statements()?;
        std::thread::sleep(Duration::from_secs(self.seconds));
        let statements = counting.end()?;
        fleet.stop();
        let mut report = Report::default();
        let (renewals, others): (Vec<_>, Vec<_>) = statements.into_iter().partition(|(sql, _)| is_renewal(sql));
        for (sql, calls) in &others {
            eprintln!("{calls} times: {sql}");
        }
        let sum = |counted: &[(String, i64)]| counted.iter().map(|(_, calls)| *calls).sum::<i64>() as f64;
        report.add("renewals", sum(&renewals));
        report.add("other_statements", sum(&others));
        let settings = [
            ("bench", json!("idle")),
            ("runs", json!(self.runs)),
            ("nodes", json!(self.nodes)),
            ("seconds", json!(self.seconds)),
        ];
        report.print(self.json, &settings);
        Ok(())
    }

    fn measure_server(&self) -> anyhow::Result<()> {
        let count = |asked: Option<u64>| asked.unwrap_or(0) as usize;
        let (workers, watchers, seconds) = (count(self.workers), count(self.watchers), self.seconds);
        let dir = scratch(None)?;
        let report = Quiet { workers, watchers, seconds }.measure(dir.path())?;
        let settings = [
            ("bench", json!("idle")),
            ("workers", json!(workers)),
            ("watchers", json!(watchers)),
            ("seconds", json!(seconds)),
        ];
        report.print(self.json, &settings);
        Ok(())
    }
}

fn is_renewal(sql: &str) -> bool {
    sql.contains("INSERT INTO node ")
}
