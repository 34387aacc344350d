//! Runs that are started, signalled and cancelled from inside of the users' own SQL transactions.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use abide::{Engine, Filter, Machine, Page, RunId, Status, await_signal, done};
use abide_pg_testing::{FAST, Server};
use tokio::sync::mpsc;
use tokio_postgres::{Client, NoTls};

const PATIENCE: Duration = Duration::from_secs(60);

/// A run that says that it began, and waits to be paid.
fn order(began: mpsc::UnboundedSender<u64>) -> Machine<u64> {
    let began = Arc::new(began);
    Machine::<u64>::new("order").step("pay", move |ctx, n: u64| {
        let began = began.clone();
        async move {
            if let Some(paid) = ctx.signal::<u64>("paid")? {
                return Ok(done(&(n + paid)));
            }
            let _ = began.send(n);
            Ok(await_signal("paid", n))
        }
    })
}

async fn engine(server: &Server, name: &str) -> (Engine, mpsc::UnboundedReceiver<u64>) {
    let (began, begins) = mpsc::unbounded_channel();
    let builder = Engine::open(&server.url()).node(name).shards(4).node_lease(Duration::from_secs(2));
    (builder.register(order(began)).start().await.unwrap(), begins)
}

async fn connect(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn next(begins: &mut mpsc::UnboundedReceiver<u64>) -> u64 {
    tokio::time::timeout(PATIENCE, begins.recv()).await.unwrap().unwrap()
}

async fn runs(engine: &Engine) -> usize {
    let page = Page { most: 1_000, before: None };
    engine.client().list(&Filter::default(), &page).await.unwrap().len()
}

async fn ask(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// What became of a request, once it is known: its status, its run and its code.
async fn answer(client: &Client, request: &str) -> (String, Option<RunId>, String) {
    let waited = async {
        loop {
            let row = client.query_one("SELECT status, run, code FROM abide.request($1)", &[&request]).await.unwrap();
            let status: String = row.get(0);
            if status != "waiting" {
                let run: Option<String> = row.get(1);
                return (status, run.map(|run| run.parse().unwrap()), row.get(2));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap()
}

/// AB-7: an order and its run are there together, or neither of them; and the run goes on by SQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_begins_with_the_transaction_that_asks_for_it() {
    let server = Server::start_with(FAST);
    let (engine, mut begins) = engine(&server, "ada").await;
    let mut client = connect(&server).await;
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)").await.unwrap();

    let refused = client.transaction().await.unwrap();
    refused.batch_execute("INSERT INTO orders VALUES (1); SELECT abide.start('order', '1')").await.unwrap();
    refused.rollback().await.unwrap();

    let kept = client.transaction().await.unwrap();
    kept.batch_execute("INSERT INTO orders VALUES (2)").await.unwrap();
    let request: String =
        kept.query_one("SELECT abide.start('order', '2', key => 'order-2')", &[]).await.unwrap().get(0);
    let early = kept.query_one("SELECT status FROM abide.request($1)", &[&request]).await.unwrap();
    assert_eq!(early.get::<_, &str>(0), "waiting");
    kept.commit().await.unwrap();

    assert_eq!(next(&mut begins).await, 2);
    let (status, run, _) = answer(&client, &request).await;
    assert_eq!(status, "accepted");
    let run = run.unwrap();
    assert_eq!(runs(&engine).await, 1);

    // Twice under one key is once.
    let signalled = format!("SELECT abide.signal('{run}', 'paid', '5', dedup => 'once')");
    for _ in 0..2 {
        assert_eq!(answer(&client, &ask(&client, &signalled).await).await.0, "accepted");
    }
    let result = tokio::time::timeout(PATIENCE, engine.client().run(run).result::<u64>()).await.unwrap();
    assert_eq!(result.unwrap(), 7);
    engine.stop(PATIENCE).await;
}

/// AB-7: a transaction that began first and commits last is not passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_commits_late_is_not_passed_over() {
    let server = Server::start_with(FAST);
    let (engine, mut begins) = engine(&server, "ada").await;
    let (mut slow, mut quick) = (connect(&server).await, connect(&server).await);
    let first = slow.transaction().await.unwrap();
    first.batch_execute("SELECT abide.start('order', '1')").await.unwrap();
    for n in 2..5u64 {
        let second = quick.transaction().await.unwrap();
        second.batch_execute(&format!("SELECT abide.start('order', '{n}')")).await.unwrap();
        second.commit().await.unwrap();
        assert_eq!(next(&mut begins).await, n);
    }
    first.commit().await.unwrap();
    assert_eq!(next(&mut begins).await, 1);
    assert_eq!(runs(&engine).await, 4);
    engine.stop(PATIENCE).await;
}

/// AB-7: what the engine refuses, and why, is seen by whoever asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_said_to_whoever_asked() {
    let server = Server::start_with(FAST);
    let (engine, mut begins) = engine(&server, "ada").await;
    let client = connect(&server).await;
    let started =
        ask(&client, "SELECT abide.start('order', '1', key => 'mine', labels => '{\"shop\":\"north\"}')").await;
    let (_, run, _) = answer(&client, &started).await;
    let run = run.unwrap();
    assert_eq!(next(&mut begins).await, 1);
    for (sql, code, about) in [
        ("SELECT abide.start('nothing')", "unknown_workflow", None),
        ("SELECT abide.start('order', '9', key => 'mine')", "key_taken", Some(run)),
        ("SELECT abide.start('order', '9', key => 'mine', on_conflict => 'reuse')", "other_input", Some(run)),
        ("SELECT abide.start('order', queue => repeat('q', 300))", "too_large", None),
        ("SELECT abide.cancel('run_00000000000000000000000000000001')", "not_found", None),
        ("SELECT abide.signal('req_00000000000000000000000000000001', 'paid')", "not_found", None),
    ] {
        let (status, found, why) = answer(&client, &ask(&client, sql).await).await;
        assert_eq!((status.as_str(), why.as_str()), ("refused", code), "{sql}");
        assert!(about.is_none() || found == about, "{sql}: {found:?}");
    }
    // A start that was refused started nothing: what is asked of it is not asked of the run that has its key.
    let both = "WITH s AS MATERIALIZED (SELECT abide.start('order', '9', key => 'mine') AS id)
                SELECT s.id, abide.cancel(s.id) FROM s";
    let row = client.query_one(both, &[]).await.unwrap();
    assert_eq!(answer(&client, row.get(0)).await.2, "key_taken");
    assert_eq!(answer(&client, row.get(1)).await.2, "not_found");
    assert_eq!(engine.client().run(run).show().await.unwrap().status(), Status::AwaitingSignal);
    let reused = "SELECT abide.start('order', '1', key => 'mine', on_conflict => 'reuse')";
    assert_eq!(answer(&client, &ask(&client, reused).await).await, ("accepted".into(), Some(run), "accepted".into()));
    let cancelled = ask(&client, &format!("SELECT abide.cancel('{run}', 'not wanted')")).await;
    assert_eq!(answer(&client, &cancelled).await.0, "accepted");
    let late = ask(&client, &format!("SELECT abide.signal('{run}', 'paid', '5')")).await;
    assert_eq!(answer(&client, &late).await.2, "run_over");
    assert_eq!(engine.client().run(run).show().await.unwrap().status(), Status::Cancelled);
    engine.stop(PATIENCE).await;
}

/// A run may be named by the request that starts it, in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_signalled_by_the_transaction_that_starts_it() {
    let server = Server::start_with(FAST);
    let (engine, _begins) = engine(&server, "ada").await;
    let client = connect(&server).await;
    let both = "WITH s AS MATERIALIZED (SELECT abide.start('order', '1') AS id)
                SELECT s.id, abide.signal(s.id, 'paid', '41') FROM s";
    let row = client.query_one(both, &[]).await.unwrap();
    let (_, run, _) = answer(&client, row.get(0)).await;
    assert_eq!(answer(&client, row.get(1)).await.1, run);
    let result = tokio::time::timeout(PATIENCE, engine.client().run(run.unwrap()).result::<u64>()).await.unwrap();
    assert_eq!(result.unwrap(), 42);
    engine.stop(PATIENCE).await;
}

/// What cannot be asked is said at once, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_asked_is_refused_by_the_function() {
    let server = Server::start_with(FAST);
    let (engine, _begins) = engine(&server, "ada").await;
    let client = connect(&server).await;
    for (sql, said) in [
        ("SELECT abide.start(NULL)", "expected the name of a workflow"),
        ("SELECT abide.start('')", "expected the name of a workflow"),
        ("SELECT abide.start('order', on_conflict => 'perhaps')", "reject or reuse, found perhaps"),
        ("SELECT abide.start('order', concurrency_key => 'k')", "concurrency_key and concurrency_limit together"),
        ("SELECT abide.start('order', labels => '[1]')", "expected labels as a JSON object of strings"),
        ("SELECT abide.start('order', labels => '{\"a\":1}')", "expected labels as a JSON object of strings"),
        ("SELECT abide.start('order', to_jsonb(repeat('x', 5000000)))", "at most 4194304 bytes"),
        ("SELECT abide.start('order', key => repeat('x', 70000))", "at most 65536 bytes"),
        ("SELECT abide.signal('order-1', 'paid')", "expected run_<32 hex digits>"),
        ("SELECT abide.signal(NULL, 'paid')", "found NULL"),
        ("SELECT abide.signal('run_00000000000000000000000000000001', '')", "expected the name of a signal"),
        ("SELECT abide.cancel('')", "expected run_<32 hex digits>"),
        ("SELECT abide.request('order-1')", "expected req_<32 hex digits>"),
    ] {
        let error = client.query(sql, &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.contains(said), "{sql}: {message}");
    }
    let left: i64 = client.query_one("SELECT count(*) FROM abide.request", &[]).await.unwrap().get(0);
    assert_eq!(left, 0);
    engine.stop(PATIENCE).await;
}

/// SE-6: one node at a time takes in what is asked, whichever owns the shard that is for it, and the next goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_at_a_time_takes_in_what_is_asked() {
    let server = Server::start_with(FAST);
    let (ada, mut at_ada) = engine(&server, "ada").await;
    let (bob, mut at_bob) = engine(&server, "bob").await;
    let client = connect(&server).await;
    let host = "SELECT n.node FROM abide.shard s JOIN abide.node n ON n.process = s.owner WHERE s.id = 0";
    let first: String = ask(&client, host).await;
    for n in 0..20 {
        ask(&client, &format!("SELECT abide.start('order', '{n}')")).await;
    }
    let mut began = Vec::new();
    while began.len() < 20 {
        let one = async {
            tokio::select! { n = at_ada.recv() => n, n = at_bob.recv() => n }
        };
        began.push(tokio::time::timeout(PATIENCE, one).await.unwrap().unwrap());
    }
    began.sort_unstable();
    assert_eq!(began, (0..20).collect::<Vec<u64>>());
    let (gone, left) = if first == "ada" { (ada, bob) } else { (bob, ada) };
    gone.stop(PATIENCE).await;
    let request = ask(&client, "SELECT abide.start('order', '20')").await;
    assert_eq!(answer(&client, &request).await.0, "accepted");
    assert_eq!(runs(&left).await, 21);
    assert_ne!(ask(&client, host).await, first);
    left.stop(PATIENCE).await;
}
