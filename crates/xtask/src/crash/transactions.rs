//! Transactions: runs write to a table of their own in transactions that record their outcomes. The process is killed at
//! points around the commit, over and over, and the table, the outcomes and the journal must always agree.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use abide::rusqlite::{Connection, OpenFlags};
use abide::{Client, Engine, Filter, FnCtx, Function, Page, RetryPolicy, Status, StepError, Transaction};
use abide_pg_testing::{FAST, Server};
use abide_runtime::points::{self, TRANSACTION_POINTS};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use super::Options;
use super::process::killed;

/// Points besides those of transactions: the record of an outcome becomes durable between them.
const AROUND: [&str; 3] = ["sealed", "appended", "released"];
/// How long a process is believed to live that is not heard of; the next one waits for that.
const NODE_LEASE: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_millis(1_000);
/// Cycles after which everything is let come to its end and compared.
const CYCLES_PER_AUDIT: u64 = 100;
/// Runs under way at once.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// What the process is told.
#[derive(Args)]
pub(crate) struct WorkerOptions {
    #[arg(long)]
    url: String,
    #[arg(long)]
    point: Option<String>,
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Make no new runs; let all end, then compare them with the table.
    #[arg(long)]
    audit: bool,
}

/// A place for the table, and how it is looked at.
enum Place {
    File(tempfile::TempDir),
    Database(Box<Server>),
}

impl Place {
    fn new(store: &str) -> Result<Self> {
        if store == "postgres" {
            let server = Server::start_with(FAST);
            server.psql("CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY, run text NOT NULL)");
            return Ok(Self::Database(Box::new(server)));
        }
        let folder = tempfile::Builder::new().prefix("abide-crash-").tempdir_in(".");
        Ok(Self::File(folder.context("making a directory here")?))
    }

    fn path(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("transactions.db")
    }

    fn url(&self) -> String {
        match self {
            Self::File(folder) => format!("sqlite:{}", Self::path(folder).display()),
            Self::Database(server) => server.url(),
        }
    }

    /// Entries without an outcome that says the same, and outcomes without an entry.
    fn disagreements(&self) -> Result<u64> {
        let both = |outcome: &str, run: &str, id: &str| {
            format!(
                "SELECT (SELECT count(*) FROM entry e WHERE NOT EXISTS
                            (SELECT 1 FROM {outcome} o WHERE {run} = e.run AND o.outcome = {id}))
                      + (SELECT count(*) FROM {outcome} o WHERE NOT EXISTS
                            (SELECT 1 FROM entry e WHERE {run} = e.run AND o.outcome = {id}))
                      + (SELECT count(*) - count(DISTINCT run) FROM entry)"
            )
        };
        match self {
            Self::File(folder) => {
                let path = Self::path(folder);
                let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                let made = "SELECT count(*) FROM sqlite_schema WHERE name = 'entry'";
                if file.query_row(made, [], |row| row.get::<_, i64>(0))? == 0 {
                    return Ok(0);
                }
                let sql = both("transaction_outcome", "'run_' || lower(hex(o.run))", "CAST(e.id AS TEXT)");
                Ok(file.query_row(&sql, [], |row| row.get::<_, i64>(0))?.unsigned_abs())
            }
            Self::Database(server) => {
                if server.psql("SELECT to_regclass('abide.transaction_outcome') IS NULL").trim() == "t" {
                    return Ok(0);
                }
                let sql = both("abide.transaction_outcome", "abide.run_text(o.run)", "e.id::text");
                server.psql(&sql).trim().parse().context("counting what does not agree")
            }
        }
    }
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    let place = Place::new(&options.store)?;
    let mut chance = fastrand::Rng::with_seed(options.seed);
    let mut by_point: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut disagreements, mut runs) = (0, 0);
    let embedded = matches!(place, Place::File(_));
    // On the connection that writes there are no points inside: chance strikes there.
    let named: Vec<&str> = if embedded { vec!["transaction-returned"] } else { TRANSACTION_POINTS.to_vec() };
    let points: Vec<&str> = named.into_iter().chain(AROUND).chain(["random"]).collect();
    for cycle in 0..options.cycles {
        let point = points[cycle as usize % points.len()];
        life(&place, point, &mut chance).with_context(|| format!("cycle {cycle}, killed at {point}"))?;
        *by_point.entry(point).or_default() += 1;
        disagreements += place.disagreements()?;
        if cycle % CYCLES_PER_AUDIT == CYCLES_PER_AUDIT - 1 || cycle + 1 == options.cycles {
            let (audited, wrong) = audit(&place)?;
            (runs, disagreements) = (audited, disagreements + wrong + place.disagreements()?);
            eprintln!("cycle {}: {runs} runs, {disagreements} that do not agree", cycle + 1);
        }
    }
    println!(
        "{}",
        json!({
            "cycles": options.cycles,
            "store": options.store,
            "kills_by_point": by_point,
            "transactions": runs,
            "disagreements": disagreements,
        })
    );
    ensure!(disagreements == 0, "the table and the journal disagree {disagreements} times");
    ensure!(runs > 0, "nothing was done, so nothing was shown");
    Ok(())
}

fn spawn(place: &Place, more: &[&str]) -> Result<Child> {
    let me = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(me);
    command.arg("crash-transactions").arg("--url").arg(place.url()).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting the process")
}

/// One life of the process: until the point has struck, or a moment by chance. A process that ended by itself was not
/// killed, and shows nothing.
fn life(place: &Place, point: &str, chance: &mut fastrand::Rng) -> Result<()> {
    let count = chance.u64(1..12).to_string();
    let named = ["--point", point, "--count", &count];
    let mut child = spawn(place, if point == "random" { &[] } else { &named })?;
    let until = match point {
        "random" => Instant::now() + Duration::from_millis(chance.u64(300..900)),
        _ => Instant::now() + PATIENCE,
    };
    while Instant::now() < until {
        if let Some(status) = child.try_wait().context("looking at the process")? {
            ensure!(point != "random" && killed(status), "the process ended by itself with {status}");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().context("killing the process")?;
    let status = child.wait().context("waiting for the process")?;
    ensure!(point == "random", "it did not come to that point in {PATIENCE:?}");
    ensure!(killed(status), "the process ended by itself with {status}");
    Ok(())
}

/// Lets everything end. How many runs there are, and how many are not as the table has them.
fn audit(place: &Place) -> Result<(u64, u64)> {
    let done = spawn(place, &["--audit"])?.wait_with_output().context("waiting for the audit")?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success(), "the audit ended with {}: {said}", done.status);
    let mut numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(runs), Some(wrong)) => Ok((runs, wrong)),
        _ => bail!("the audit said {said:?}"),
    }
}

pub(crate) fn work(options: &WorkerOptions) -> Result<()> {
    if let Some(point) = &options.point {
        points::arm(point, options.count);
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(serve(options))
}

async fn serve(options: &WorkerOptions) -> Result<()> {
    let often = RetryPolicy { retries_max: None, delay_ms_max: 1_000, ..RetryPolicy::exponential(20) };
    let builder = Engine::open(&options.url).shards(1).lease(LEASE).node_lease(NODE_LEASE);
    let engine = match options.url.starts_with("sqlite:") {
        true => builder.register(Function::new("write", in_file).retry(often)),
        false => builder.register(Function::new("write", in_database).retry(often)),
    };
    let engine = engine.start().await.context("opening the engine")?;
    if options.audit {
        let compared = compare(&engine, &options.url).await;
        engine.stop(Duration::from_secs(10)).await;
        return compared;
    }
    loop {
        let mut open = Vec::new();
        for _ in 0..AT_ONCE {
            // Killed again and again on a slow machine, a run must not be set aside as one that kills its workers.
            open.push(engine.client().start("write", &()).deliveries_max(u32::MAX).await?);
        }
        for run in open {
            let _ = run.result::<i64>().await;
        }
    }
}

async fn in_file(ctx: FnCtx, (): ()) -> Result<i64, StepError> {
    let run = ctx.run_id().to_string();
    let work = move |tx: &Connection| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, run TEXT NOT NULL)")?;
        let insert = "INSERT INTO entry (run) VALUES (?1) RETURNING id";
        Ok::<i64, StepError>(tx.query_row(insert, [run], |row| row.get(0))?)
    };
    ctx.sqlite_transaction("write", work).await
}

async fn in_database(ctx: FnCtx, (): ()) -> Result<i64, StepError> {
    let run = ctx.run_id().to_string();
    let work = async move |tx: Transaction| {
        let row = tx.query_one("INSERT INTO entry (run) VALUES ($1) RETURNING id", &[&run]).await?;
        Ok::<i64, StepError>(row.get(0))
    };
    ctx.transaction("write", work).await
}

/// Waits for every run, and looks up what it says it wrote. The journal is asked, not the one who wrote.
async fn compare(engine: &Engine, url: &str) -> Result<()> {
    let client = engine.client();
    wait_for_all(&client).await?;
    let entries = entries(url).await?;
    let mut page = Page { most: 500, before: None };
    let (mut runs, mut wrong) = (0u64, 0u64);
    loop {
        let listed = client.list(&Filter::default(), &page).await?;
        let Some(last) = listed.last() else { break };
        page.before = Some(last.run);
        for one in &listed {
            runs += 1;
            let result = client.run(one.run).result::<i64>().await.ok();
            let holds = result.is_some() && entries.get(&one.run.to_string()) == result.as_ref();
            wrong += u64::from(!holds);
        }
    }
    wrong += (entries.len() as u64).abs_diff(runs);
    println!("{runs} {wrong}");
    Ok(())
}

async fn wait_for_all(client: &Client) -> Result<()> {
    let mut filter = Filter::default();
    filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    loop {
        let open = client.list(&filter, &Page { most: 1, before: None }).await?;
        let Some(first) = open.first() else { return Ok(()) };
        let run = client.run(first.run);
        if tokio::time::timeout(PATIENCE, run.result::<i64>()).await.is_err() {
            bail!("{} does not end: {}", first.run, run.explain().await?.sentence);
        }
    }
}

/// What stands in the table, by run.
async fn entries(url: &str) -> Result<HashMap<String, i64>> {
    let sql = "SELECT run, id FROM entry";
    if let Some(path) = url.strip_prefix("sqlite:") {
        let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut statement = file.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        return Ok(rows.collect::<Result<_, _>>()?);
    }
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client.query(sql, &[]).await?.iter().map(|row| (row.get(0), row.get(1))).collect())
}
