//! Undo: what a function did is undone whenever it fails for good, however it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::testing::{TestEngine, crash_everywhere};
use abide::{Failure, FnCtx, Function, RetryPolicy, Standing, Status, StepError};

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

fn twice() -> RetryPolicy {
    RetryPolicy { retries_max: Some(2), ..RetryPolicy::exponential(1_000) }
}

/// How a trip goes wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Code,
    Effect,
    Error,
}

/// A trip that books a flight and then goes wrong. What undoes it fails or panics at first, as often as `busy` says.
fn trip(wrong: Wrong, retry: Option<RetryPolicy>, (busy, panics): (u32, bool), undoing: &Arc<AtomicU32>) -> Function {
    let undoing = undoing.clone();
    let code = move |ctx: FnCtx, (): ()| {
        let undoing = undoing.clone();
        async move {
            ctx.effect("flight", |_| ok(())).await?;
            ctx.undo("cancel flight", async move |_| {
                let first = undoing.fetch_add(1, Ordering::SeqCst) < busy;
                assert!(!(first && panics), "the airline's library is wrong");
                if first { Err(StepError::new("the airline is busy")) } else { Ok(()) }
            })?;
            let call = async |_| match wrong {
                Wrong::Error => Err(StepError::new("no room").code("no_room")),
                Wrong::Code | Wrong::Effect => panic!("the library is wrong"),
            };
            assert!(!matches!(wrong, Wrong::Code), "the code is wrong");
            ctx.effect("hotel", call).await as Result<(), Failure>
        }
    };
    let trip = Function::new("trip", code);
    retry.into_iter().fold(trip, Function::retry)
}

/// AB-3, D12: a panic that nothing cures ends the run as any other error does: what was done is undone first.
#[test]
fn a_panic_undoes_what_was_done() {
    for wrong in [Wrong::Code, Wrong::Effect] {
        for retry in [None, Some(twice())] {
            let undoing = Arc::new(AtomicU32::new(0));
            let engine = TestEngine::new().register(trip(wrong, retry, (0, false), &undoing));
            let failed = engine.start("trip", &()).result::<()>().unwrap_err().to_string();
            assert!(failed.contains("ended as failed: panic: the ") && failed.ends_with("is wrong"), "{failed}");
            assert_eq!(undoing.load(Ordering::SeqCst), 1, "{wrong:?}, {retry:?}");
        }
        crash_everywhere(move || trip(wrong, Some(twice()), (0, false), &Arc::default()), &()).run().assert_ok();
    }
}

/// AB-3: what undoes something is tried again when it fails or panics, though the function has used up its retries; the
/// run ends with what went wrong first.
#[test]
fn what_undoes_has_retries_of_its_own() {
    for retry in [None, Some(RetryPolicy { retries_max: Some(0), ..twice() }), Some(twice())] {
        for panics in [false, true] {
            let undoing = Arc::new(AtomicU32::new(0));
            let engine = TestEngine::new().register(trip(Wrong::Error, retry, (4, panics), &undoing));
            let failed = engine.start("trip", &()).result::<()>().unwrap_err().to_string();
            assert!(failed.ends_with("ended as failed: no_room: no room"), "{failed}");
            assert_eq!(undoing.load(Ordering::SeqCst), 5, "{retry:?}");
        }
    }
}

/// D12, AB-3: a run that rests before its next try, or that was set aside, undoes what it did when it is cancelled, at once.
#[test]
fn a_run_that_rests_or_was_set_aside_is_cancelled_at_once() {
    for (stuck, status) in [(false, Status::Runnable), (true, Status::DeadLettered)] {
        let code = move |ctx: FnCtx, (): ()| async move {
            ctx.undo("cancel flight", |_| ok(()))?;
            ctx.effect("flight", |_| ok(())).await?;
            if stuck {
                std::future::pending::<()>().await;
            }
            ctx.effect("hotel", async |_| Err::<(), _>(StepError::new("no room"))).await
        };
        let trip = Function::new("trip", code).retry(RetryPolicy::exponential(3_600_000));
        let engine = TestEngine::new().register(trip);
        let run = engine.start("trip", &());
        engine.settle();
        assert_eq!(run.status(), status);
        run.cancel("changed my mind");
        assert_eq!((run.status(), engine.elapsed()), (Status::Cancelled, Duration::ZERO));
        let undone = run.effects().iter().any(|effect| effect.undo && effect.standing == Standing::Committed);
        assert!(undone, "{}", run.history());
    }
}
