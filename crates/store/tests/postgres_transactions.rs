//! Transactions of the users' own in PostgreSQL: each is committed once, with its outcome, by an owner.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{RunId, ShardEpoch, ShardId};
use abide_pg_testing::{FAST, Server};
use abide_store::postgres::{Ended, PostgresStore, Transaction, TransactionError, Transactions};
use abide_store::transaction::{Place, Transacted};
use abide_store::{Fault, Member, Store, StoreUrl};
use tokio::sync::oneshot;

struct World {
    server: Server,
    store: PostgresStore,
    place: Place,
}

impl World {
    fn new() -> Self {
        let server = Server::start_with(FAST);
        let StoreUrl::Postgres(url) = server.url().parse().unwrap() else { panic!("{}", server.url()) };
        let mut store = PostgresStore::open(&url, 1).unwrap();
        let member = Member { process: "ada".into(), node: "ada".into(), address: "".into(), draining: false };
        store.cluster().unwrap().renew(&member, Duration::from_secs(600)).unwrap();
        let opened = store.open_shard(ShardId(0), "ada").unwrap();
        server.psql("CREATE TABLE line (n bigint)");
        let place = Place { run: RunId(7), key: "run/pay".into(), shard: ShardId(0), epoch: opened.epoch };
        Self { server, store, place }
    }

    fn pool(&self) -> Arc<Transactions> {
        self.store.pool().unwrap().downcast().unwrap()
    }

    fn lines(&self) -> String {
        self.server.psql("SELECT count(*) FROM line").trim().to_owned()
    }
}

async fn write(tx: Transaction) -> Result<String, TransactionError> {
    tx.execute("INSERT INTO line VALUES ($1)", &[&1i64]).await?;
    Ok("\"written\"".into())
}

async fn run<R: Future<Output = Result<String, TransactionError>>>(
    pool: &Transactions,
    place: &Place,
    work: impl FnOnce(Transaction) -> R,
) -> Result<Transacted, Fault> {
    match pool.run(place, |_| {}, || true, work).await? {
        Ended::As(transacted) => Ok(transacted),
        Ended::Failed(error) => panic!("{error}"),
    }
}

fn written() -> Transacted {
    Transacted::Outcome("\"written\"".into())
}

/// AB-7: whoever comes after the commit gets its outcome, and does nothing; another key is another transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_attempt_finds_the_outcome_of_the_first() {
    let world = tokio::task::spawn_blocking(World::new).await.unwrap();
    let pool = world.pool();
    assert_eq!(run(&pool, &world.place, write).await.unwrap(), written());
    let again = run(&pool, &world.place, async |_| panic!("it was done before")).await;
    assert_eq!(again.unwrap(), written());
    let other = Place { key: "run/pay#2".into(), ..world.place.clone() };
    assert_eq!(run(&pool, &other, write).await.unwrap(), written());
    assert_eq!(world.lines(), "2");
}

/// AB-7, D3: of two attempts that overlap one commits, whichever it is, and both get its outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_overlap_commit_one_of_them() {
    let world = tokio::task::spawn_blocking(World::new).await.unwrap();
    let pool = world.pool();
    let (inside, is_inside) = oneshot::channel();
    let (leave, may_leave) = oneshot::channel::<()>();
    let (stalled, place) = (pool.clone(), world.place.clone());
    let first = tokio::spawn(async move {
        let work = async move |tx: Transaction| {
            tx.execute("INSERT INTO line VALUES (2)", &[]).await?;
            inside.send(()).unwrap();
            may_leave.await.unwrap();
            Ok("\"late\"".into())
        };
        run(&stalled, &place, work).await
    });
    is_inside.await.unwrap();
    assert_eq!(run(&pool, &world.place, write).await.unwrap(), written());
    leave.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), written());
    assert_eq!(world.server.psql("SELECT n FROM line").trim(), "1");
}

/// AB-7: a node that has lost the shard commits nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_owner_commits_nothing() {
    let world = tokio::task::spawn_blocking(World::new).await.unwrap();
    let stale = Place { epoch: ShardEpoch(world.place.epoch.0 - 1), ..world.place.clone() };
    assert_eq!(run(&world.pool(), &stale, write).await.unwrap(), Transacted::Stale);
    assert_eq!(world.lines(), "0");
    assert_eq!(run(&world.pool(), &world.place, write).await.unwrap(), written());
}

/// A connection that is lost in the middle undoes what was done on it; the next attempt begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_undoes_the_transaction() {
    let world = tokio::task::spawn_blocking(World::new).await.unwrap();
    let pool = world.pool();
    let suicide = async |tx: Transaction| {
        tx.execute("INSERT INTO line VALUES (2)", &[]).await?;
        let _ = tx.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await;
        Ok("\"never\"".into())
    };
    run(&pool, &world.place, suicide).await.unwrap_err();
    assert_eq!(world.lines(), "0");
    assert_eq!(run(&pool, &world.place, write).await.unwrap(), written());
    // One that broke while nobody used it is replaced.
    world.server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
    let other = Place { key: "run/other".into(), ..world.place.clone() };
    assert_eq!(run(&pool, &other, write).await.unwrap(), written());
}

/// What is left of a handle after its work does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_is_good_for_its_own_transaction_only() {
    let world = tokio::task::spawn_blocking(World::new).await.unwrap();
    let (keep, kept) = oneshot::channel();
    let leak = async move |tx: Transaction| {
        keep.send(tx.clone()).unwrap();
        write(tx).await
    };
    assert_eq!(run(&world.pool(), &world.place, leak).await.unwrap(), written());
    let left = kept.await.unwrap().execute("INSERT INTO line VALUES (2)", &[]).await;
    assert!(matches!(left, Err(TransactionError::Over)), "{left:?}");
    assert_eq!(world.lines(), "1");
}
