//! A backlog that is larger than what the engine keeps in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::{Engine, Machine, done, next};
use tokio::sync::Semaphore;

/// GD-32, SQ-64: of a long backlog only the front is in memory; the rest is executed in order, also by the process
/// after this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_backlog_waits_in_the_store() {
    const RUNS: u32 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("backlog.db").display());
    let order = Arc::new(Mutex::new(Vec::new()));
    let open = async |permits| {
        let (gate, order) = (Arc::new(Semaphore::new(permits)), order.clone());
        let machine = Machine::<u32>::new("one").step("one", move |_, n: u32| {
            let (gate, order) = (gate.clone(), order.clone());
            async move {
                drop(gate.acquire().await);
                order.lock().unwrap().push(n);
                Ok(done(&n))
            }
        });
        Engine::open(&url).register(machine).queue("default", 1).start().await.unwrap()
    };
    let engine = open(0).await;
    let client = engine.client();
    let mut runs = Vec::new();
    for first in (0..RUNS).step_by(2_500) {
        for run in client.start_many((first..first + 2_500).map(|n| client.start("one", &n))).await.unwrap() {
            runs.push(run.unwrap().id());
        }
    }
    while engine.metrics().behind > 0 {
        tokio::task::yield_now().await;
    }
    assert!(engine.metrics().resident_runs < 9_500, "{}", engine.metrics().resident_runs);
    engine.stop(Duration::ZERO).await;

    let engine = open(1).await;
    assert!(engine.metrics().resident_runs < 9_500, "{}", engine.metrics().resident_runs);
    for (n, run) in (0..).zip(runs) {
        assert_eq!(engine.client().run(run).result::<u32>().await.unwrap(), n);
    }
    // The first was executing when its process ended: its second attempt is the last of all.
    assert_eq!(*order.lock().unwrap(), (1..RUNS).chain([0]).collect::<Vec<_>>());
    engine.stop(Duration::from_secs(5)).await;
}

/// SQ-10, D1: an engine that never rests writes its index rows all the same, so that little must be folded after a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_engine_writes_its_index_rows() {
    let machine = Machine::<u32>::new("loop").step("again", async |_, n: u32| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(next("again", n + 1))
    });
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("loop", &0u32).await.unwrap();
    // Without an end of its own: the engine is never quiet while this is looked for.
    while engine.client().stats().unwrap().runs.is_empty() {
        tokio::task::yield_now().await;
    }
    run.cancel("enough").await.unwrap();
    engine.stop(Duration::from_secs(5)).await;
}
