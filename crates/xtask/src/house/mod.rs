//! `cargo xtask house`: stores with runs of every kind move, from a file to a database and back, and everything comes to its
//! end where it arrived.

mod workflows;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::time::{Duration, Instant};

use abide::{Client, Engine, EngineBuilder, Filter, ManualKind, OnConflict, Page, RunId, Status, Timestamp};
use abide_kernel::RequestId;
use abide_pg_testing::{FAST, Server};
use abide_runtime::house;
use abide_store::postgres::PostgresStore;
use abide_store::sqlite::SqliteStore;
use abide_store::{Durability, Fault, PostgresUrl, Store, StoreUrl};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use workflows::Moved;

/// How many runs act as one kind each: as many kinds as [`start`] knows.
const KINDS: u64 = 10;
/// Of runs that share a concurrency key, one executes and the others wait.
const LINE: u64 = 5;
const PAGE: usize = 1_000;
/// How long everything may take to come to rest, or to its end.
const PATIENCE: Duration = Duration::from_secs(900);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many runs are open when the store moves.
    #[arg(long, default_value_t = 100, value_name = "N")]
    runs: u64,
    /// How long timers last, and how long what failed waits: some must last until the store has moved.
    #[arg(long, default_value_t = 15, value_name = "SECONDS")]
    nap: u64,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::start_with(FAST);
    let folder = tempfile::tempdir()?;
    let url = |schema: &str| format!("{}?schema={schema}", server.url());
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let paper = folder.path().join("house.jsonl");
    let mut report = json!({"runs": options.runs});
    let ways = [("there", file("old.db"), 1, url("new"), 64), ("back", url("old"), 64, file("new.db"), 4)];
    for (way, from, shards_from, to, shards_to) in ways {
        let house = Move { options, from: (&from, shards_from), to: (&to, shards_to), paper: &paper };
        report[way] = house.perform(&runtime).with_context(|| format!("on the way {way}"))?;
    }
    println!("{report}");
    Ok(())
}

/// One move.
struct Move<'a> {
    options: &'a Options,
    /// The URL, and how many shards.
    from: (&'a str, u16),
    to: (&'a str, u16),
    paper: &'a Path,
}

impl Move<'_> {
    fn perform(&self, runtime: &tokio::runtime::Runtime) -> Result<Value> {
        let moved = Moved::default();
        let kept = runtime.block_on(self.fill(&moved))?;
        moved.set();
        let began = Instant::now();
        let mut out = BufWriter::new(File::create(self.paper)?);
        let now = Timestamp(kept.now.0);
        let exported = house::export(|| open(self.from), "mover", now, &mut out)?;
        drop(out);
        let export_ms = began.elapsed().as_millis() as u64;
        let began = Instant::now();
        let mut paper = BufReader::new(File::open(self.paper)?);
        let imported = house::import(|| open(self.to), "mover", &mut paper)?;
        let import_ms = began.elapsed().as_millis() as u64;
        ensure!(exported == imported, "expected {exported}, found {imported}");
        let total: u64 = imported.runs.values().sum();
        let began = Instant::now();
        let done = runtime.block_on(self.finish(&moved, &kept))?;
        ensure!(done == total, "expected {total} runs that are done, found {done}");
        ensure!(moved.paid_again() == 0, "what must not happen twice was begun {} times more", moved.paid_again());
        Ok(json!({
            "from": shown(self.from), "to": shown(self.to), "open": imported.runs, "rows": imported.rows,
            "facts": imported.facts, "hash": imported.hash, "bytes": self.paper.metadata()?.len(),
            "export_ms": export_ms, "import_ms": import_ms,
            "finish_ms": began.elapsed().as_millis() as u64, "finished": done, "unfinished": total - done,
            "keys_kept": kept.keyed.len(), "unsafe_once_twice": moved.paid_again(),
        }))
    }

    fn engine(&self, (url, shards): (&str, u16), moved: &Moved) -> EngineBuilder {
        let builder = Engine::open(url).shards(shards).queue("default", 100_000).lease(Duration::from_secs(60));
        workflows::all(builder, moved, Duration::from_secs(self.options.nap))
    }

    /// Starts runs of every kind, and ends the engine when each of them waits as it should.
    async fn fill(&self, moved: &Moved) -> Result<Kept> {
        let engine = self.engine(self.from, moved).start().await?;
        let client = engine.client();
        let each = self.options.runs / KINDS;
        let kept = start(&client, each).await?;
        let lines = each.div_ceil(LINE);
        let mut expected = BTreeMap::from([
            ("awaiting_signal".to_owned(), each * 4),
            ("awaiting_children".to_owned(), each),
            ("awaiting_decision".to_owned(), each * 2),
            ("runnable".to_owned(), each + (each - lines)),
            ("executing".to_owned(), each * 2 + lines),
        ]);
        rests(&client, &expected).await?;
        // Last, because they do not wait for others.
        client.start_many((0..each).map(|n| client.start("naps", &n)).collect::<Vec<_>>()).await?;
        expected.insert("sleeping".to_owned(), each);
        rests(&client, &expected).await?;
        engine.stop(Duration::ZERO).await;
        Ok(kept)
    }

    /// Answers what is asked until nothing is open any more; gives how many runs are done.
    async fn finish(&self, moved: &Moved, kept: &Kept) -> Result<u64> {
        let engine = self.engine(self.to, moved).start().await?;
        let client = engine.client();
        kept.check(&client).await?;
        let began = Instant::now();
        let done = loop {
            answer(&client).await?;
            let runs: BTreeMap<String, u64> = client.stats()?.runs.into_iter().collect();
            let done = runs.get("done").copied().unwrap_or(0);
            if done == runs.values().sum::<u64>() {
                break done;
            }
            if began.elapsed() > PATIENCE {
                bail!("not everything has come to its end: {runs:?}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        engine.stop(PATIENCE).await;
        Ok(done)
    }
}

/// Waits until so many runs have each status.
async fn rests(client: &Client, expected: &BTreeMap<String, u64>) -> Result<()> {
    let began = Instant::now();
    loop {
        let found: BTreeMap<String, u64> = client.stats()?.runs.into_iter().collect();
        if found == *expected {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "expected {expected:?}, found {found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What must be known afterwards: keyed runs with the requests that began them.
struct Kept {
    now: Timestamp,
    keyed: Vec<(u64, RequestId, RunId)>,
}

impl Kept {
    /// Whoever sends a start again gets the run it began; whoever wants a key that is taken is told by whom.
    async fn check(&self, client: &Client) -> Result<()> {
        for (n, request, run) in &self.keyed {
            let again = keyed(client, *n).request(*request).await?;
            ensure!(again.id() == *run, "{request} began {run} and now {}", again.id());
            let other = keyed(client, *n).on_conflict(OnConflict::Reuse).await?;
            ensure!(other.id() == *run, "the key of {run} was given to {}", other.id());
        }
        Ok(())
    }
}

/// A run whose business key and concurrency key are at home in different places.
fn keyed(client: &Client, n: u64) -> abide::Start {
    client.start("waits", &n).key(&format!("order {n}")).concurrency(&format!("customer {n}"), 1)
}

async fn start(client: &Client, each: u64) -> Result<Kept> {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let now = Timestamp(wall.as_millis() as i64);
    for workflow in ["waits", "joins", "pays", "asks", "packs", "tries", "works"] {
        let starts: Vec<_> = (0..each).map(|n| client.start(workflow, &n)).collect();
        client.start_many(starts).await?;
    }
    let line = |n: u64| client.start("works", &n).concurrency(&format!("line {}", n / LINE), 1);
    client.start_many((0..each).map(line).collect::<Vec<_>>()).await?;
    let mut kept = Kept { now, keyed: Vec::new() };
    for n in 0..each {
        let request = RequestId::new(now, u128::from(n + 1));
        kept.keyed.push((n, request, keyed(client, n).request(request).await?.id()));
    }
    Ok(kept)
}

/// Answers everything that waits for somebody.
async fn answer(client: &Client) -> Result<()> {
    for run in waiting(client, Status::AwaitingSignal).await? {
        client.run(run).signal("paid", &1u64).dedup("once").await?;
    }
    for run in waiting(client, Status::InDoubt).await? {
        client.run(run).resolve("pay").value(&1u64).actor("ada").await?;
    }
    for run in waiting(client, Status::AwaitingDecision).await? {
        let run = client.run(run);
        let Some(open) = run.boundary().await? else { continue };
        match open.manual.asked.kind {
            ManualKind::Task => run.complete_task(open.id, "ada", &3u64).await?,
            ManualKind::Approval | ManualKind::Pause => run.approve(open.id, "ada").await?,
        };
    }
    Ok(())
}

async fn waiting(client: &Client, status: Status) -> Result<Vec<RunId>> {
    let mut filter = Filter::default();
    filter.statuses = vec![status];
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = client.list(&filter, &Page { most: PAGE, before }).await?;
        let Some(last) = page.last() else { return Ok(found) };
        before = Some(last.run);
        found.extend(page.iter().map(|listed| listed.run));
    }
}

fn open((url, shards): (&str, u16)) -> Result<Box<dyn Store>, Fault> {
    match parsed(url) {
        Ok(path) => Ok(Box::new(SqliteStore::open(&path, Durability::Full, shards, "mover")?)),
        Err(url) => Ok(Box::new(PostgresStore::open(&url, shards)?)),
    }
}

fn parsed(url: &str) -> Result<std::path::PathBuf, PostgresUrl> {
    match url.parse() {
        Ok(StoreUrl::Sqlite { path, .. }) => Ok(path),
        Ok(StoreUrl::Postgres(url)) => Err(url),
        other => unreachable!("the URL is our own, found {other:?}"),
    }
}

fn shown((url, shards): (&str, u16)) -> String {
    let kind = if url.starts_with("sqlite") { "sqlite" } else { "postgres" };
    format!("{kind}, {shards} shards")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-8: a store with open runs of every kind moves from a file to PostgreSQL, and another one back; every run comes to
    /// its end where it arrived, keys stay taken, and a start that is sent again finds its run.
    #[test]
    fn open_runs_of_every_kind_move_and_come_to_their_end() {
        perform(&Options { runs: 40, nap: 5 }).expect("both ways");
    }
}
