//! Effects: what is done once, what is undone, and what nobody knows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::{
    ClientError, Control, Engine, Failure, FnCtx, Function, Interrupt, Machine, PlanError, Policy, Refusal,
    RetryPolicy, RunHandle, Standing, Status, StepError, done,
};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

async fn until(run: &RunHandle, status: Status) {
    while run.show().await.unwrap().status() != status {
        tokio::task::yield_now().await;
    }
}

type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, what: &str) {
    log.lock().unwrap().push(what.into());
}

/// A trip that books two things, each with what undoes it, and then waits or fails.
fn trip(log: &Log, fails: bool) -> Function {
    let log = log.clone();
    Function::new("trip", move |ctx: FnCtx, (): ()| {
        let log = log.clone();
        async move {
            for what in ["flight", "hotel"] {
                let booking = log.clone();
                ctx.effect(what, async |_| {
                    note(&booking, what);
                    Ok::<_, StepError>(())
                })
                .await?;
                let undoing = log.clone();
                ctx.undo(&format!("cancel {what}"), async move |_| {
                    note(&undoing, &format!("cancel {what}"));
                    Ok::<_, StepError>(())
                })?;
            }
            if fails {
                return Err(StepError::new("no car").code("no_car").terminal());
            }
            ctx.signal::<()>("go").await?;
            Ok::<_, Failure>(())
        }
    })
}

/// What was done is undone when the function fails, the last first, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_undoes_what_was_done() {
    let log = Log::default();
    let engine = Engine::open("memory:").register(trip(&log, true)).start().await.unwrap();
    let run = engine.client().start("trip", &()).await.unwrap();
    let failed = run.result::<()>().await.unwrap_err();
    assert!(matches!(&failed, ClientError::RunFailed { error, .. } if &*error.code == "no_car"), "{failed}");
    assert_eq!(*log.lock().unwrap(), ["flight", "hotel", "cancel hotel", "cancel flight"]);
    end(&engine).await;
}

/// D12: a cancelled run undoes what it did before it ends, and ends as cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_undoes_what_was_done() {
    let log = Log::default();
    let engine = Engine::open("memory:").register(trip(&log, false)).start().await.unwrap();
    let run = engine.client().start("trip", &()).await.unwrap();
    until(&run, Status::AwaitingSignal).await;
    run.cancel("changed my mind").await.unwrap();
    until(&run, Status::Cancelled).await;
    assert_eq!(*log.lock().unwrap(), ["flight", "hotel", "cancel hotel", "cancel flight"]);
    let shown = run.show().await.unwrap();
    assert_eq!(&*shown.last_error.unwrap().message, "changed my mind");
    end(&engine).await;
}

/// A payment whose first process dies in the middle of it.
fn payment(calls: &Arc<AtomicU32>, dies: bool, policy: Policy) -> Function {
    let calls = calls.clone();
    Function::new("payment", move |ctx: FnCtx, (): ()| {
        let calls = calls.clone();
        async move {
            let paid: u32 = ctx
                .effect("pay", async |_| {
                    let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
                    if dies {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, StepError>(call)
                })
                .policy(policy)
                .await?;
            Ok::<_, Failure>(paid)
        }
    })
    .control(Control::allow().named("pay"))
}

/// Leaves a run behind whose effect was begun by a process that is gone.
async fn orphaned(url: &str, policy: Policy) -> (Arc<AtomicU32>, abide::RunId) {
    let calls = Arc::new(AtomicU32::new(0));
    let engine = Engine::open(url).register(payment(&calls, true, policy)).start().await.unwrap();
    let run = engine.client().start("payment", &()).await.unwrap().id();
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    engine.stop(Duration::ZERO).await;
    (calls, run)
}

/// JI-14, JI-18, JI-19, JI-27, D19: an effect whose process died is not repeated where that could be harmful; it is in
/// doubt, listed, and the run goes on with what someone says of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_in_doubt_waits_to_be_resolved() {
    for policy in [Policy::UnsafeOnce, Policy::Reconcile] {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("doubt.db").display());
        let (calls, run) = orphaned(&url, policy).await;
        let engine = Engine::open(&url).register(payment(&calls, false, policy)).start().await.unwrap();
        let run = engine.client().run(run);
        until(&run, Status::InDoubt).await;
        let doubted = engine.client().in_doubt(10).await.unwrap();
        assert_eq!((doubted.len(), &*doubted[0].1.key), (1, "pay"));
        assert_eq!(doubted[0].1.standing, Standing::InDoubt);
        run.resolve("pay").actor("ada").note("the bank says so").value(&17u32).await.unwrap();
        assert_eq!(run.result::<u32>().await.unwrap(), 17);
        assert_eq!(calls.load(Ordering::SeqCst), 1, "it was never called again");
        end(&engine).await;
    }
}

/// JI-20, JI-21, JI-22: a retry needs an answer to exactly that interrupt, and is one retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_answers_one_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("doubt.db").display());
    let (calls, run) = orphaned(&url, Policy::UnsafeOnce).await;
    let engine = Engine::open(&url).register(payment(&calls, false, Policy::UnsafeOnce)).start().await.unwrap();
    let run = engine.client().run(run);
    until(&run, Status::InDoubt).await;
    let interrupt = run.effects().await.unwrap()[0].interrupt.unwrap();
    for wrong in [run.resolve("pay").retry(), run.resolve("pay").interrupt(interrupt + 1).retry()] {
        let refused = wrong.await.unwrap_err();
        assert!(matches!(refused, ClientError::Refused(Refusal::WrongInterrupt { .. })), "{refused}");
    }
    let none = run.resolve("nothing").failed("x").await.unwrap_err();
    assert!(matches!(none, ClientError::Refused(Refusal::NoEffect { .. })), "{none}");
    run.resolve("pay").interrupt(interrupt).retry().await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 2);
    let effect = run.effects().await.unwrap().remove(0);
    let approval = effect.approval.expect("an approval");
    assert_eq!((effect.standing, approval.interrupt), (Standing::Committed, Interrupt::Doubt(interrupt)));
    let late = run.resolve("pay").interrupt(interrupt).retry().await.unwrap_err();
    assert!(matches!(late, ClientError::Refused(Refusal::RunOver { .. })), "{late}");
    end(&engine).await;
}

/// JI-16, D19: an effect that may be repeated is, without anybody's word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatable_effect_is_repeated() {
    for policy in [Policy::Pure, Policy::Idempotent, Policy::Dedupe] {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("again.db").display());
        let (calls, run) = orphaned(&url, policy).await;
        let engine = Engine::open(&url).register(payment(&calls, false, policy)).start().await.unwrap();
        assert_eq!(engine.client().run(run).result::<u32>().await.unwrap(), 2, "{policy}");
        end(&engine).await;
    }
}

/// The same effects inside a machine's step: a retry of the step does not repeat what is recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_has_effects_too() {
    let (charges, attempts) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (charging, attempting) = (charges.clone(), attempts.clone());
    let machine = Machine::<u32>::new("order")
        .step("charge", move |ctx, n: u32| {
            let (charging, attempting) = (charging.clone(), attempting.clone());
            async move {
                let charged: u32 =
                    ctx.effect("charge", async |_| Ok::<_, StepError>(charging.fetch_add(1, Ordering::SeqCst))).await?;
                if attempting.fetch_add(1, Ordering::SeqCst) < 2 {
                    return Err(StepError::new("not yet"));
                }
                Ok(done(&(n + charged)))
            }
        })
        .retry(RetryPolicy::exponential(1));
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("order", &40u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 40);
    assert_eq!((charges.load(Ordering::SeqCst), attempts.load(Ordering::SeqCst)), (1, 3));
    end(&engine).await;
}

/// JI-1, JI-5, JI-6, JI-9, JI-22: an operation that must not happen twice is refused when the workflow is planned and when
/// it is registered, unless a control matches it; one that a control blocks never takes place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsafe_operation_needs_a_control() {
    let calls = Arc::new(AtomicU32::new(0));
    let wipe = |controls: &[Control]| {
        let calls = calls.clone();
        let function = Function::new("wipe", move |ctx: FnCtx, (): ()| {
            let calls = calls.clone();
            async move {
                let call = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst));
                ctx.effect("wipe", call).unsafe_once().await
            }
        });
        controls.iter().cloned().fold(function, Function::control)
    };
    let declared = wipe(&[]).operation("wipe", Policy::UnsafeOnce);
    let refused = declared.plan().unwrap_err();
    assert!(matches!(refused, PlanError::RequiresControl { operation } if operation.name == "wipe"));
    let refused = Engine::open("memory:").register(declared).start().await.err().unwrap();
    assert!(refused.to_string().contains("unsafe_once_requires_control"), "{refused}");
    let named = [Control::allow().named("wipe")];
    assert_eq!(wipe(&named).operation("wipe", Policy::UnsafeOnce).plan().unwrap().operations.len(), 1);
    for (controls, code) in [
        (&[][..], Some("unsafe_once_requires_control")),
        (&[Control::block()], Some("blocked_by_control")),
        (&named, None),
    ] {
        let engine = Engine::open("memory:").register(wipe(controls)).start().await.unwrap();
        let run = engine.client().start("wipe", &()).await.unwrap();
        match (run.result::<u32>().await, code) {
            (Err(ClientError::RunFailed { error, .. }), Some(code)) => assert_eq!(&*error.code, code),
            (Ok(0), None) => {}
            (other, _) => panic!("expected {code:?}, found {other:?}"),
        }
        end(&engine).await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
