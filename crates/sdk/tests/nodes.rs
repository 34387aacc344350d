//! Engines that share one PostgreSQL database: any of them takes any command, and what one leaves another goes on with.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use abide::{Engine, Filter, Join, Machine, Page, Status, await_signal, child, done, next, spawn};
use abide_pg_testing::{FAST, Server};

const PATIENCE: Duration = Duration::from_secs(60);

fn order() -> Machine<u64> {
    Machine::<u64>::new("order")
        .step("pay", async |ctx, n: u64| match ctx.signal::<u64>("paid")? {
            Some(_) => Ok(next("ship", n)),
            None => Ok(await_signal("paid", n)),
        })
        .step("ship", async |_, n: u64| {
            let parcels = (0..3).map(|parcel: u64| child("parcel", &parcel).key(&format!("parcel-{n}-{parcel}")));
            Ok(spawn(parcels, "end", n).join(Join::AllSucceeded))
        })
        .step("end", async |ctx, n: u64| Ok(done(&(n + ctx.children().len() as u64))))
}

fn parcel() -> Machine<u64> {
    Machine::<u64>::new("parcel").step("only", async |_, n: u64| Ok(done(&n)))
}

async fn engine(server: &Server, name: &str) -> Engine {
    let builder = Engine::open(&server.url()).node(name).shards(8).node_lease(Duration::from_secs(2));
    builder.register(order()).register(parcel()).start().await.unwrap()
}

/// SE-33, SE-35: commands go to any node, children to the shards of all, and both nodes execute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_on_one_database_share_the_work() {
    let server = Server::start_with(FAST);
    let (ada, bob) = (engine(&server, "ada").await, engine(&server, "bob").await);
    let mut runs = Vec::new();
    for n in 0..24u64 {
        let asked = if n % 2 == 0 { &ada } else { &bob };
        runs.push(asked.client().start("order", &n).key(&format!("order-{n}")).await.unwrap().id());
    }
    let mut executed = BTreeSet::new();
    for (n, run) in runs.into_iter().enumerate() {
        let (asked, other) = if n % 2 == 0 { (&bob, &ada) } else { (&ada, &bob) };
        asked.client().run(run).signal("paid", &1u64).await.unwrap();
        let handle = other.client().run(run);
        let result = tokio::time::timeout(PATIENCE, handle.result::<u64>()).await.unwrap();
        assert_eq!(result.unwrap(), n as u64 + 3);
        executed.extend(handle.show().await.unwrap().last_executed.map(|last| last.by));
    }
    assert_eq!(executed.len(), 2, "{executed:?}");
    let mut filter = Filter::default();
    filter.statuses = vec![Status::Done];
    let listed = ada.client().list(&filter, &Page { most: 1_000, before: None }).await.unwrap();
    assert_eq!(listed.len(), 24 * 4);
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}

/// SE-35, SE-36: an engine that stops hands its shards over, and one that comes back gets its share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_engine_leaves_another_goes_on_with() {
    let server = Server::start_with(FAST);
    let (ada, bob) = (engine(&server, "ada").await, engine(&server, "bob").await);
    let mut runs = Vec::new();
    for n in 0..12u64 {
        runs.push(ada.client().start("order", &n).await.unwrap().id());
    }
    ada.stop(PATIENCE).await;
    for run in &runs[..6] {
        bob.client().run(*run).signal("paid", &1u64).await.unwrap();
        tokio::time::timeout(PATIENCE, bob.client().run(*run).result::<u64>()).await.unwrap().unwrap();
    }
    let eve = engine(&server, "eve").await;
    for run in &runs[6..] {
        eve.client().run(*run).signal("paid", &1u64).await.unwrap();
        tokio::time::timeout(PATIENCE, eve.client().run(*run).result::<u64>()).await.unwrap().unwrap();
    }
    bob.stop(PATIENCE).await;
    eve.stop(PATIENCE).await;
}

/// A database that goes and comes back loses nothing that was acknowledged, and nobody has to open anything anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_and_comes_back_is_gone_on_with() {
    let mut server = Server::start_with(FAST);
    let ada = engine(&server, "ada").await;
    let run = ada.client().start("order", &7u64).await.unwrap().id();
    server.kill();
    server.restart();
    let signalled = async {
        while ada.client().run(run).signal("paid", &1u64).dedup("once").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, signalled).await.unwrap();
    let result = tokio::time::timeout(PATIENCE, ada.client().run(run).result::<u64>()).await.unwrap();
    assert_eq!(result.unwrap(), 10);
    ada.stop(PATIENCE).await;
}

/// D11, AB-10: nodes that have nothing to do renew their leases, and ask nothing else of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_nodes_only_renew_their_leases() {
    let server = Server::start_with(&[FAST[0], FAST[1], ("log_statement", "all"), ("log_line_prefix", "<%a> ")]);
    let engines = [engine(&server, "ada").await, engine(&server, "bob").await, engine(&server, "eve").await];
    for n in 0..60u64 {
        engines[n as usize % 3].client().start("order", &n).await.unwrap();
    }
    let is_at_rest = |engine: &Engine| {
        let metrics = engine.metrics();
        metrics.executing == 0 && metrics.behind == 0 && metrics.resident_runs == 0
    };
    let until = Instant::now() + PATIENCE;
    // Renewals that are under way may still move shards: a quiet spell has begun when one round of them said nothing else.
    let (mut from, mut quiet) = (server.said().len(), 0);
    while quiet < 9 {
        assert!(Instant::now() < until, "{:?} {}", engines.each_ref().map(Engine::metrics), &server.said()[from..]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let said = server.said();
        let (renewals, others) = statements(&said[from..]);
        if others.is_empty() && engines.iter().all(is_at_rest) {
            quiet = renewals;
        } else {
            assert!(quiet == 0, "after {quiet} renewals: {others:?}");
            from = said.len();
        }
    }
    for engine in engines {
        engine.stop(PATIENCE).await;
    }
}

/// How many renewals a log has, and what else engines said.
fn statements(log: &str) -> (usize, Vec<&str>) {
    let said = log.split('<').filter(|entry| entry.starts_with("abide abide> LOG:"));
    let (renewals, others): (Vec<&str>, Vec<&str>) = said.partition(|entry| entry.contains("INSERT INTO node "));
    (renewals.len(), others)
}
