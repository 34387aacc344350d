//! Races: what a branch waited for that was given up is not lost, and does not hold the run up.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::future::{IntoFuture, poll_fn};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use abide::testing::{Side, TestEngine, TestRun, crash_everywhere};
use abide::{Boxed, Engine, Fact, Failure, FnCtx, Function, OpId, RetryPolicy, Status, StepError, hours};
use abide_kernel::OpEnd;

type Branch<'a> = Boxed<'a, Result<u32, Failure>>;

/// Waits for `go` or `skip`, and then for two of `go`.
fn racing() -> Function {
    racing_behind(&Arc::default())
}

/// The same, and its code begins only while the gate is open.
fn racing_behind(gate: &Arc<Mutex<()>>) -> Function {
    let gate = gate.clone();
    Function::new("racing", move |ctx: FnCtx, (): ()| {
        drop(gate.lock());
        race(ctx)
    })
}

async fn race(ctx: FnCtx) -> Result<(usize, u32, u32, u32), Failure> {
    let (a, b, c) = (ctx.scope("a"), ctx.scope("b"), ctx.scope("c"));
    let branches = [
        Box::pin(async move { a.signal::<u32>("go").await }) as Branch<'_>,
        Box::pin(async move { b.signal::<u32>("skip").await }),
        Box::pin(async move { c.sleep(hours(10)).await.map(|()| 0) }),
    ];
    let (winner, first) = ctx.race(branches).await;
    let next = (ctx.signal::<u32>("go").await?, ctx.signal::<u32>("go").await?);
    Ok((winner, first?, next.0, next.1))
}

/// SE-17, SE-24: a wait that lost a race swallows nothing: the next wait for its name gets the next signal. It once stayed
/// open and took it, so that the run waited for ever.
#[test]
fn a_wait_that_lost_a_race_swallows_no_signal() {
    for restarts in [false, true] {
        let engine = TestEngine::new().register(racing());
        let run = engine.start("racing", &());
        for (name, value) in [("skip", 7u32), ("go", 1), ("go", 2)] {
            run.signal(name, &value);
            if restarts {
                engine.lose_checkpoints();
                engine.restart();
            }
        }
        assert_eq!(run.result::<(usize, u32, u32, u32)>().unwrap(), (1, 7, 1, 2));
        assert_eq!(engine.elapsed(), Duration::ZERO, "nobody waited for the timer");
        let shown = run.show();
        assert!(shown.open.is_empty() && shown.inbox.is_empty(), "{:?}", shown.open);
        assert_eq!(shown.last_signal, Some(3));
    }
}

/// Whether a wait got a signal and gave it back.
fn gave_back(run: &TestRun) -> bool {
    let ends = run.journal().into_iter().flat_map(|row| row.facts).filter_map(|fact| match fact {
        Fact::Resulted(resulted) => Some((resulted.op, resulted.end)),
        _ => None,
    });
    let ends: Vec<(OpId, OpEnd)> = ends.collect();
    ends.iter().any(|(op, end)| matches!(end, OpEnd::Signal(_)) && ends.contains(&(*op, OpEnd::Withdrawn)))
}

/// SE-17, SE-25: signals that come to the wait before the code has taken notice of the winner are for the next waits, in
/// the order they came: wherever a crash falls.
#[test]
fn signals_sent_to_a_wait_that_is_about_to_lose_keep_their_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for point in 0..10 {
        for side in [Side::Before, Side::After] {
            let gate: Arc<Mutex<()>> = Arc::default();
            let engine = TestEngine::new().register(racing_behind(&gate));
            let run = engine.start("racing", &());
            engine.settle();
            let closed = gate.lock().unwrap();
            let handle = engine.client().run(run.id());
            for (name, value) in [("skip", 7u32), ("go", 1), ("go", 2)] {
                runtime.block_on(handle.signal(name, &value).into_future()).unwrap();
            }
            drop(closed);
            engine.crash_at_append(point, side);
            assert_eq!(run.result::<(usize, u32, u32, u32)>().unwrap(), (1, 7, 1, 2), "{point} {side:?}");
            assert!(gave_back(&run), "{point} {side:?}: one of them came to the wait that lost");
        }
    }
}

/// AB-3, SE-17, SE-39: a race can be killed everywhere: it has the same winner, and no signal is lost or taken twice.
#[test]
fn a_race_is_killed_everywhere() {
    let report = crash_everywhere(racing, &()).signal("skip", &7).signal("go", &1).signal("go", &2).run();
    report.assert_ok();
    assert!(report.undisturbed.contains("[1,7,1,2]") && report.points > 5, "{report}");
}

/// SE-29, SE-30: a timer that lost a race does not wake the run, nor does the deadline of a wait.
#[test]
fn a_timer_that_lost_a_race_wakes_nobody() {
    let patient = Function::new("patient", async |ctx: FnCtx, (): ()| {
        let (a, b, c) = (ctx.scope("a"), ctx.scope("b"), ctx.scope("c"));
        let branches = [
            Box::pin(async move { a.sleep(hours(1)).await.map(|()| 0u32) }) as Branch<'_>,
            Box::pin(async move { b.signal::<u32>("late").within(hours(2)).await.map(Option::unwrap_or_default) }),
            Box::pin(async move { c.signal::<u32>("skip").await }),
        ];
        ctx.race(branches).await.1?;
        ctx.signal::<u32>("end").await
    });
    let engine = TestEngine::new().register(patient);
    let run = engine.start("patient", &());
    run.signal("skip", &1u32);
    let shown = run.show();
    assert_eq!((shown.status(), shown.open.len()), (Status::AwaitingSignal, 1), "it waits for its end alone");
    engine.advance(hours(3));
    assert_eq!(run.show().rev, shown.rev, "nothing happened");
    run.signal("end", &5u32);
    assert_eq!(run.result::<u32>().unwrap(), 5);
}

/// Fetches something that fails at first, for an hour at most.
fn flaky(calls: &Arc<AtomicU32>) -> Function {
    let calls = calls.clone();
    let code = move |ctx: FnCtx, (): ()| {
        let calls = calls.clone();
        async move {
            let (a, b, c) = (ctx.scope("a"), ctx.scope("b"), ctx.scope("c"));
            let call = async move |_| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(StepError::new("not yet")),
                _ => Ok(5u32),
            };
            let fetched = async move {
                let fetched = a.effect("fetch", call).await?;
                Ok(fetched + a.signal::<u32>("more").await?)
            };
            let branches = [
                Box::pin(fetched) as Branch<'_>,
                Box::pin(async move { b.sleep(hours(1)).await.map(|()| 100) }),
                Box::pin(async move { c.signal::<u32>("stop").await }),
            ];
            let (winner, first) = ctx.race(branches).await;
            if first.is_err() {
                // What the race gave up is recorded before this begins.
                ctx.effect("tell", async |_| Ok::<_, StepError>(())).await?;
            }
            Ok::<_, Failure>((winner, first?))
        }
    };
    Function::new("flaky", code).retry(RetryPolicy::exponential(1_000))
}

/// SE-30: a function that fails and is tried again waits for what the failed attempt gave up: its timeout is not over
/// because the attempt before had no more use for it.
#[test]
fn a_retry_waits_again_for_what_a_failed_attempt_gave_up() {
    for (name, wanted) in [(Some("more"), (0, 6)), (Some("stop"), (2, 1)), (None, (1, 100))] {
        let calls: Arc<AtomicU32> = Arc::default();
        let engine = TestEngine::new().register(flaky(&calls));
        let run = engine.start("flaky", &());
        engine.advance(Duration::from_secs(5));
        assert_eq!(calls.load(Ordering::SeqCst), 2, "it was tried again");
        let reopened = |fact: &Fact| matches!(fact, Fact::Resulted(resulted) if resulted.end == OpEnd::Reopened);
        let reopened = run.journal().iter().flat_map(|row| &row.facts).filter(|fact| reopened(fact)).count();
        assert_eq!(reopened, 3, "the effect, and the two waits that were given up");
        if let Some(name) = name {
            run.signal(name, &1u32);
        }
        assert_eq!(run.result::<(usize, u32)>().unwrap(), wanted);
        assert_eq!(engine.elapsed() >= hours(1), name.is_none());
    }
}

/// AB-5: an effect that ends in the moment in which the code takes notice of a signal does not get before it: the replay,
/// which has the two one after the other, has the same winner.
#[test]
fn an_effect_does_not_overtake_a_signal() {
    for polls in 1..8u32 {
        let race = Function::new("race", move |ctx: FnCtx, (): ()| async move {
            let (a, b) = (ctx.scope("a"), ctx.scope("b"));
            let polled = AtomicU32::new(0);
            let call = async move |_| {
                // Ready when it is polled so often, whoever woke it.
                let ready = || polled.fetch_add(1, Ordering::SeqCst) >= polls;
                poll_fn(|_| if ready() { Poll::Ready(()) } else { Poll::Pending }).await;
                Ok::<_, StepError>(1u32)
            };
            let branches = [
                Box::pin(async move { a.effect("call", call).await }) as Branch<'_>,
                Box::pin(async move { b.signal::<u32>("go").await }),
            ];
            let (winner, _) = ctx.race(branches).await;
            let told: usize = ctx.effect("winner", async |_| Ok::<_, StepError>(winner)).await?;
            ctx.signal::<u32>("end").await?;
            Ok::<_, Failure>((told, winner))
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let engine = Engine::open("memory:").register(race).start().await.unwrap();
            let run = engine.client().start("race", &()).await.unwrap();
            while run.show().await.unwrap().open.is_empty() {
                tokio::task::yield_now().await;
            }
            run.signal("go", &1u32).await.unwrap();
            run.signal("end", &1u32).await.unwrap();
            let (told, winner) = run.result::<(usize, usize)>().await.unwrap();
            assert_eq!(told, winner, "ready at poll {polls}");
            engine.stop(Duration::from_secs(5)).await;
        });
    }
}

/// SE-17: a function that begins again, or ends, with a wait that it keeps and does not await takes no signal with it.
#[test]
fn a_wait_that_is_kept_over_a_new_beginning_swallows_nothing() {
    let lives = Function::new("lives", async |ctx: FnCtx, life: u32| {
        if life == 0 {
            let (a, b) = (ctx.scope("a"), ctx.scope("b"));
            let mut kept: Branch<'static> = Box::pin(async move { a.signal::<u32>("go").await });
            let mut skip: Branch<'static> = Box::pin(async move { b.signal::<u32>("skip").await });
            poll_fn(|cx| {
                let _ = kept.as_mut().poll(cx);
                skip.as_mut().poll(cx)
            })
            .await?;
            // Nobody drops it, so the code never says that it gave it up.
            std::mem::forget(kept);
            return ctx.continue_as_new(&1);
        }
        ctx.signal::<u32>("go").await
    });
    let engine = TestEngine::new().register(lives);
    let run = engine.start("lives", &0u32);
    run.signal("skip", &0u32).signal("go", &3u32);
    assert_eq!(run.result::<u32>().unwrap(), 3);
}
