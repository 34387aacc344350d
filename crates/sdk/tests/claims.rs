//! Claims and effects: who has an effect, for how long, and what an attempt is told that has it no more.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::testing::TestEngine;
use abide::{Answer, Clock, Engine, Fact, Failure, FnCtx, Function, Machine, RetryPolicy, RunHandle, StepError, done};
use tokio::sync::Notify;

const LEASE: Duration = Duration::from_millis(60);

/// What must come about soon. A test that waits for ever would not say what it waits for.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it comes about")
}

/// How many facts of a kind the run's journal has.
async fn count(run: &RunHandle, kind: &str) -> usize {
    let rows = run.journal(0).await.unwrap();
    rows.iter().flat_map(|row| &row.facts).filter(|fact| fact.kind() == kind).count()
}

/// A clock that stands still until it is moved.
fn clock() -> (Arc<AtomicI64>, Clock) {
    let ms = Arc::new(AtomicI64::new(1_893_456_000_000));
    (ms.clone(), Clock::Manual(ms))
}

/// BU-23: an effect that takes longer than a lease keeps its claim: it is renewed, and nobody takes the work over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_effect_keeps_its_claim() {
    let (calls, open) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let (counted, opened) = (calls.clone(), open.clone());
    let long = Function::new("long", move |ctx: FnCtx, (): ()| {
        let (calls, open) = (counted.clone(), opened.clone());
        async move {
            let call = async |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                open.notified().await;
                Ok::<_, StepError>(5u32)
            };
            ctx.effect("long", call).await
        }
    });
    let (now, clock) = clock();
    let engine = Engine::open("memory:").register(long).lease(LEASE).clock(clock).start().await.unwrap();
    let run = engine.client().start("long", &()).await.unwrap();
    // Five times two thirds of a lease pass; each time the claim is renewed before the next.
    for renewed in 1..=5 {
        now.fetch_add(LEASE.as_millis() as i64 * 2 / 3, Ordering::SeqCst);
        soon(async {
            while count(&run, "heartbeat").await < renewed {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    assert_eq!((count(&run, "claimed").await, count(&run, "expired").await), (1, 0));
    open.notify_one();
    assert_eq!(soon(run.result::<u32>()).await.unwrap(), 5);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    engine.stop(Duration::from_secs(5)).await;
}

/// BU-24: a step can tell what it executed from what was recorded before.
#[test]
fn an_effect_says_whether_it_was_recorded() {
    let answers: Arc<Mutex<Vec<Answer<u32>>>> = Arc::default();
    let noted = answers.clone();
    let charge = Machine::<u32>::new("charge")
        .step("charge", move |ctx, amount: u32| {
            let noted = noted.clone();
            async move {
                let answer = ctx.effect("charge", async |_| Ok::<_, StepError>(amount)).answer().await?;
                noted.lock().unwrap().push(answer.clone());
                let failed = ctx.effect("no", async |_| Err::<u32, _>(StepError::new("no").terminal())).answer().await;
                assert!(failed.is_err(), "an error is an error, now and as recorded");
                if ctx.retries() == 0 {
                    return Err(StepError::new("once more"));
                }
                Ok(done(&answer.value()?))
            }
        })
        .retry(RetryPolicy::exponential(1));
    let engine = TestEngine::new().register(charge);
    assert_eq!(engine.start("charge", &5u32).result::<u32>().unwrap(), 5);
    assert_eq!(*answers.lock().unwrap(), [Answer::Executed(5), Answer::Recorded(5)]);
    assert_eq!((engine.operation("charge").calls(), engine.operation("no").calls()), (1, 1));
}

/// BU-20, BU-24: an attempt whose claim was taken over is told that the effect is in progress elsewhere, and calls nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_in_progress_elsewhere_is_told_apart() {
    let (attempts, stale) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(None)));
    let (called, heard) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let inside = (attempts.clone(), stale.clone(), called.clone(), heard.clone());
    let taken = Machine::<u32>::new("taken").step("take", move |ctx, n: u32| {
        let (attempts, stale, called, heard) = inside.clone();
        async move {
            if attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                // It stalls, and comes back when another attempt is inside the call.
                ctx.cancelled().await;
                called.notified().await;
                let answer = ctx.effect("take", async |_| Ok::<_, StepError>(0u32)).answer().await?;
                let plain = ctx.effect("other", async |_| Ok::<_, StepError>(0u32)).await;
                *stale.lock().unwrap() = Some((answer, plain.map_err(|error| error.info().code.to_string())));
                heard.notify_one();
                return Ok(done(&0u32));
            }
            let call = async |_| {
                called.notify_one();
                heard.notified().await;
                Ok::<_, StepError>(n)
            };
            Ok(done(&ctx.effect("take", call).await?))
        }
    });
    let (now, clock) = clock();
    let engine = Engine::open("memory:").register(taken).lease(LEASE).clock(clock).start().await.unwrap();
    let run = engine.client().start("taken", &7u32).await.unwrap();
    soon(async {
        while attempts.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    now.fetch_add(10 * LEASE.as_millis() as i64, Ordering::SeqCst);
    assert_eq!(soon(run.result::<u32>()).await.unwrap(), 7);
    let stale = stale.lock().unwrap().take().expect("the first attempt came back");
    assert_eq!(stale, (Answer::Elsewhere, Err("in_progress_elsewhere".to_owned())));
    let effects: Vec<String> = run.effects().await.unwrap().iter().map(|effect| effect.key.to_string()).collect();
    assert_eq!(effects, ["take"], "of the first attempt nothing is recorded");
    engine.stop(Duration::from_secs(5)).await;
}

/// BU-24: code that is replayed has no such answer; from outside, the ledger tells what is recorded and what is under way.
#[test]
fn the_ledger_tells_it_of_functions() {
    let waits = Function::new("waits", async |ctx: FnCtx, (): ()| {
        let first: u32 = ctx.effect("first", async |_| Ok::<_, StepError>(1)).await?;
        ctx.signal::<()>("go").await?;
        Ok::<_, Failure>(first)
    });
    let engine = TestEngine::new().register(waits);
    let run = engine.start("waits", &());
    let recorded = run.effects().remove(0);
    assert_eq!((recorded.standing.name(), recorded.value.as_ref().map(abide::Payload::text)), ("committed", Some("1")));
    let executed = run.journal().into_iter().flat_map(|row| row.facts).filter(|fact| matches!(fact, Fact::Resulted(_)));
    assert_eq!(executed.count(), 1);
    assert_eq!(run.signal("go", &()).result::<u32>().unwrap(), 1);
    assert_eq!(engine.operation("first").calls(), 1);
}
