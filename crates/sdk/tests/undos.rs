//! Undo: what a function did is undone whenever it fails for good, however it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::testing::{TestEngine, crash_everywhere};
use abide::{Failure, FnCtx, Function, RetryPolicy, StepError};

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
