//! Engines that share one PostgreSQL database: what happens at one of them is followed at another, and what holds for a
//! queue holds at all.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::time::Duration;

use abide::{Engine, Machine, RunId, await_signal, done};
use abide_pg_testing::{FAST, Server};
use abide_runtime::{Following, Taken};

const PATIENCE: Duration = Duration::from_secs(60);

fn parcel() -> Machine<u64> {
    Machine::<u64>::new("parcel").step("wait", async |ctx, n: u64| match ctx.signal::<u64>("go")? {
        Some(_) => Ok(done(&n)),
        None => Ok(await_signal("go", n)),
    })
}

async fn engine(server: &Server, name: &str) -> Engine {
    let builder = Engine::open(&server.url()).node(name).shards(8).node_lease(Duration::from_secs(2));
    builder.register(parcel()).start().await.unwrap()
}

async fn start_all(engine: &Engine, count: u64) -> Vec<RunId> {
    let mut runs = Vec::new();
    for n in 0..count {
        runs.push(engine.client().start("parcel", &n).await.unwrap().id());
    }
    runs
}

async fn go(engine: &Engine, runs: &[RunId]) {
    for run in runs {
        engine.client().run(*run).signal("go", &1u64).await.unwrap();
    }
}

/// AB-13: whoever follows a run is woken when it moves, whichever node serves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_followed_at_every_node() {
    let server = Server::start_with(FAST);
    let (ada, bob) = (engine(&server, "ada").await, engine(&server, "bob").await);
    for follower in [&ada, &bob] {
        let runs = start_all(&ada, 16).await;
        let mut moves: Vec<_> = runs.iter().map(|run| follower.runtime().unwrap().follow_run(*run)).collect();
        go(&ada, &runs).await;
        for (run, moves) in runs.iter().zip(&mut moves) {
            loop {
                moves.look();
                if follower.runtime().unwrap().show(*run).await.unwrap().end.is_some() {
                    break;
                }
                assert!(tokio::time::timeout(PATIENCE, moves.moved()).await.unwrap(), "the engine goes on");
            }
        }
    }
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}

/// Whether all of these were heard to end before anything had to be looked at anew.
async fn heard(following: &mut Following, runs: &[RunId]) -> bool {
    let mut open: BTreeSet<RunId> = runs.iter().copied().collect();
    while !open.is_empty() {
        match following.take(100) {
            Taken::Reset => return false,
            Taken::Events(events) if events.is_empty() => {
                assert!(tokio::time::timeout(PATIENCE, following.moved()).await.unwrap(), "the engine goes on");
            }
            Taken::Events(events) => {
                for event in events.iter().filter(|event| event.status.is_some()) {
                    open.remove(&event.run);
                }
            }
        }
    }
    true
}

/// AB-13: what happens in a namespace is told at every node, wherever it happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_followed_at_every_node() {
    let server = Server::start_with(FAST);
    let (ada, bob) = (engine(&server, "ada").await, engine(&server, "bob").await);
    for follower in [&ada, &bob] {
        let mut following = follower.runtime().unwrap().follow(&"default".into(), None).unwrap();
        // At first the other node has to hear that somebody follows, which is said.
        let mut tries = 0;
        loop {
            let runs = start_all(&ada, 16).await;
            go(&bob, &runs).await;
            if heard(&mut following, &runs).await {
                break;
            }
            tries += 1;
            assert!(tries < 10, "it is always begun anew");
        }
    }
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}

/// AB-18: a pause that one node was told of holds at all of them, and so does its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_at_every_node() {
    let server = Server::start_with(FAST);
    let (ada, bob) = (engine(&server, "ada").await, engine(&server, "bob").await);
    let (namespace, queue) = ("default".into(), "default".into());
    let change =
        |paused: bool| ada.runtime().unwrap().change_queue(&namespace, &queue, |rule| rule.paused = paused).unwrap();
    change(true);
    // The other node hears of it a moment later: from some run on, all are held up.
    let mut held: Vec<RunId> = Vec::new();
    let mut started = 0;
    while held.len() < 16 {
        started += 1;
        assert!(started < 500, "some still begin");
        let run = start_all(&bob, 1).await[0];
        // Only the node that serves the run knows what holds it up.
        let mut is_held = false;
        for engine in [&ada, &bob] {
            is_held |= engine.client().run(run).explain().await.unwrap().reason.code() == "queue_paused";
        }
        if is_held { held.push(run) } else { held.clear() }
    }
    change(false);
    go(&bob, &held).await;
    for run in held {
        tokio::time::timeout(PATIENCE, bob.client().run(run).result::<u64>()).await.unwrap().unwrap();
    }
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}
