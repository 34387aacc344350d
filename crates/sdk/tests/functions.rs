//! Functions: ordinary async code that survives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function, Status, StepError};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// A counter that the code of a workflow may keep.
fn counter() -> (Arc<AtomicU32>, Arc<AtomicU32>) {
    let counter = Arc::new(AtomicU32::new(0));
    (counter.clone(), counter)
}

async fn until(run: &abide::RunHandle, status: Status) {
    while run.show().await.unwrap().status() != status {
        tokio::task::yield_now().await;
    }
}

/// JI-12, JI-13: an effect is executed once, and a function that waited and was replayed gets its recorded result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_waits_and_is_replayed() {
    let (calls, inside) = counter();
    let greet = Function::new("greet", move |ctx: FnCtx, name: String| {
        let calls = inside.clone();
        async move {
            let number =
                ctx.effect("count", async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst) + 1)).await?;
            let word: String = ctx.signal("word").await?;
            ctx.sleep(Duration::from_millis(1)).await?;
            Ok(format!("{word} {name} {number}"))
        }
    });
    let engine = Engine::open("memory:").register(greet).start().await.unwrap();
    let run = engine.client().start("greet", "Ada").await.unwrap();
    until(&run, Status::AwaitingSignal).await;
    run.signal("word", "hello").await.unwrap();
    assert_eq!(run.result::<String>().await.unwrap(), "hello Ada 1");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    end(&engine).await;
}

/// BU-18, D29: an effect's key is the same over its attempts and differs from every other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_effect_is_begun_again_by_a_retry() {
    let (calls, inside) = counter();
    let flaky = Function::new("flaky", move |ctx: FnCtx, (): ()| {
        let calls = inside.clone();
        async move {
            let first: String = ctx.effect("one", async |call| Ok::<_, StepError>(call.key().to_owned())).await?;
            let second: String = ctx
                .effect("two", async |call: abide::Call| match calls.fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => Err(StepError::new("not yet")),
                    _ => Ok(call.key().to_owned()),
                })
                .await?;
            assert_ne!(first, second);
            Ok::<_, Failure>((first, second))
        }
    })
    .retry(abide::RetryPolicy::exponential(1));
    let engine = Engine::open("memory:").register(flaky).start().await.unwrap();
    let run = engine.client().start("flaky", &()).await.unwrap();
    let (first, second): (String, String) = run.result().await.unwrap();
    assert!(first.ends_with("/one") && second.ends_with("/two"), "{first} {second}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    end(&engine).await;
}

/// Children, joined by awaiting them; their errors are the parent's to answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_are_awaited() {
    let double = Function::new("double", async |_: FnCtx, n: u32| {
        if n == 13 { Err(StepError::new("unlucky").code("unlucky").terminal()) } else { Ok(2 * n) }
    });
    let sum = Function::new("sum", async |ctx: FnCtx, (): ()| {
        let one = ctx.child::<u32, _>("one", "double", &4u32).started().await?;
        let two: u32 = ctx.child("two", "double", &5u32).await?;
        let bad = ctx.child::<u32, _>("bad", "double", &13u32).await.unwrap_err();
        assert_eq!(&*bad.info().code, "unlucky");
        Ok::<_, Failure>(one.result().await? + two)
    });
    let engine = Engine::open("memory:").register(double).register(sum).start().await.unwrap();
    let run = engine.client().start("sum", &()).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 18);
    end(&engine).await;
}

/// A function that begins again keeps its run and forgets its ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_begins_again() {
    let count = Function::new("count", async |ctx: FnCtx, n: u32| {
        let next: u32 = ctx.effect("next", async |_| Ok::<_, StepError>(n + 1)).await?;
        if next < 5 { ctx.continue_as_new(&next) } else { Ok(next) }
    });
    let engine = Engine::open("memory:").register(count).start().await.unwrap();
    let run = engine.client().start("count", &0u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 5);
    assert_eq!(run.show().await.unwrap().continuations, 4);
    end(&engine).await;
}

/// AB-4: waiting for what the engine cannot see sets the run aside, and says where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_wait_is_reported() {
    let sleepy = Function::new("sleepy", async |ctx: FnCtx, (): ()| {
        ctx.effect("first", async |_| Ok::<_, StepError>(1)).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok::<_, Failure>(())
    });
    let engine = Engine::open("memory:").register(sleepy).start().await.unwrap();
    let run = engine.client().start("sleepy", &()).await.unwrap();
    until(&run, Status::DeadLettered).await;
    let shown = run.explain().await.unwrap();
    assert!(shown.sentence.contains("foreign_wait") && shown.sentence.contains("functions.rs"), "{}", shown.sentence);
    end(&engine).await;
}
