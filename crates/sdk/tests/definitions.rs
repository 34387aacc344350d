//! Runs whose workflow, version or definition an engine lacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide::{Clock, Engine, EngineBuilder, Machine, RunHandle, Status, done};

const NOON: i64 = 1_700_000_000_000;

fn machine(name: &str) -> Machine<u32> {
    Machine::<u32>::new(name).step("work", async |_, n: u32| Ok(done(&n)))
}

async fn until(run: &RunHandle, status: Status) {
    // Whoever asks has the engine look at its clock.
    while run.show().await.expect("the run").status() != status {
        tokio::task::yield_now().await;
    }
}

/// D25: a run whose workflow the engine lacks becomes a dead letter after the time that was set, is kept, and goes on
/// when an engine has the workflow again and somebody puts it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_nobody_can_execute_is_set_aside_and_can_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let clock = Arc::new(AtomicI64::new(NOON));
    let open = |name: &str| -> EngineBuilder {
        let engine = Engine::open(&url).register(machine(name)).clock(Clock::Manual(clock.clone()));
        engine.definition_wait(Duration::from_secs(3_600))
    };
    // It does not serve the queue, so that the run is left over.
    let engine = open("order").queue("other", 1).start().await.unwrap();
    let id = engine.client().start("order", &7u32).await.unwrap().id();
    engine.stop(Duration::from_secs(5)).await;

    let engine = open("invoice").start().await.unwrap();
    let run = engine.client().run(id);
    let told = run.explain().await.unwrap();
    assert_eq!(told.reason.code(), "no_worker_workflow");
    let at = told.evidence.iter().find(|(name, _)| name == "dead_letter_at_ms").map(|(_, at)| at.clone());
    assert_eq!(at, Some((NOON + 3_600_000).to_string()));
    clock.store(NOON + 3_599_999, Ordering::SeqCst);
    assert_eq!(run.show().await.unwrap().status(), Status::Runnable);
    clock.store(NOON + 3_600_000, Ordering::SeqCst);
    until(&run, Status::DeadLettered).await;
    assert!(run.explain().await.unwrap().sentence.contains("definition_missing"));
    engine.stop(Duration::from_secs(5)).await;

    let engine = open("order").start().await.unwrap();
    let run = engine.client().run(id);
    assert_eq!(run.show().await.unwrap().status(), Status::DeadLettered);
    run.requeue().await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 7);
    engine.stop(Duration::from_secs(5)).await;
}
