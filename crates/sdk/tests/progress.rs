//! Progress as the author of a step says it.

use std::time::Duration;

use abide::{Ctx, Engine, Machine, RetryPolicy, Status, StepError, await_signal, done, next};

/// BU-28, BU-29: what an attempt says is there for the next one at its step, the last value of each name, and for no other
/// step.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_goes_on_where_the_last_one_was() {
    let copy = Machine::<u32>::new("copy")
        .retry(RetryPolicy::exponential(1))
        .step("pages", async |ctx: Ctx, _: u32| {
            let first = ctx.last_progress::<u32>("page")?.unwrap_or(0);
            for page in first + 1..=first + 2 {
                ctx.progress("page", &page).await?;
            }
            if ctx.attempt() == 0 { Err(StepError::new("broken")) } else { Ok(next("end", first)) }
        })
        .step("end", async |ctx: Ctx, first: u32| Ok(done(&(first, ctx.last_progress::<u32>("page")?))));
    let engine = Engine::open("memory:").register(copy).start().await.expect("an engine");
    let run = engine.client().start("copy", &0u32).await.expect("a run");
    assert_eq!(run.result::<(u32, Option<u32>)>().await.expect("it ends"), (2, None));
    engine.stop(Duration::from_secs(5)).await;
}

/// BU-29: a value that is no summary is refused, and the step is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused() {
    let large = Machine::<u32>::new("large").step("say", async |ctx: Ctx, _: u32| {
        let refused = ctx.progress("page", &"x".repeat(5_000)).await.expect_err("it is too large");
        Ok(done(&refused.to_string()))
    });
    let engine = Engine::open("memory:").register(large).start().await.expect("an engine");
    let run = engine.client().start("large", &0u32).await.expect("a run");
    let said: String = run.result().await.expect("it ends");
    assert!(said.contains("bytes of a progress"), "{said}");
    engine.stop(Duration::from_secs(5)).await;
}

/// BU-30: what was said stays with a run that waits, in a file and over a restart, and the run goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_progress_outlives_its_process() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("abide.db").display());
    let open = async || {
        let copy = Machine::<u32>::new("copy").step("pages", async |ctx: Ctx, state: u32| {
            if let Some(go) = ctx.signal::<u32>("go")? {
                return Ok(done(&go));
            }
            ctx.progress("page", &7).await?;
            Ok(await_signal("go", state))
        });
        Engine::open(&url).flush_after(1).register(copy).start().await.expect("an engine")
    };
    let engine = open().await;
    let run = engine.client().start("copy", &0u32).await.expect("a run").id();
    let waits = async |engine: &Engine| {
        while engine.client().run(run).show().await.expect("a run").status() != Status::AwaitingSignal {
            tokio::task::yield_now().await;
        }
    };
    waits(&engine).await;
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);
    let engine = open().await;
    waits(&engine).await;
    engine.client().run(run).signal("go", &3u32).await.expect("it is there");
    assert_eq!(engine.client().run(run).result::<u32>().await.expect("it ends"), 3);
    engine.stop(Duration::from_secs(5)).await;
}
