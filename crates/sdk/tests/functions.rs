//! Functions: ordinary async code that survives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function, Machine, Policy, Status, StepError, done};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// A counter that the code of a workflow may keep.
fn counter() -> (Arc<AtomicU32>, Arc<AtomicU32>) {
    let counter = Arc::new(AtomicU32::new(0));
    (counter.clone(), counter)
}

async fn until(run: &abide::RunHandle, status: Status) {
    while run.show().await.unwrap().status() != status {
        tokio::task::yield_now().await;
    }
}

/// JI-12, JI-13: an effect is executed once, and a function that waited and was replayed gets its recorded result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_waits_and_is_replayed() {
    let (calls, inside) = counter();
    let greet = Function::new("greet", move |ctx: FnCtx, name: String| {
        let calls = inside.clone();
        async move {
            let number =
                ctx.effect("count", async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst) + 1)).await?;
            let word: String = ctx.signal("word").await?;
            ctx.sleep(Duration::from_millis(1)).await?;
            Ok(format!("{word} {name} {number}"))
        }
    });
    let engine = Engine::open("memory:").register(greet).start().await.unwrap();
    let run = engine.client().start("greet", "Ada").await.unwrap();
    until(&run, Status::AwaitingSignal).await;
    run.signal("word", "hello").await.unwrap();
    assert_eq!(run.result::<String>().await.unwrap(), "hello Ada 1");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    end(&engine).await;
}

/// BU-18, D29: an effect's key is the same over its attempts and differs from every other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_effect_is_begun_again_by_a_retry() {
    let (calls, inside) = counter();
    let flaky = Function::new("flaky", move |ctx: FnCtx, (): ()| {
        let calls = inside.clone();
        async move {
            let first: String = ctx.effect("one", async |call| Ok::<_, StepError>(call.key().to_owned())).await?;
            let second: String = ctx
                .effect("two", async |call: abide::Call| match calls.fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => Err(StepError::new("not yet")),
                    _ => Ok(call.key().to_owned()),
                })
                .await?;
            assert_ne!(first, second);
            Ok::<_, Failure>((first, second))
        }
    })
    .retry(abide::RetryPolicy::exponential(1));
    let engine = Engine::open("memory:").register(flaky).start().await.unwrap();
    let run = engine.client().start("flaky", &()).await.unwrap();
    let (first, second): (String, String) = run.result().await.unwrap();
    assert!(first.ends_with("/one") && second.ends_with("/two"), "{first} {second}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    end(&engine).await;
}

/// Children, joined by awaiting them; their errors are the parent's to answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_are_awaited() {
    let double = Function::new("double", async |_: FnCtx, n: u32| {
        if n == 13 { Err(StepError::new("unlucky").code("unlucky").terminal()) } else { Ok(2 * n) }
    });
    let sum = Function::new("sum", async |ctx: FnCtx, (): ()| {
        let one = ctx.child::<u32, _>("one", "double", &4u32).started().await?;
        let two: u32 = ctx.child("two", "double", &5u32).await?;
        let bad = ctx.child::<u32, _>("bad", "double", &13u32).await.unwrap_err();
        assert_eq!(&*bad.info().code, "unlucky");
        Ok::<_, Failure>(one.result().await? + two)
    });
    let engine = Engine::open("memory:").register(double).register(sum).start().await.unwrap();
    let run = engine.client().start("sum", &()).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 18);
    end(&engine).await;
}

/// A function that begins again keeps its run and forgets its ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_begins_again() {
    let count = Function::new("count", async |ctx: FnCtx, n: u32| {
        let next: u32 = ctx.effect("next", async |_| Ok::<_, StepError>(n + 1)).await?;
        if next < 5 { ctx.continue_as_new(&next) } else { Ok(next) }
    });
    let engine = Engine::open("memory:").register(count).start().await.unwrap();
    let run = engine.client().start("count", &0u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 5);
    assert_eq!(run.show().await.unwrap().continuations, 4);
    end(&engine).await;
}

/// The sentence about a run that waits for what the engine cannot see.
async fn set_aside(function: Function) -> String {
    let engine = Engine::open("memory:").register(function).start().await.unwrap();
    let run = engine.client().start("sleepy", &()).await.unwrap();
    until(&run, Status::DeadLettered).await;
    let sentence = run.explain().await.unwrap().sentence;
    end(&engine).await;
    sentence
}

/// AB-4: waiting for what the engine cannot see sets the run aside, and says where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_wait_is_reported() {
    let sleepy = Function::new("sleepy", async |ctx: FnCtx, (): ()| {
        ctx.effect("first", async |_| Ok::<_, StepError>(1)).await?;
        let (_never, hears) = tokio::sync::oneshot::channel::<()>();
        hears.await.map_err(Failure::new)
    });
    let sentence = set_aside(sleepy).await;
    assert!(sentence.contains("foreign_wait") && sentence.contains("functions.rs"), "{sentence}");
}

/// AB-4: a timer of the runtime cannot be made in code that is replayed, and so is noticed beside a durable wait too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_timer_beside_a_durable_wait_is_reported() {
    let sleepy = Function::new("sleepy", async |ctx: FnCtx, (): ()| {
        ctx.effect("first", async |_| Ok::<_, StepError>(1)).await?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(3600)) => Ok(()),
            paid = ctx.signal::<()>("paid").into_future() => paid,
        }
    });
    let sentence = set_aside(sleepy).await;
    assert!(sentence.contains("foreign_wait") && sentence.contains("\"first\""), "{sentence}");
}

/// AB-4: neither can a task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_made_in_workflow_code_is_reported() {
    let sleepy = Function::new("sleepy", async |_: FnCtx, (): ()| tokio::spawn(async {}).await.map_err(Failure::new));
    let sentence = set_aside(sleepy).await;
    assert!(sentence.contains("foreign_wait") && sentence.contains("before its first durable point"), "{sentence}");
}

/// AB-4: the calls of effects, and the steps of machines, may use timers and tasks as they like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_steps_are_inside_the_runtime() {
    let function = Function::new("function", async |ctx: FnCtx, (): ()| {
        let call = |_| {
            tokio::time::timeout(Duration::from_secs(60), async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                tokio::spawn(async { 7 }).await
            })
        };
        let told = ctx.effect("call", async |given| call(given).await.map_err(StepError::new)?.map_err(StepError::new));
        told.await
    });
    let machine = Machine::<u32>::new("machine").step("only", async |_, n: u32| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let more = tokio::spawn(async { 7 }).await.map_err(StepError::new)?;
        Ok(done(&(n + more)))
    });
    let engine = Engine::open("memory:").register(function).register(machine).start().await.unwrap();
    let function = engine.client().start("function", &()).await.unwrap();
    assert_eq!(function.result::<u32>().await.unwrap(), 7);
    let machine = engine.client().start("machine", &1u32).await.unwrap();
    assert_eq!(machine.result::<u32>().await.unwrap(), 8);
    end(&engine).await;
}

/// AB-5: a branch for every item, each known by its key; a wait in every branch, answered in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_mapped_at_once() {
    let (calls, inside) = counter();
    let fan = Function::new("fan", move |ctx: FnCtx, names: Vec<String>| {
        let calls = inside.clone();
        async move {
            let keyed = names.into_iter().map(|name| (name.clone(), name));
            ctx.map("name", keyed, |ctx, name: String| {
                let calls = calls.clone();
                async move {
                    let count = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst));
                    ctx.effect("count", count).await?;
                    let word: String = ctx.signal(&name).await?;
                    Ok(format!("{name}={word}"))
                }
            })
            .await
        }
    });
    let engine = Engine::open("memory:").register(fan).start().await.unwrap();
    let names = ["a", "b", "c"];
    let run = engine.client().start("fan", &names).await.unwrap();
    for name in ["b", "c", "a"] {
        until(&run, Status::AwaitingSignal).await;
        run.signal(name, name).await.unwrap();
    }
    assert_eq!(run.result::<Vec<String>>().await.unwrap(), ["a=a", "b=b", "c=c"]);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    end(&engine).await;
}

/// A race has one winner, and the same one in every replay: the timer ended first, and the signal came before the replay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_has_the_same_winner_in_every_replay() {
    let (calls, inside) = counter();
    let race = Function::new("race", move |ctx: FnCtx, (): ()| {
        let calls = inside.clone();
        async move {
            let (slow, quick) = (ctx.scope("slow"), ctx.scope("quick"));
            let (winner, _) = ctx
                .race([
                    Box::pin(async move { slow.signal::<()>("go").await }) as abide::Boxed<'_, Result<(), Failure>>,
                    Box::pin(async move { quick.sleep(Duration::from_millis(1)).await }),
                ])
                .await;
            let told = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst) + 1);
            ctx.effect(&format!("winner {winner}"), told).await?;
            ctx.signal::<()>("end").await?;
            Ok::<_, Failure>(winner)
        }
    });
    let engine = Engine::open("memory:").register(race).start().await.unwrap();
    let run = engine.client().start("race", &()).await.unwrap();
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    run.signal("go", &()).await.unwrap();
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result::<usize>().await.unwrap(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    end(&engine).await;
}

/// AB-5, G8: effects are matched by name. New ones before, removed and moved ones leave an open run intact; the same name
/// with another input sets the run aside and changes nothing, and the old code goes on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_may_change_under_an_open_run() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("edit.db").display());
    let (calls, _) = counter();
    let code = |names: &'static [&'static str], input: u32| {
        let calls = calls.clone();
        Function::new("edit", move |ctx: FnCtx, (): ()| {
            let calls = calls.clone();
            async move {
                for name in names {
                    let call = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst));
                    ctx.effect(name, call).input(&input).await?;
                }
                ctx.signal::<String>("go").await
            }
        })
    };
    let open = async |function: Function| Engine::open(&url).register(function).start().await.unwrap();
    let engine = open(code(&["a", "b", "c"], 1)).await;
    let run = engine.client().start("edit", &()).await.unwrap().id();
    until(&engine.client().run(run), Status::AwaitingSignal).await;
    end(&engine).await;
    let engine = open(code(&["a", "b", "c"], 2)).await;
    let edited = engine.client().run(run);
    edited.signal("go", "on").await.unwrap();
    until(&edited, Status::DeadLettered).await;
    let told = edited.explain().await.unwrap().sentence;
    assert!(told.contains("diverged") && told.contains("\"a\""), "{told}");
    end(&engine).await;
    let engine = open(code(&["new", "c", "a"], 1)).await;
    let edited = engine.client().run(run);
    edited.requeue().await.unwrap();
    assert_eq!(edited.result::<String>().await.unwrap(), "on");
    assert_eq!(calls.load(Ordering::SeqCst), 4, "only the new one was executed");
    end(&engine).await;
}

/// Ends are taken one at a time: of many branches that could go on, only the one whose turn it is gets polled. When all of
/// them were, a thousand branches cost a million polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_are_polled_when_it_is_their_turn() {
    const BRANCHES: u32 = 300;
    let (polls, inside) = counter();
    let fan = Function::new("fan", move |ctx: FnCtx, (): ()| {
        let polls = inside.clone();
        async move {
            let items = (0..BRANCHES).map(|number| (number, polls.clone()));
            let ended = ctx.map("item", items, |ctx, polls| async move {
                let mut one = Box::pin(ctx.effect("one", async |_| Ok::<_, StepError>(1)).into_future());
                std::future::poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::SeqCst);
                    one.as_mut().poll(cx)
                })
                .await
            });
            Ok::<u32, Failure>(ended.await?.into_iter().sum())
        }
    });
    let engine = Engine::open("memory:").register(fan).start().await.unwrap();
    let run = engine.client().start("fan", &()).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), BRANCHES);
    let polls = polls.load(Ordering::SeqCst);
    assert!(polls <= 4 * BRANCHES, "{BRANCHES} branches were polled {polls} times");
    end(&engine).await;
}

/// JI-3, D21: what an effect costs. The start and its claim are one commit; each result waits for its own, but for the last,
/// which rides with the end of the run. An effect that must be known to have begun adds one for the first: after that its
/// intent rides with the result before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_costs_a_commit() {
    const EFFECTS: u64 = 5;
    for (policy, commits) in [(Policy::Pure, 2), (Policy::Idempotent, EFFECTS + 1), (Policy::UnsafeOnce, EFFECTS + 2)] {
        let work = Function::new("work", move |ctx: FnCtx, (): ()| async move {
            for number in 0..EFFECTS {
                ctx.effect("one", async |_| Ok::<_, StepError>(number)).policy(policy).await?;
            }
            Ok::<_, Failure>(())
        })
        .control(abide::Control::allow());
        let engine = Engine::open("memory:").register(work).start().await.unwrap();
        let before = engine.metrics().store.commits;
        let run = engine.client().start("work", &()).await.unwrap();
        run.result::<()>().await.unwrap();
        assert_eq!(engine.metrics().store.commits - before, commits, "{policy}");
        assert_eq!(run.show().await.unwrap().rev.0, commits, "{policy}: one row in each");
        end(&engine).await;
    }
}
