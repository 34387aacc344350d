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
    use std::sync::Mutex;
    use tokio::sync::Notify;
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

    /// Whatever ends it, what the test tells a function that waits inside of its code.
    struct Gate {
        inside: Notify,
        go_on: Notify,
    }

    impl Gate {
        fn new() -> Arc<Self> {
            Arc::new(Self { inside: Notify::new(), go_on: Notify::new() })
        }

        async fn pass(&self) {
            self.inside.notify_one();
            self.go_on.notified().await;
        }
    }

    /// A function without retries that writes once. The first time it waits before its transaction, the first time its
    /// work is called it waits there, where there are gates.
    fn pay(before: Option<Arc<Gate>>, during: Option<Arc<Gate>>) -> Function {
        let (before, during) = (Arc::new(Mutex::new(before)), Arc::new(Mutex::new(during)));
        Function::new("pay", move |ctx: FnCtx, ()| {
            let (before, during) = (before.clone(), during.clone());
            async move {
                let wait = async move |_| {
                    let gate = before.lock().unwrap().take();
                    if let Some(gate) = gate {
                        gate.pass().await;
                    }
                    Ok::<_, StepError>(())
                };
                ctx.effect("wait", wait).await?;
                let work = async move |tx: Transaction| {
                    let gate = during.lock().unwrap().take();
                    if let Some(gate) = gate {
                        gate.pass().await;
                    }
                    write(tx).await
                };
                ctx.transaction("write", work).await
            }
        })
    }

    async fn node(server: &Server, name: &str, pay: Function) -> Engine {
        builder(server).node(name).register(pay).start().await.unwrap()
    }

    /// Has one node hand everything to another, and waits until that has it.
    async fn move_all(client: &Client, from: &str, to: &str) {
        client.execute("UPDATE abide.node SET draining = true WHERE node = $1", &[&from]).await.unwrap();
        let sql = "SELECT count(*) FROM abide.shard s JOIN abide.node n ON n.process = s.owner WHERE n.node = $1";
        let all = async {
            while client.query_one(sql, &[&to]).await.unwrap().get::<_, i64>(0) < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap();
    }

    async fn paid(engine: &Engine, run: abide::RunId) -> i64 {
        let handle = engine.client().run(run);
        tokio::time::timeout(PATIENCE, handle.result::<i64>()).await.unwrap().unwrap()
    }

    /// AB-7, SE-36: a step whose shard moved to another node goes on to its end, and its transaction takes place.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_transaction_takes_place_though_its_shard_is_elsewhere() {
        let server = Server::start_with(FAST);
        let client = connect(&server).await;
        client.batch_execute("CREATE TABLE line (n bigint)").await.unwrap();
        let gate = Gate::new();
        let ada = node(&server, "ada", pay(Some(gate.clone()), None)).await;
        let run = ada.client().start("pay", &()).await.unwrap().id();
        gate.inside.notified().await;
        let bob = node(&server, "bob", pay(None, None)).await;
        move_all(&client, "ada", "bob").await;
        gate.go_on.notify_one();
        assert_eq!(paid(&bob, run).await, 1);
        assert_eq!(lines(&client).await, 1);
        let last = bob.client().run(run).show().await.unwrap().last_executed;
        assert_eq!(last.map(|last| last.by.to_string()).as_deref(), Some("ada"), "it went on where it was");
        ada.stop(PATIENCE).await;
        bob.stop(PATIENCE).await;
    }

    /// AB-7: ownership that moves while the work is at it undoes the work. That is no failure of the function: another
    /// attempt does it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_shard_that_moves_under_a_transaction_fails_nothing() {
        let server = Server::start_with(FAST);
        let client = connect(&server).await;
        client.batch_execute("CREATE TABLE line (n bigint)").await.unwrap();
        let gate = Gate::new();
        let ada = node(&server, "ada", pay(None, Some(gate.clone()))).await;
        let run = ada.client().start("pay", &()).await.unwrap().id();
        gate.inside.notified().await;
        let bob = node(&server, "bob", pay(None, None)).await;
        move_all(&client, "ada", "bob").await;
        gate.go_on.notify_one();
        assert_eq!(paid(&bob, run).await, 1);
        assert_eq!(lines(&client).await, 1);
        ada.stop(PATIENCE).await;
        bob.stop(PATIENCE).await;
    }

    /// AB-7: a connection that breaks under the work, whatever the work makes of it, or before the commit, or that cannot be
    /// had at all, fails neither the function nor its step: what was done is undone, and done again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_breaks_fails_nothing() {
        let server = Server::start_with(FAST);
        let client = connect(&server).await;
        let broken = "CREATE TABLE line (n bigint); CREATE TABLE broken (n bigint);
            CREATE FUNCTION break() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END$$;
            CREATE CONSTRAINT TRIGGER breaks AFTER INSERT ON broken DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION break()";
        client.batch_execute(broken).await.unwrap();
        let mut engine = builder(&server);
        let broken = "SELECT pg_terminate_backend(pg_backend_pid())";
        for (name, sql, passes_over) in
            [("said", broken, false), ("passed_over", broken, true), ("commit", "INSERT INTO broken VALUES (1)", false)]
        {
            let first = Arc::new(AtomicU32::new(0));
            engine = engine.register(Function::new(name, move |ctx: FnCtx, ()| {
                let first = first.clone();
                async move {
                    let work = async move |tx: Transaction| {
                        let lines = write(tx.clone()).await?;
                        if first.fetch_add(1, Ordering::SeqCst) == 0 {
                            let done = tx.batch_execute(sql).await;
                            done.or_else(|error| if passes_over { Ok(()) } else { Err(error) })?;
                        }
                        Ok::<_, StepError>(lines)
                    };
                    ctx.transaction("write", work).await
                }
            }));
        }
        let engine = engine.start().await.unwrap();
        assert_eq!(result::<i64>(&engine, "said").await.unwrap(), 1);
        assert_eq!(result::<i64>(&engine, "passed_over").await.unwrap(), 2);
        assert_eq!(result::<i64>(&engine, "commit").await.unwrap(), 3);
        assert_eq!(lines(&client).await, 3);
        engine.stop(PATIENCE).await;
    }

    /// A statement that failed and was passed over leaves a transaction that can only be undone: that is the work's doing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_failure_that_is_passed_over_is_said() {
        let server = Server::start_with(FAST);
        let engine = builder(&server).register(Function::new("pay", async |ctx: FnCtx, ()| {
            let work = async |tx: Transaction| {
                let _ = tx.batch_execute("SELECT nothing").await;
                Ok::<u64, StepError>(1)
            };
            ctx.transaction("write", work).await
        }));
        let engine = engine.start().await.unwrap();
        assert_eq!(code(result(&engine, "pay").await), "store");
        engine.stop(PATIENCE).await;
    }
}
