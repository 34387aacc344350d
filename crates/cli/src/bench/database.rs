//! A schema of a benchmark's own in somebody's database. It goes when the benchmark ends, also by Ctrl-C; one that was
//! killed leaves it to the next benchmark there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use abide_store::postgres::raw_client;
use abide_store::{PostgresUrl, StoreUrl};
use anyhow::{Context, bail};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

use crate::failure::Exit;

const PREFIX: &str = "abide_bench_";

pub(crate) struct Database {
    runtime: Runtime,
    /// Holds the lock that says that the schema is in use.
    client: Client,
    url: String,
    schema: PostgresUrl,
}

impl Database {
    /// Clears away what killed benchmarks left behind, and takes a schema that nobody has.
    pub(super) fn begin(url: &str) -> anyhow::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{PREFIX}{}_{}", std::process::id(), since.as_micros());
        let schema = parse(url)?.with_schema(&name)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let client = raw_client(&schema).await?;
            clear(&client).await?;
            client.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[&name]).await?;
            anyhow::Ok(client)
        })?;
        tidy_up_on_interrupt(schema.clone())?;
        Ok(Self { runtime, client, url: in_schema(url, &name), schema })
    }

    /// The schema, empty.
    pub(super) fn fresh(&self) -> anyhow::Result<(String, PostgresUrl)> {
        self.runtime.block_on(drop_schema(&self.client, self.schema.schema()))?;
        Ok((self.url.clone(), self.schema.clone()))
    }

    /// A transaction that sees the database as it is now for as long as this is kept: nothing that is dead from now on can
    /// be cleared away.
    pub(super) fn pin(&self) -> anyhow::Result<Pin> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let client = raw_client(&self.schema).await?;
            let pin = "SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ; \
                       SELECT txid_current();";
            client.batch_execute(pin).await?;
            anyhow::Ok(client)
        })?;
        Ok(Pin { runtime, client })
    }
}

impl Database {
    /// Counts the statements of others from now on.
    pub(super) fn count_statements(&self) -> anyhow::Result<Counting<'_>> {
        let (client, own) = (&self.client, self.schema.schema());
        let view = self.runtime.block_on(async {
            let sql = "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_stat_statements'";
            let schema = match client.query_opt(sql, &[]).await? {
                Some(row) => row.try_get(0)?,
                None => {
                    client.batch_execute(&format!("CREATE EXTENSION pg_stat_statements SCHEMA \"{own}\"")).await?;
                    own.to_owned()
                }
            };
            anyhow::Ok(format!("{schema}.pg_stat_statements"))
        })?;
        let mut counting = Counting { database: self, view, before: BTreeMap::new() };
        counting.before = counting.calls()?;
        Ok(counting)
    }
}

/// Statements that are being counted.
pub(super) struct Counting<'a> {
    database: &'a Database,
    view: String,
    before: BTreeMap<String, i64>,
}

impl Counting<'_> {
    /// The statements that were sent, and how often.
    pub(super) fn end(self) -> anyhow::Result<Vec<(String, i64)>> {
        let mut calls = self.calls()?;
        for (sql, count) in &mut calls {
            *count -= self.before.get(sql).copied().unwrap_or(0);
        }
        Ok(calls.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    fn calls(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let sql = format!(
            "SELECT query, sum(calls)::bigint FROM {}
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query NOT LIKE '%pg_stat_statements%' GROUP BY query",
            self.view
        );
        let Database { runtime, client, .. } = self.database;
        let counted = runtime.block_on(client.query(&sql, &[]));
        let rows = counted.context(
            "the server has not loaded pg_stat_statements: set shared_preload_libraries, or use cargo xtask bench-postgres",
        )?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(error) = self.runtime.block_on(drop_schema(&self.client, self.schema.schema())) {
            eprintln!("the schema {} is left behind: {error:#}", self.schema.schema());
        }
    }
}

/// A transaction that stays open.
pub(super) struct Pin {
    runtime: Runtime,
    client: Client,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // If it cannot be said, the end of the connection says it.
        let _ = self.runtime.block_on(self.client.batch_execute("ROLLBACK"));
    }
}

fn parse(url: &str) -> anyhow::Result<PostgresUrl> {
    match url.parse()? {
        StoreUrl::Postgres(url) => Ok(url),
        StoreUrl::Sqlite { .. } | StoreUrl::Memory => bail!("expected the URL of a database, postgres://…"),
    }
}

/// The same URL with another schema.
fn in_schema(url: &str, schema: &str) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    let kept = options.split('&').filter(|option| !option.is_empty() && !option.starts_with("schema="));
    let options: Vec<String> = kept.map(str::to_owned).chain([format!("schema={schema}")]).collect();
    format!("{place}?{}", options.join("&"))
}

/// Drops the schemas of benchmarks that do not live any more.
async fn clear(client: &Client) -> anyhow::Result<()> {
    let left = client
        .query("SELECT nspname::text FROM pg_catalog.pg_namespace WHERE starts_with(nspname::text, $1)", &[&PREFIX])
        .await?;
    for row in left {
        let name: String = row.try_get(0)?;
        let free = client.query_one("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &[&name]).await?;
        if free.try_get(0)? {
            drop_schema(client, &name).await?;
            client.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[&name]).await?;
        }
    }
    Ok(())
}

async fn drop_schema(client: &Client, name: &str) -> anyhow::Result<()> {
    let sql = format!("DROP SCHEMA IF EXISTS \"{name}\" CASCADE");
    client.batch_execute(&sql).await.with_context(|| format!("dropping the schema {name}"))
}

/// Whether the process is about to end because of Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What fails once the schema is being dropped is nobody's concern: whoever drops it ends the process.
pub(super) fn yield_to_interrupt() {
    while INTERRUPTED.load(Ordering::Acquire) {
        std::thread::park();
    }
}

/// Listens for Ctrl-C as long as the process lives.
fn tidy_up_on_interrupt(schema: PostgresUrl) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        let tidied = runtime.block_on(async {
            tokio::signal::ctrl_c().await?;
            INTERRUPTED.store(true, Ordering::Release);
            drop_schema(&raw_client(&schema).await?, schema.schema()).await
        });
        if let Err(error) = tidied {
            eprintln!("{error:#}");
        }
        std::process::exit(Exit::Interrupted as i32);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_never_has_the_users_schema() {
        for url in ["postgres://a@h/d", "postgres://a@h/d?schema=shop", "postgres://a@h/d?strict=true&schema=shop"] {
            let own = parse(&in_schema(url, "abide_bench_1")).expect("it is a URL");
            assert_eq!(own.schema(), "abide_bench_1", "{url}");
        }
        assert!(in_schema("postgres://a@h/d?strict=true", "b").contains("strict=true"));
    }
}
