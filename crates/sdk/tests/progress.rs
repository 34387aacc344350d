//! Progress as the author of a step says it.

use std::time::Duration;

use abide::{Ctx, Engine, Machine, RetryPolicy, StepError, done, next};

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
