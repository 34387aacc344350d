//! Transactions of the user's own: what they did and what came of it are there together, whatever happens in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::rusqlite::Connection;
use abide::{ClientError, Ctx, Engine, FnCtx, Function, Machine, RetryPolicy, StepError, done};

const PATIENCE: Duration = Duration::from_secs(60);

async fn result<T: serde::de::DeserializeOwned>(engine: &Engine, workflow: &str) -> Result<T, ClientError> {
    let run = engine.client().start(workflow, &()).await.unwrap();
    tokio::time::timeout(PATIENCE, run.result::<T>()).await.unwrap()
}

fn code(failed: Result<u64, ClientError>) -> String {
    match failed.unwrap_err() {
        ClientError::RunFailed { error, .. } => error.code.to_string(),
        other => panic!("{other}"),
    }
}

/// Writes a line, and gives how many there are.
fn write_line(tx: &Connection) -> Result<u64, StepError> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS line (n INTEGER); INSERT INTO line VALUES (1)")?;
    let lines: i64 = tx.query_row("SELECT count(*) FROM line", [], |row| row.get(0))?;
    Ok(lines as u64)
}

/// AB-7, D21: on the embedded store the work and its outcome are one commit. An attempt after it does not do it again, and
/// gets what the first got.
#[tokio::test]
async fn a_transaction_in_the_file_takes_place_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let pay = Machine::<()>::new("pay").step("pay", move |ctx: Ctx, ()| {
        let tries = counted.clone();
        async move {
            let lines: u64 = ctx.sqlite_transaction("write", write_line).await?;
            match tries.fetch_add(1, Ordering::SeqCst) {
                0 => Err(StepError::new("after the transaction")),
                _ => Ok(done(&lines)),
            }
        }
    });
    let pay = pay.retry(RetryPolicy::exponential(1));
    let engine = Engine::open(&format!("sqlite:{}", path.display())).register(pay).start().await.unwrap();
    assert_eq!(result::<u64>(&engine, "pay").await.unwrap(), 1);
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    assert_eq!(result::<u64>(&engine, "pay").await.unwrap(), 2);
    engine.stop(PATIENCE).await;
    let file = Connection::open(&path).unwrap();
    let lines: i64 = file.query_row("SELECT count(*) FROM line", [], |row| row.get(0)).unwrap();
    assert_eq!(lines, 2);
}

/// AB-7: what fails, takes too long, or reaches for what is not its own is undone, and said.
#[tokio::test]
async fn a_transaction_in_the_file_that_goes_wrong_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let mut engine = Engine::open(&format!("sqlite:{}", path.display()));
    for (name, sql) in [
        ("journal", "DELETE FROM journal"),
        ("commit", "COMMIT"),
        ("rollback", "ROLLBACK"),
        ("pragma", "PRAGMA synchronous = OFF"),
        ("attach", "ATTACH ':memory:' AS other"),
        ("drop", "DROP TABLE run"),
        ("trigger", "CREATE TRIGGER spy AFTER INSERT ON journal BEGIN SELECT 1; END"),
        ("temporary", "CREATE TEMP TABLE journal (position)"),
        ("view", "CREATE TEMP VIEW run AS SELECT 1"),
        ("analyze", "ANALYZE"),
        ("endless", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"),
    ] {
        engine = engine.register(Function::new(name, move |ctx: FnCtx, ()| async move {
            let work = move |tx: &Connection| {
                let lines = write_line(tx)?;
                tx.execute_batch(sql).map_err(|error| StepError::new(error).code("refused").terminal())?;
                Ok::<_, StepError>(lines)
            };
            let worked = ctx.sqlite_transaction("write", work).await;
            worked.map_err(StepError::terminal)
        }));
    }
    engine = engine.register(
        Function::new("panic", async |ctx: FnCtx, ()| {
            let work = |tx: &Connection| -> Result<u64, StepError> {
                write_line(tx)?;
                panic!("in the middle of a transaction")
            };
            ctx.sqlite_transaction("write", work).await
        })
        .retry(RetryPolicy { retries_max: Some(0), ..RetryPolicy::exponential(1) }),
    );
    // A statement that undoes everything, whose error is passed over: what comes after it is not written one by one.
    engine = engine.register(Function::new("passed_over", async |ctx: FnCtx, ()| {
        let work = |tx: &Connection| {
            let _ = tx.execute_batch("CREATE TABLE one (n INTEGER UNIQUE); INSERT INTO one VALUES (1)");
            let _ = tx.execute_batch("INSERT OR ROLLBACK INTO one VALUES (1)");
            let _ = tx.execute_batch("CREATE TABLE IF NOT EXISTS line (n INTEGER)");
            let _ = tx.execute_batch("INSERT INTO line VALUES (1)");
            Ok::<u64, StepError>(1)
        };
        ctx.sqlite_transaction("write", work).await
    }));
    let engine = engine
        .register(Function::new("fine", async |ctx: FnCtx, ()| ctx.sqlite_transaction("write", write_line).await));
    let engine = engine.start().await.unwrap();
    for name in ["journal", "commit", "rollback", "pragma", "attach", "drop", "trigger", "temporary", "view", "analyze"]
    {
        assert_eq!(code(result(&engine, name).await), "refused", "{name}");
    }
    assert_eq!(code(result(&engine, "endless").await), "too_long");
    assert_eq!(code(result(&engine, "passed_over").await), "ended_inside");
    let panicking = engine.client().start("panic", &()).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, panicking.result::<u64>()).await.unwrap().is_err());
    // Of all of them nothing is left, and the engine goes on.
    assert_eq!(result::<u64>(&engine, "fine").await.unwrap(), 1);
    engine.stop(PATIENCE).await;
}

/// What a store cannot do is said, with what to do instead.
#[tokio::test]
async fn a_transaction_of_another_store_is_refused() {
    let engine = Engine::open("memory:")
        .register(Function::new("here", async |ctx: FnCtx, ()| {
            ctx.sqlite_transaction("write", write_line).await.map_err(StepError::terminal)
        }))
        .start()
        .await
        .unwrap();
    assert_eq!(code(result(&engine, "here").await), "store");
    engine.stop(PATIENCE).await;
}

#[cfg(feature = "postgres")]
mod shared {
    use super::*;
    use abide::Transaction;
    use abide_pg_testing::{FAST, Server};
    use tokio_postgres::{Client, NoTls};

    async fn connect(server: &Server) -> Client {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn write(tx: Transaction) -> Result<i64, StepError> {
        tx.execute("INSERT INTO line VALUES ($1)", &[&1i64]).await?;
        Ok(tx.query_one("SELECT count(*) FROM line", &[]).await?.get(0))
    }

    async fn lines(client: &Client) -> i64 {
        client.query_one("SELECT count(*) FROM line", &[]).await.unwrap().get(0)
    }

    fn builder(server: &Server) -> abide::EngineBuilder {
        Engine::open(&server.url()).shards(2).node_lease(Duration::from_secs(2))
    }

    /// AB-7, D3, D21: the user's SQL and its outcome are one commit. An attempt after it, however the one before ended, does
    /// not do it again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_transaction_takes_place_once() {
        let server = Server::start_with(FAST);
        let client = connect(&server).await;
        client.batch_execute("CREATE TABLE line (n bigint)").await.unwrap();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let pay = Machine::<()>::new("pay").step("pay", move |ctx: Ctx, ()| {
            let tries = counted.clone();
            async move {
                let lines: i64 = ctx.transaction("write", write).await?;
                match tries.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(StepError::new("after the transaction")),
                    _ => Ok(done(&lines)),
                }
            }
        });
        let engine = builder(&server).register(pay.retry(RetryPolicy::exponential(1))).start().await.unwrap();
        assert_eq!(result::<i64>(&engine, "pay").await.unwrap(), 1);
        assert_eq!((tries.load(Ordering::SeqCst), lines(&client).await), (2, 1));
        engine.stop(PATIENCE).await;
    }

    /// A statement that fails, and one that the database refuses at the commit, undo it all.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_transaction_that_goes_wrong_leaves_nothing() {
        let server = Server::start_with(FAST);
        let client = connect(&server).await;
        let tables = "CREATE TABLE line (n bigint);
            CREATE TABLE once (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1)";
        client.batch_execute(tables).await.unwrap();
        let mut engine = builder(&server);
        for (name, sql) in [("wrong", "SELECT nothing"), ("late", "INSERT INTO once VALUES (1)"), ("ended", "COMMIT")] {
            engine = engine.register(Function::new(name, move |ctx: FnCtx, ()| async move {
                let work = async move |tx: Transaction| {
                    let lines = write(tx.clone()).await?;
                    tx.batch_execute(sql).await.map_err(|error| StepError::new(error).code("refused"))?;
                    Ok::<_, StepError>(lines as u64)
                };
                ctx.transaction("write", work).await.map_err(StepError::terminal)
            }));
        }
        let engine = engine.start().await.unwrap();
        assert_eq!(code(result(&engine, "wrong").await), "refused");
        assert_eq!(code(result(&engine, "late").await), "store");
        assert_eq!(lines(&client).await, 0);
        assert_eq!(code(result(&engine, "ended").await), "ended_inside");
        let kept: i64 = client.query_one("SELECT count(*) FROM abide.transaction_outcome", &[]).await.unwrap().get(0);
        assert_eq!(kept, 0);
        engine.stop(PATIENCE).await;
    }
}
