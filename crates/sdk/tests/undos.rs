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

/// AB-3: a panic of an effect that does not come again, because its cause is gone, is still what happened: once undoing has begun,
/// however it is interrupted, the run ends as failed. It ended well, with a part of it undone.
#[test]
fn what_is_undone_in_part_does_not_end_well() {
    for interrupted in [false, true] {
        let (mails, undos) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (mailing, undoing) = (mails.clone(), undos.clone());
        let trip = Function::new("trip", move |ctx: FnCtx, (): ()| {
            let (mailing, undoing) = (mailing.clone(), undoing.clone());
            async move {
                ctx.effect("book", |_| ok(())).await?;
                let first = undoing.clone();
                ctx.undo("unbook", async move |_| {
                    let first = undoing.fetch_add(1, Ordering::SeqCst) == 1;
                    assert!(!(first && interrupted), "the library is wrong, once");
                    Ok::<_, StepError>(())
                })?;
                ctx.undo("recall", async move |_| {
                    first.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, StepError>(())
                })?;
                // Before there is anything to await.
                let mail = move |_| {
                    assert!(mailing.fetch_add(1, Ordering::SeqCst) > 0, "the mailer is wrong, once");
                    ok(())
                };
                ctx.effect("mail", mail).await as Result<(), Failure>
            }
        });
        let engine = TestEngine::new().register(trip);
        let run = engine.start("trip", &());
        let failed = run.result::<()>().unwrap_err().to_string();
        assert!(failed.contains("ended as failed: panic: the mailer is wrong, once"), "{failed}");
        assert_eq!(mails.load(Ordering::SeqCst), 1, "what failed for good is not tried again");
        assert_eq!(undos.load(Ordering::SeqCst), 2 + u32::from(interrupted));
        let standing: Vec<_> = run.effects().into_iter().map(|effect| (effect.key, effect.standing)).collect();
        let stands = |key: &str| standing.iter().find(|(known, _)| **known == *key).map(|(_, standing)| *standing);
        assert_eq!([stands("unbook"), stands("recall")], [Some(Standing::Committed); 2], "{standing:?}");
    }
}

/// AB-3: a panic of an effect is met again by replays, and cured by a retry as an error is.
#[test]
fn a_panic_of_an_effect_is_cured_by_a_retry() {
    let mails = Arc::new(AtomicU32::new(0));
    let mailing = mails.clone();
    let letter = Function::new("letter", move |ctx: FnCtx, (): ()| {
        let mailing = mailing.clone();
        async move {
            let mail = async move |_| {
                assert!(mailing.fetch_add(1, Ordering::SeqCst) > 0, "the mailer is wrong, once");
                Ok::<_, StepError>("sent".to_owned())
            };
            ctx.effect("mail", mail).await as Result<String, Failure>
        }
    });
    let engine = TestEngine::new().register(letter.retry(twice()));
    assert_eq!(engine.start("letter", &()).result::<String>().unwrap(), "sent");
    assert_eq!(mails.load(Ordering::SeqCst), 2);
}

/// AB-3: what undoes something is of one life: a new one forgets it, and its ledger does not grow.
#[test]
fn a_new_beginning_forgets_what_would_undo() {
    let undone = Arc::new(AtomicU32::new(0));
    let undoing = undone.clone();
    let turns = Function::new("turns", move |ctx: FnCtx, turn: u32| {
        let undoing = undoing.clone();
        async move {
            ctx.effect("book", |_| ok(())).await?;
            ctx.undo("unbook", async move |_| {
                undoing.fetch_add(1, Ordering::SeqCst);
                Ok::<_, StepError>(())
            })?;
            ctx.sleep(Duration::from_secs(60)).await?;
            if turn < 5 {
                return ctx.continue_as_new(&(turn + 1));
            }
            Err::<u32, Failure>(StepError::new("bad").terminal())
        }
    });
    let engine = TestEngine::new().register(turns);
    let run = engine.start("turns", &0u32);
    let failed: Result<u32, _> = run.result();
    assert!(failed.is_err());
    assert_eq!(undone.load(Ordering::SeqCst), 1, "of the last life");
    assert_eq!(run.effects().len(), 2, "{:?}", run.effects());
}
