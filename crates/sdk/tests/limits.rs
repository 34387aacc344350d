//! Caps and rates as their user sets them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use abide::{Clock, Engine, EngineBuilder, Limit, Machine, RunHandle, StartError, done, next};
use tokio::sync::{Semaphore, mpsc};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// A machine whose steps say that they began, and go on when they are let.
fn gated(name: &str, began: mpsc::UnboundedSender<u32>, go: Arc<Semaphore>) -> Machine<u32> {
    Machine::<u32>::new(name).step("work", move |_, n: u32| {
        let (began, go) = (began.clone(), go.clone());
        async move {
            began.send(n).expect("the test listens");
            go.acquire().await.expect("the gate is open").forget();
            Ok(done(&n))
        }
    })
}

/// D23: a cap over several shards and steps is never passed, and everything ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_workflow_executes_at_most_as_many_as_it_may() {
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (running, highest) = (now.clone(), most.clone());
    let work = move |_, n: u32| {
        let (running, highest) = (running.clone(), highest.clone());
        async move {
            highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(if n.is_multiple_of(2) { next("work", n + 1) } else { done(&n) })
        }
    };
    let machine = Machine::<u32>::new("busy").step("work", work);
    let limit = Limit::workflow("busy").at_most(3);
    let engine = Engine::open("memory:").register(machine).limit(limit).shards(4).start().await.unwrap();
    let client = engine.client();
    let starts = (0..60u32).map(|n| client.start("busy", &n));
    for run in client.start_many(starts).await.unwrap() {
        run.unwrap().result::<u32>().await.unwrap();
    }
    let most = most.load(Ordering::SeqCst);
    assert!((1..=3).contains(&most), "{most}");
    end(&engine).await;
}

/// D23, AB-1: a full workflow says so, blocks no other on its queue, and goes on when one of its attempts ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_workflow_is_passed_by() {
    let (began, mut begun) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let slow = gated("slow", began, go.clone());
    let quick = Machine::<u32>::new("quick").step("work", async |_, n: u32| Ok(done(&n)));
    let engine = Engine::open("memory:")
        .register(slow)
        .register(quick)
        .limit(Limit::workflow("slow").at_most(1))
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let first = client.start("slow", &1u32).await.unwrap();
    assert_eq!(begun.recv().await, Some(1));
    let second = client.start("slow", &2u32).await.unwrap();
    assert_eq!(client.start("quick", &3u32).await.unwrap().result::<u32>().await.unwrap(), 3);
    let told = second.explain().await.unwrap();
    assert_eq!(told.reason.code(), "cap_reached");
    assert!(told.sentence.ends_with("workflow slow executes 1 attempts, and 1 at most"), "{}", told.sentence);
    go.add_permits(1);
    first.result::<u32>().await.unwrap();
    assert_eq!(begun.recv().await, Some(2));
    go.add_permits(1);
    second.result::<u32>().await.unwrap();
    end(&engine).await;
}

fn rated(clock: &Arc<AtomicI64>, began: mpsc::UnboundedSender<u32>) -> EngineBuilder {
    Engine::open("memory:")
        .register(gated("mail", began, Arc::new(Semaphore::new(99))))
        .limit(Limit::namespace("acme").rate(2, Duration::from_secs(3_600)))
        .clock(Clock::Manual(clock.clone()))
}

/// D23: a rate holds attempts up until the clock says so, also when nothing else happens, and says until when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_lets_attempts_begin_in_time() {
    let clock = Arc::new(AtomicI64::new(1_700_000_000_000));
    let (began, mut begun) = mpsc::unbounded_channel();
    let engine = rated(&clock, began).start().await.unwrap();
    let client = engine.client();
    let mut runs: Vec<RunHandle> = Vec::new();
    for n in 1..=3u32 {
        runs.push(client.start("mail", &n).namespace("acme").await.unwrap());
    }
    let free = client.start("mail", &9u32).await.unwrap();
    free.result::<u32>().await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(begun.recv().await.unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 9]);
    let told = runs[2].explain().await.unwrap();
    assert_eq!(told.reason.code(), "rate_reached");
    assert!(told.sentence.ends_with("the next may begin in 30 min"), "{}", told.sentence);
    clock.fetch_add(1_800_000 - 1, Ordering::SeqCst);
    assert_eq!(runs[2].explain().await.unwrap().reason.code(), "rate_reached");
    assert!(begun.try_recv().is_err());
    // Whoever asks has the engine look at the clock; nothing of the run changes by it.
    clock.fetch_add(1, Ordering::SeqCst);
    free.show().await.unwrap();
    assert_eq!(begun.recv().await, Some(3));
    end(&engine).await;
}

/// D23: the engine wakes by itself when a rate lets the next attempt begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_wakes_the_engine() {
    let (began, mut begun) = mpsc::unbounded_channel();
    let machine = gated("mail", began, Arc::new(Semaphore::new(99)));
    let limit = Limit::queue("default").rate(1, Duration::from_millis(50));
    let engine = Engine::open("memory:").register(machine).limit(limit).start().await.unwrap();
    let client = engine.client();
    let since = std::time::Instant::now();
    let runs = client.start_many((0..4u32).map(|n| client.start("mail", &n))).await.unwrap();
    for _ in runs {
        let begun = tokio::time::timeout(Duration::from_secs(20), begun.recv()).await;
        begun.expect("nobody asks, and the attempt begins all the same").unwrap();
    }
    assert!(since.elapsed() >= Duration::from_millis(149), "{:?}", since.elapsed());
    end(&engine).await;
}

/// D23: a limit that cannot be meant keeps the engine from starting, by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_cannot_be_meant_is_refused() {
    let silly = [
        (vec![Limit::queue("mail")], "the limit of queue mail: expected a cap or a rate, found neither"),
        (vec![Limit::queue("").at_most(1)], "the limit of queue : expected a name, found none"),
        (vec![Limit::workflow("x").at_most(0)], "the limit of workflow x: expected a cap of at least one, found zero"),
        (
            vec![Limit::namespace("x").rate(5, Duration::ZERO)],
            "the limit of namespace x: expected a rate per millisecond or longer, found less",
        ),
        (
            vec![Limit::queue("x").at_most(1), Limit::queue("x").rate(1, Duration::from_secs(1))],
            "the limit of queue x: expected one limit, found two; say both things in one",
        ),
    ];
    for (limits, expected) in silly {
        let mut builder = Engine::open("memory:");
        for limit in limits {
            builder = builder.limit(limit);
        }
        match builder.start().await {
            Err(StartError::Limit(bad)) => assert_eq!(bad.to_string(), expected),
            Err(other) => panic!("expected a bad limit, found {other:?}"),
            Ok(_) => panic!("expected {expected}, found an engine"),
        }
    }
}
