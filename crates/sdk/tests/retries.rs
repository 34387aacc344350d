//! Retries of one effect by a policy of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::testing::{TestEngine, crash_everywhere};
use abide::{
    Backoff, Control, Engine, Fact, Failure, FnCtx, Function, Machine, Policy, RetryPolicy, Standing, Status,
    StepError, done, secs,
};

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

/// Every second, `retries` times.
fn every_second(retries: u32) -> RetryPolicy {
    RetryPolicy { backoff: Backoff::Constant, retries_max: Some(retries), ..RetryPolicy::exponential(1_000) }
}

fn down() -> StepError {
    StepError::new("no route").code("down")
}

/// Fetches with `retries`, in a function that would itself try for ever, after an hour each time.
fn fetch(retries: u32) -> Function {
    Function::new("fetch", move |ctx: FnCtx, (): ()| async move {
        let page: String = ctx.effect("fetch", |_| ok("page".to_owned())).retry(every_second(retries)).await?;
        Ok::<_, Failure>(page)
    })
    .retry(RetryPolicy::exponential(3_600_000))
}

/// D20, BU-17: an effect with a policy of its own is tried again by it, and not by that of the function; in between it rests
/// without a worker.
#[test]
fn an_effect_is_tried_again_by_its_own_policy() {
    let engine = TestEngine::new().register(fetch(3));
    let script = engine.operation("fetch").fails(down()).fails(down()).returns("page");
    let run = engine.start("fetch", &());
    assert_eq!((run.status(), script.calls()), (Status::Sleeping, 1));
    let resting = run.effects().remove(0);
    assert_eq!((resting.standing, resting.failures), (Standing::NotStarted, 1));
    assert!(run.why().contains("effect \"fetch\" failed (down: no route) and is tried again in 1 s"), "{}", run.why());
    assert_eq!(run.result::<String>().unwrap(), "page");
    assert_eq!((script.calls(), engine.elapsed()), (3, secs(2)));
    let fetched = run.effects().remove(0);
    assert_eq!((fetched.standing, fetched.failures), (Standing::Committed, 2));
    assert!(!run.journal().iter().flat_map(|row| &row.facts).any(|fact| matches!(fact, Fact::Failed(_))));
}

/// D20: which attempt it is comes from the journal: neither a crash nor a deploy gives it more, or makes it wait longer.
#[test]
fn the_count_and_the_wait_survive_a_crash() {
    let engine = TestEngine::new().register(fetch(2));
    let script = engine.operation("fetch").fails(down());
    let run = engine.start("fetch", &());
    for life in 1..=2 {
        assert_eq!((script.calls(), run.effects()[0].failures), (life, life));
        engine.advance(Duration::from_millis(400));
        engine.lose_checkpoints();
        engine.advance(Duration::from_millis(600));
    }
    let failed = run.result::<String>().unwrap_err().to_string();
    assert!(failed.contains("down: no route"), "{failed}");
    assert_eq!((script.calls(), engine.elapsed()), (3, secs(2)), "the last error stands, and no hour was waited");
    assert!(!run.effects()[0].error.as_ref().expect("an error").retryable);
}

/// An error that no retry cures is not tried again.
#[test]
fn what_cannot_be_cured_is_not_tried_again() {
    let engine = TestEngine::new().register(fetch(5));
    let script = engine.operation("fetch").fails(down().terminal());
    let run = engine.start("fetch", &());
    assert!(run.result::<String>().is_err());
    assert_eq!((script.calls(), run.effects()[0].failures), (1, 0));
}

/// D18, D20: what must not happen twice cannot have a retry policy, and that is said before anything is written.
#[test]
fn what_must_not_happen_twice_has_no_retries() {
    for policy in [Policy::Reconcile, Policy::UnsafeOnce] {
        let wire = Function::new("wire", move |ctx: FnCtx, (): ()| async move {
            ctx.effect("wire", |_| ok(1u32)).retry(every_second(2)).policy(policy).await
        });
        let engine = TestEngine::new().register(wire.control(Control::allow()));
        let run = engine.start("wire", &());
        let refused = run.result::<u32>().unwrap_err().to_string();
        assert!(refused.contains("retry_not_allowed"), "{refused}");
        assert!(run.effects().is_empty() && engine.operation("wire").calls() == 0);
    }
}

/// Other branches go on while one rests, and one that rests begins again while others are under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_rests_while_others_go_on() {
    let (calls, open) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (counted, opened) = (calls.clone(), open.clone());
    let both = Function::new("both", move |ctx: FnCtx, (): ()| {
        let (calls, open) = (counted.clone(), opened.clone());
        async move {
            let quick = RetryPolicy { delay_ms: 1, ..every_second(2) };
            let flaky = ctx.scope("a").effect("flaky", async |_| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(down()),
                n => {
                    open.notify_one();
                    Ok(n)
                }
            });
            // It ends only when the other has begun again, in the same attempt.
            let slow = ctx.scope("b").effect("slow", async |_| {
                open.notified().await;
                ok(7u32).await
            });
            let (flaky, slow) = tokio::try_join!(flaky.retry(quick).into_future(), slow.into_future())?;
            Ok::<_, Failure>((flaky, slow))
        }
    });
    let engine = Engine::open("memory:").register(both).start().await.unwrap();
    let run = engine.client().start("both", &()).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), run.result::<(u32, u32)>()).await.expect("it ends");
    assert_eq!(ended.unwrap(), (1, 7));
    engine.stop(Duration::from_secs(5)).await;
}

/// In a step it is the same: the step lets go of its worker while the effect rests, and what it did before stays done.
#[test]
fn a_step_rests_too() {
    let order = Machine::<u32>::new("order").step("fetch", async |ctx, n: u32| {
        let noted: u32 = ctx.effect("note", |_| ok(n)).await?;
        let fetched: u32 = ctx.effect("fetch", |_| ok(noted)).retry(every_second(3)).await?;
        Ok(done(&(noted + fetched)))
    });
    let engine = TestEngine::new().register(order);
    let script = engine.operation("fetch").fails(down()).fails(down()).returns(&2u32);
    let run = engine.start("order", &1u32);
    assert_eq!(run.status(), Status::Sleeping);
    assert_eq!(run.result::<u32>().unwrap(), 3);
    assert_eq!((script.calls(), engine.operation("note").calls(), engine.elapsed()), (3, 1, secs(2)));
    assert_eq!(run.show().cursors[0].retries, 0, "the step itself did not fail");
}

/// AB-3: killed at every durable point, it ends the same.
#[test]
fn retries_survive_every_crash() {
    let report = crash_everywhere(|| fetch(3), &()).fails("fetch", down()).returns("fetch", "page").run();
    report.assert_ok();
    assert!(report.points >= 3, "{report}");
}
