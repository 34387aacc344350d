//! What cannot be recorded: the code or a person is told what it is, at once, and nothing is called because of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::testing::{Side, TestEngine};
use abide::{Control, Failure, FnCtx, Function, Policy, RetryPolicy, Status, StepError, days};

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

/// AB-5, D35: a name that is too long, and a child that cannot be started, are errors that the code gets, before anything is called.
#[test]
fn the_code_is_told_what_cannot_be_recorded() {
    let calls = Arc::new(AtomicU32::new(0));
    let called = calls.clone();
    let code = move |ctx: FnCtx, (): ()| {
        let called = called.clone();
        async move {
            let call = async |_| Ok::<_, StepError>(called.fetch_add(1, Ordering::SeqCst));
            let long = ctx.scope("s").effect(&"x".repeat(1_000), call).await.unwrap_err();
            let huge = ctx.child::<(), _>("kid", "kid", &"y".repeat(5 << 20)).await.unwrap_err();
            let unnamed = ctx.child::<(), _>("kid", "", &()).await.unwrap_err();
            Ok::<_, Failure>([long, huge, unnamed].map(|error| error.to_string()))
        }
    };
    let engine = TestEngine::new().register(Function::new("f", code));
    let [long, huge, unnamed] = engine.start("f", &()).result::<[String; 3]>().unwrap();
    assert!(long.starts_with("bad_name: ") && long.ends_with("1 to 980 bytes without '#', found 1002 bytes"), "{long}");
    assert!(huge.starts_with("too_large: child \"kid\": input is too large: at most 4194304"), "{huge}");
    assert!(unnamed.starts_with("invalid: child \"kid\": workflow: expected a name"), "{unnamed}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// AB-5: what only the shard finds is set aside at the first attempt, with what it is.
#[test]
fn an_attempt_that_cannot_be_recorded_is_set_aside() {
    let code = async |ctx: FnCtx, (): ()| ctx.signal::<()>(&"x".repeat(300)).await;
    let engine = TestEngine::new().register(Function::new("f", code));
    let run = engine.start("f", &());
    engine.settle();
    assert_eq!((run.status(), run.show().cursors[0].reclaims), (Status::DeadLettered, 0));
    let why = run.why();
    assert!(why.contains("cannot be recorded: signal name is too large: at most 200, found 300"), "{why}");
}

/// AB-5: a recorded value that does not decode any more is named with its effect.
#[test]
fn what_does_not_decode_is_named() {
    let old = Function::new("f", async |ctx: FnCtx, (): ()| {
        let n: u32 = ctx.effect("count", |_| ok(1)).await?;
        ctx.sleep(days(1)).await?;
        Ok::<_, Failure>(n.to_string())
    });
    let new = Function::new("f", async |ctx: FnCtx, (): ()| ctx.effect("count", |_| ok(String::new())).await);
    let engine = TestEngine::new().register(old);
    let run = engine.start("f", &());
    engine.deploy(new);
    let failed = run.result::<String>().unwrap_err().to_string();
    assert!(failed.contains("what is recorded at \"count\" does not decode as alloc::string::String"), "{failed}");
}

/// JI-19, JI-20: a retry policy that an edit brings is not for an effect that is recorded as one that must not happen twice.
#[test]
fn an_edit_does_not_repeat_what_must_not_happen_twice() {
    let code = |policy: Policy, retry: Option<RetryPolicy>| {
        let code = move |ctx: FnCtx, (): ()| async move {
            let wire = ctx.effect("wire", async |_| Err::<u32, _>(StepError::new("no line"))).policy(policy);
            let wire = retry.into_iter().fold(wire, |wire, retry| wire.retry(retry));
            wire.await
        };
        Function::new("f", code).control(Control::allow())
    };
    let engine = TestEngine::new().register(code(Policy::UnsafeOnce, None));
    engine.crash_at_append(1, Side::After);
    let run = engine.start("f", &());
    engine.settle();
    assert_eq!(run.status(), Status::InDoubt);
    engine.deploy(code(Policy::Idempotent, Some(RetryPolicy::exponential(1_000))));
    let wire = engine.operation("wire").fails(StepError::new("no line"));
    run.resolve_retry("wire");
    let failed = run.result::<u32>().unwrap_err().to_string();
    assert!(failed.ends_with("ended as failed: error: no line"), "{failed}");
    assert_eq!(wire.calls(), 1);
}
