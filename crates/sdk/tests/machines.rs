//! Machines through the public API: outcomes, errors, signals, children, keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{
    Admission, ClientError, Engine, EngineBuilder, Join, Machine, OnConflict, Refusal, RetryPolicy, Status, StepError,
    await_signal, child, continue_as_new, done, next, replay, sleep, spawn, stop,
};

const SOON: Duration = Duration::from_millis(1);

fn engine() -> EngineBuilder {
    Engine::open("memory:")
}

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// GD-8, GD-12, SQ-17: the engine is told once where facts are kept; a start needs nothing but its input.
#[tokio::test]
async fn a_run_goes_from_step_to_step() {
    let machine = Machine::<u32>::new("count").step("one", async |_, n: u32| Ok(next("two", n + 1))).step(
        "two",
        async |ctx, n: u32| {
            assert_eq!((ctx.step(), ctx.attempt(), ctx.workflow(), ctx.version()), ("two", 0, "count", 1));
            Ok(done(&(n + 1)))
        },
    );
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("count", &40u32).await.unwrap();
    assert_eq!(run.admission(), Admission::Created);
    assert_eq!(run.result::<u32>().await.unwrap(), 42);
    let shown = run.show().await.unwrap();
    assert_eq!(shown.status(), Status::Done);
    assert_eq!(shown.state.text(), "41", "done does not rewrite the state");
    end(&engine).await;
}

/// GD-9, GD-14, GD-15: the handler sees the attempt and decides.
#[tokio::test]
async fn the_error_handler_decides() {
    let machine = Machine::<u32>::new("shaky")
        .step("try", async |ctx, n: u32| {
            if ctx.attempt() == 1 {
                panic!("out of luck");
            }
            if ctx.attempt() < 3 {
                Err(StepError::new("again").code("unlucky"))
            } else {
                Ok(done(&(n + ctx.attempt())))
            }
        })
        .on_error(async |error, ctx, n: u32| {
            let expected = if ctx.attempt() == 1 { "panic" } else { "unlucky" };
            assert_eq!(&*error.info().code, expected);
            if ctx.attempt() < 5 { replay(n, SOON) } else { stop(error) }
        });
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("shaky", &0u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 3);
    end(&engine).await;
}

/// GD-16, GD-13, SQ-45: a handler that fails ends the run; the error is structured.
#[tokio::test]
async fn a_handler_that_panics_ends_the_run() {
    let machine = Machine::<u32>::new("hopeless")
        .step("try", async |_, _: u32| Err(StepError::new("no")))
        .on_error(async |_, _, _: u32| panic!("the handler is no better"));
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("hopeless", &0u32).await.unwrap();
    match run.result::<u32>().await {
        Err(ClientError::RunFailed { status: Status::Failed, error, .. }) => {
            assert_eq!((&*error.code, &*error.message), ("panic", "the handler is no better"));
        }
        other => panic!("expected a failed run, found {other:?}"),
    }
    end(&engine).await;
}

/// BU-17: without a handler the retry policy decides, then the run fails.
#[tokio::test]
async fn a_retry_policy_ends() {
    let tries = Arc::new(AtomicU32::new(0));
    let seen = tries.clone();
    let machine = Machine::<u32>::new("retried")
        .retry(RetryPolicy { retries_max: Some(2), ..RetryPolicy::exponential(1) })
        .step("try", move |_, _: u32| {
            seen.fetch_add(1, Ordering::Relaxed);
            async { Err(StepError::new("never")) }
        });
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("retried", &0u32).await.unwrap();
    assert!(matches!(run.result::<u32>().await, Err(ClientError::RunFailed { .. })));
    assert_eq!(tries.load(Ordering::Relaxed), 3);
    end(&engine).await;
}

/// GD-20, GD-22, GD-30: a signal wakes the step that awaits it, once per deduplication key.
#[tokio::test]
async fn a_signal_wakes_the_run() {
    let machine = Machine::<u32>::new("order").step("pay", async |ctx, n: u32| match ctx.signal::<u32>("paid")? {
        None => Ok(await_signal("paid", n).deadline(Duration::from_secs(60))),
        Some(amount) => Ok(done(&(n + amount))),
    });
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("order", &1u32).await.unwrap();
    assert!(run.signal("other", &9u32).await.unwrap());
    assert!(run.signal("paid", &41u32).dedup("event-1").await.unwrap());
    assert_eq!(run.result::<u32>().await.unwrap(), 42);
    assert!(
        !run.signal("paid", &41u32).dedup("event-1").await.unwrap(),
        "the retry of an accepted signal gets its answer"
    );
    let refused = run.signal("paid", &1u32).dedup("event-2").await;
    assert!(matches!(refused, Err(ClientError::Refused(Refusal::RunOver { status: Status::Done, .. }))));
    end(&engine).await;
}

/// BU-44, SE-29: sleeping is durable and ends by itself.
#[tokio::test]
async fn a_sleep_ends() {
    let machine = Machine::<u32>::new("nap")
        .step("sleep", async |_, n: u32| Ok(sleep(SOON, n).then("wake")))
        .step("wake", async |_, n: u32| Ok(done(&n)));
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("nap", &7u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 7);
    end(&engine).await;
}

/// GD-11, GD-63, GD-64: children join, and a failed one releases its place.
#[tokio::test]
async fn children_join() {
    let leaf = Machine::<u32>::new("leaf").step("work", async |_, n: u32| {
        if n == 3 { Err(StepError::new("three is too many").terminal()) } else { Ok(done(&(n * 10))) }
    });
    let tree = Machine::<u32>::new("tree")
        .step(
            "fan",
            async |_, _| Ok(spawn((1..=3u32).map(|n| child("leaf", &n)), "join", 0u32).join(Join::AllTerminal)),
        )
        .step("join", async |ctx, _| {
            let mut sum = 0;
            let mut failed = 0;
            for child in ctx.children() {
                match child.status() {
                    Some(Status::Done) => sum += child.result::<u32>()?.unwrap_or(0),
                    Some(Status::Failed) => failed += child.error().map_or(0, |_| 1),
                    other => return Err(StepError::new(format!("a child is {other:?}")).terminal()),
                }
            }
            Ok(done(&(sum, failed)))
        });
    let engine = engine().register(leaf).register(tree).start().await.unwrap();
    let run = engine.client().start("tree", &0u32).await.unwrap();
    assert_eq!(run.result::<(u32, u32)>().await.unwrap(), (30, 1));
    end(&engine).await;
}

/// SQ-50, SQ-53: a child started inside a step is the same on every attempt.
#[tokio::test]
async fn a_child_inside_a_step_is_started_once() {
    let leaf = Machine::<u32>::new("leaf").step("work", async |_, n: u32| Ok(done(&n)));
    let parent = Machine::<Vec<String>>::new("parent").step("begin", async |ctx, mut seen: Vec<String>| {
        seen.push(ctx.start_child("leaf", "the-child", &5u32).await?.to_string());
        if ctx.attempt() < 2 { Ok(replay(seen, SOON)) } else { Ok(done(&seen)) }
    });
    let engine = engine().register(leaf).register(parent).start().await.unwrap();
    let run = engine.client().start("parent", &Vec::<String>::new()).await.unwrap();
    let seen: Vec<String> = run.result().await.unwrap();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|id| *id == seen[0]));
    let child = engine.client().run(seen[0].parse().unwrap());
    assert_eq!(child.result::<u32>().await.unwrap(), 5);
    end(&engine).await;
}

/// BU-5, BU-6, GD-44: created, reused, rejected.
#[tokio::test]
async fn a_key_admits_one_run() {
    let machine = Machine::<u32>::new("hold").step("wait", async |ctx, n: u32| match ctx.signal::<u32>("go")? {
        None => Ok(await_signal("go", n)),
        Some(_) => Ok(done(&n)),
    });
    let engine = engine().register(machine).start().await.unwrap();
    let client = engine.client();
    let first = client.start("hold", &1u32).key("k").await.unwrap();
    let again = client.start("hold", &1u32).key("k").on_conflict(OnConflict::Reuse).await.unwrap();
    assert_eq!((again.id(), again.admission()), (first.id(), Admission::Reused));
    for (input, on_conflict, expected) in
        [(2u32, OnConflict::Reuse, "other_input"), (1, OnConflict::Reject, "key_taken")]
    {
        match client.start("hold", &input).key("k").on_conflict(on_conflict).await.map(|run| run.id()) {
            Err(ClientError::Rejected { by, reason }) => assert_eq!((by, reason), (first.id(), expected)),
            other => panic!("expected a rejection, found {other:?}"),
        }
    }
    first.signal("go", &1u32).await.unwrap();
    first.result::<u32>().await.unwrap();
    let second = client.start("hold", &1u32).key("k").await.unwrap();
    assert_ne!(second.id(), first.id(), "the key is free when its run has ended");
    end(&engine).await;
}

/// GD-46: one answer each, duplicates caught among themselves.
#[tokio::test]
async fn many_starts_are_answered_one_by_one() {
    let machine = Machine::<u32>::new("hold").step("wait", async |_, n: u32| Ok(await_signal("go", n)));
    let engine = engine().register(machine).start().await.unwrap();
    let client = engine.client();
    let keys = ["a", "b", "a", "c"];
    let starts = keys.iter().map(|key| client.start("hold", &0u32).key(key));
    let answers = client.start_many(starts).await.unwrap();
    let created: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(created, [true, true, false, true]);
    end(&engine).await;
}

/// GD-51, D7: a run begins again with its identity and its inbox.
#[tokio::test]
async fn a_run_continues_as_new() {
    let machine = Machine::<u32>::new("loop").step("first", async |_, n: u32| Ok(next("second", n))).step(
        "second",
        async |_, n: u32| {
            if n < 3 { Ok(continue_as_new(n + 1)) } else { Ok(done(&n)) }
        },
    );
    let engine = engine().register(machine).start().await.unwrap();
    let run = engine.client().start("loop", &0u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 3);
    assert_eq!(run.show().await.unwrap().continuations, 3);
    end(&engine).await;
}

#[tokio::test]
async fn mistakes_are_named() {
    let machine = Machine::<u32>::new("typo")
        .step("first", async |_, n: u32| Ok(next("secnod", n)))
        .step("second", async |_, n: u32| Ok(done(&n)));
    let engine = engine().register(machine).start().await.unwrap();
    let client = engine.client();
    let run = client.start("typo", &0u32).await.unwrap();
    let error = run.result::<u32>().await.unwrap_err().to_string();
    assert!(error.contains("has no step \"secnod\"") && error.contains("first, second"), "{error}");
    let error = client.start("tpyo", &0u32).await.map(|run| run.id()).unwrap_err().to_string();
    assert!(error.contains("\"tpyo\"") && error.contains("typo v1"), "{error}");
    let run = client.start("typo", "not a number").await.unwrap();
    let error = run.result::<u32>().await.unwrap_err().to_string();
    assert!(error.contains("does not decode as u32"), "{error}");
    let missing = client.run(run.id().to_string().replace("run_0", "run_1").parse().unwrap());
    assert!(matches!(missing.show().await, Err(ClientError::Refused(Refusal::NotFound { .. }))));
    let error = run.signal("", &0u32).await.unwrap_err().to_string();
    assert!(error.contains("signal name"), "{error}");
    end(&engine).await;
}

#[tokio::test]
async fn a_machine_is_checked_before_it_runs() {
    let empty = engine().register(Machine::<u32>::new("empty")).start().await.map(|_| ()).unwrap_err();
    assert!(empty.to_string().contains("has no steps"), "{empty}");
    let step = async |_, n: u32| Ok(done(&n));
    let twice = Machine::<u32>::new("twice").step("a", step).step("a", step);
    let twice = engine().register(twice).start().await.map(|_| ()).unwrap_err();
    assert!(twice.to_string().contains("defined twice"), "{twice}");
    let versions =
        engine().register(Machine::<u32>::new("m").step("a", step)).register(Machine::<u32>::new("m").step("a", step));
    let versions = versions.start().await.map(|_| ()).unwrap_err();
    assert!(versions.to_string().contains("registered twice"), "{versions}");
    let url = Engine::open("sqlite").start().await.map(|_| ()).unwrap_err();
    assert!(url.to_string().contains("sqlite:abide.db"), "{url}");
}
