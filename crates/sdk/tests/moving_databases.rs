//! Stores that move between files and databases: what only those have, arrives too.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{self, Cursor, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::rusqlite::Connection;
use abide::{Ctx, Durability, Engine, Machine, StepError, Timestamp, done};
use abide_pg_testing::{FAST, Server};
use abide_runtime::house::{Contents, HouseError, export, import};
use abide_store::postgres::PostgresStore;
use abide_store::sqlite::SqliteStore;
use abide_store::{Fault, Store, StoreUrl};
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(60);

fn in_file(path: &Path) -> Result<Box<dyn Store>, Fault> {
    Ok(Box::new(SqliteStore::open(path, Durability::Full, 1, "mover")?))
}

fn in_database(server: &Server) -> Result<Box<dyn Store>, Fault> {
    let StoreUrl::Postgres(url) = server.url().parse().unwrap() else { panic!("{}", server.url()) };
    Ok(Box::new(PostgresStore::open(&url, 4)?))
}

type Open<'a> = &'a dyn Fn() -> Result<Box<dyn Store>, Fault>;

/// Moves everything from one store to another.
fn move_house(from: Open<'_>, to: Open<'_>) -> Contents {
    let mut file = Vec::new();
    let left = export(from, "mover", Timestamp(7), &mut file).unwrap();
    assert_eq!(import(to, "mover", &mut Cursor::new(file)).unwrap(), left);
    left
}

/// AB-7, AB-8: a transaction that was committed by an attempt that did not end is not done again after two moves: the next attempt
/// gets what it came to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_came_to_moves_with_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old.db"), folder.path().join("new.db"));
    let (worked, committed) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let start = async |path: &Path, ends: bool| {
        let (worked, committed) = (worked.clone(), committed.clone());
        let pay = Machine::<()>::new("pay").step("pay", move |ctx: Ctx, ()| {
            let (worked, committed) = (worked.clone(), committed.clone());
            async move {
                let work = move |_: &Connection| Ok::<_, StepError>(worked.fetch_add(1, Ordering::SeqCst) + 41);
                let result: u32 = ctx.sqlite_transaction("write", work).await?;
                if !ends {
                    committed.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(done(&result))
            }
        });
        Engine::open(&format!("sqlite:{}", path.display())).register(pay).start().await.unwrap()
    };
    let engine = start(&old, false).await;
    let run = engine.client().start("pay", &()).await.unwrap().id();
    tokio::time::timeout(PATIENCE, committed.notified()).await.unwrap();
    engine.stop(Duration::ZERO).await;
    drop(engine);

    let (from, to) = (old.clone(), new.clone());
    let moved = tokio::task::spawn_blocking(move || {
        let server = Server::start_with(FAST);
        let left = move_house(&|| in_file(&from), &|| in_database(&server));
        (left, move_house(&|| in_database(&server), &|| in_file(&to)))
    });
    let (left, arrived) = moved.await.unwrap();
    assert_eq!((left.outcomes, arrived.outcomes), (1, 1));
    let engine = start(&new, true).await;
    let result = tokio::time::timeout(PATIENCE, engine.client().run(run).result::<u32>()).await.unwrap();
    assert_eq!((result.unwrap(), worked.load(Ordering::SeqCst)), (41, 1));
    engine.stop(PATIENCE).await;
}

/// Somebody who asks by SQL as soon as something is written.
struct Asks<'a>(&'a Server, Vec<u8>);

impl Write for Asks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1.is_empty() {
            self.0.psql("SELECT abide.start('order')");
        }
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// AB-8: what is asked by SQL while a store is exported would stay behind, and so the export is refused.
#[test]
fn what_is_asked_during_an_export_is_not_left_behind() {
    let server = Server::start_with(FAST);
    let open = || in_database(&server);
    export(open, "mover", Timestamp(7), &mut Vec::new()).unwrap();
    let mut file = Asks(&server, Vec::new());
    let refused = export(open, "mover", Timestamp(7), &mut file).unwrap_err();
    assert!(matches!(refused, HouseError::AskedMeanwhile { .. }), "{refused}");
    assert!(!String::from_utf8(file.1).unwrap().contains("\"end\""), "it is no whole file");
    let refused = export(open, "mover", Timestamp(7), &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, HouseError::Asked { .. }), "{refused}");
}
