//! Asking a run from outside: its state, and updates with an answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::testing::{Side, TestEngine, crash_everywhere};
use abide::{
    Boxed, ClientError, Engine, Fact, Failure, FnCtx, Function, Machine, Refusal, RetryPolicy, RunHandle, Status,
    StepError, await_signal, days, done, hours,
};
use tokio::sync::Notify;

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

async fn until(run: &RunHandle, status: Status) {
    while run.show().await.unwrap().status() != status {
        tokio::task::yield_now().await;
    }
}

/// What the journal of a run says that it published.
fn published(run: &abide::testing::TestRun) -> Vec<String> {
    let rows = run.journal();
    let facts = rows.iter().flat_map(|row| &row.facts);
    facts
        .filter_map(|fact| match fact {
            Fact::Published(published) => Some(published.state.text().to_owned()),
            _ => None,
        })
        .collect()
}

/// A function that says where it is: two states before each wait, of which only the last counts.
fn stages() -> Function {
    Function::new("stages", async |ctx: FnCtx, input: String| {
        for stage in ["packed", "sent"] {
            ctx.set_state(&format!("{input}: about to be {stage}"))?;
            ctx.effect(stage, async |_| Ok::<_, StepError>(())).await?;
            ctx.set_state("nobody sees this")?;
            ctx.set_state(&format!("{input} {stage}"))?;
            ctx.signal::<()>("checked").await?;
            ctx.signal::<()>("next").await?;
        }
        ctx.set_state("done")?;
        Ok::<_, Failure>(())
    })
}

/// AB-14: what a function sets is seen from outside and survives; a replay, which sets it all again, writes nothing.
#[test]
fn a_state_is_seen_from_outside_and_written_once() {
    let engine = TestEngine::new().register(stages());
    let run = engine.start("stages", "book");
    assert_eq!(run.state::<String>(), "book packed");
    engine.lose_checkpoints();
    run.signal("checked", &());
    assert_eq!(run.state::<String>(), "book packed");
    run.signal("next", &());
    assert_eq!(run.state::<String>(), "book sent");
    engine.restart();
    let rev = run.show().rev;
    assert_eq!(run.state::<String>(), "book sent");
    assert_eq!(run.show().rev, rev, "reading wakes nobody");
    run.signal("checked", &()).signal("next", &());
    run.result::<()>().unwrap();
    assert_eq!(run.state::<String>(), "done");
    let told = published(&run);
    let stages = ["book: about to be packed", "book packed", "book: about to be sent", "book sent", "done"];
    assert_eq!(told, stages.map(|stage| format!("{stage:?}")));
}

/// AB-14: the state that was set before an effect is there while the effect executes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_there_while_an_effect_executes() {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let upload = Function::new("upload", move |ctx: FnCtx, (): ()| {
        let (begins, goes) = (begins.clone(), goes.clone());
        async move {
            ctx.set_state("uploading")?;
            let call = async |_| {
                begins.notify_one();
                goes.notified().await;
                Ok::<_, StepError>(())
            };
            ctx.effect("upload", call).await
        }
    });
    let engine = Engine::open("memory:").register(upload).start().await.unwrap();
    let run = engine.client().start("upload", &()).await.unwrap();
    begun.notified().await;
    assert_eq!(run.state::<String>().await.unwrap(), "uploading");
    go.notify_one();
    run.result::<()>().await.unwrap();
    end(&engine).await;
}

/// AB-14: a machine shows what its next step is given; a function that has set nothing shows its input; a state of another
/// shape is an error that says so.
#[test]
fn every_run_has_a_state() {
    let waits = Machine::<u32>::new("waits").step("wait", async |ctx, n: u32| match ctx.signal::<u32>("go")? {
        None => Ok(await_signal("go", n + 1)),
        Some(more) => Ok(done(&(n + more))),
    });
    let silent = Function::new("silent", async |ctx: FnCtx, _: String| ctx.signal::<u32>("go").await);
    let again = Function::new("again", async |ctx: FnCtx, n: u32| {
        if n == 0 {
            ctx.set_state(&[1, 2])?;
            return ctx.continue_as_new(&1);
        }
        ctx.signal::<u32>("go").await
    });
    let engine = TestEngine::new().register(waits).register(silent).register(again);
    assert_eq!(engine.start("waits", &4u32).state::<u32>(), 5);
    let silent = engine.start("silent", "input");
    assert_eq!(silent.state::<String>(), "input");
    assert_eq!(engine.start("again", &0u32).state::<Vec<u32>>(), [1, 2], "a new beginning keeps it");
    let client = engine.client();
    let read = async move |run| client.run(run).state::<u32>().await;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let wrong = runtime.block_on(read(silent.id())).unwrap_err();
    let text = wrong.to_string();
    assert!(matches!(wrong, ClientError::Codec { .. }) && text.contains("has set none"), "{text}");
    let missing = runtime.block_on(engine.client().run(abide::RunId(7)).state::<u32>()).unwrap_err();
    assert!(matches!(missing, ClientError::Refused(Refusal::NotFound { .. })), "{missing}");
}

/// AB-14: a state that cannot be kept is an error for the code, and nothing is written.
#[test]
fn a_state_that_cannot_be_kept_is_refused() {
    let large = Function::new("large", async |ctx: FnCtx, (): ()| {
        let refused = ctx.set_state(&"x".repeat(5_000_000)).unwrap_err();
        let map = std::collections::BTreeMap::from([((1, 2), 3)]);
        let unencodable = ctx.set_state(&map).unwrap_err();
        Ok::<_, Failure>((refused.info().code.to_string(), unencodable.info().code.to_string()))
    });
    let engine = TestEngine::new().register(large);
    let run = engine.start("large", &());
    let codes: (String, String) = run.result().unwrap();
    assert_eq!(codes, ("too_large".to_owned(), "unencodable".to_owned()));
    assert!(published(&run).is_empty());
}

/// An account: deposits are recorded in an effect and answered with the balance, until someone closes it.
fn account(calls: &Arc<AtomicU32>) -> Function {
    let calls = calls.clone();
    Function::new("account", move |ctx: FnCtx, mut balance: i64| {
        let calls = calls.clone();
        async move {
            loop {
                ctx.set_state(&balance)?;
                let asked = ctx.update::<i64>("deposit").await?;
                let amount = *asked.input();
                if amount == 0 {
                    asked.answer(&balance)?;
                    return Ok::<_, Failure>(balance);
                }
                if balance + amount < 0 {
                    asked.reject("not enough");
                    continue;
                }
                let booked = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst) + 1);
                ctx.effect("book", booked).await?;
                ctx.sleep(hours(1)).await?;
                balance += amount;
                asked.answer(&balance)?;
            }
        }
    })
}

/// AB-14: updates are taken one at a time and in order, each gets its answer, and the answer is there after the end.
#[test]
fn updates_are_answered_in_order() {
    let engine = TestEngine::new().register(account(&Arc::default()));
    let run = engine.start("account", &10i64);
    assert_eq!(run.update::<i64, _>("deposit", &5).unwrap(), 15);
    let rejected = run.update::<i64, _>("deposit", &-100).unwrap_err();
    assert!(matches!(&rejected, ClientError::UpdateRejected { error, .. } if &*error.message == "not enough"));
    assert_eq!(run.state::<i64>(), 15);
    assert_eq!(run.update::<i64, _>("deposit", &1).unwrap(), 16);
    assert_eq!(run.update::<i64, _>("deposit", &0).unwrap(), 16);
    assert_eq!(run.result::<i64>().unwrap(), 16);
    assert_eq!(engine.elapsed(), hours(2));
}

/// AB-14: killed before and after every append between the question and the answer, the run answers once, and the caller
/// gets that answer.
#[test]
fn a_crash_anywhere_loses_neither_question_nor_answer() {
    for loses_checkpoints in [false, true] {
        let mut crashes = 0;
        for point in 0..40 {
            for side in [Side::Before, Side::After] {
                let calls: Arc<AtomicU32> = Arc::default();
                let engine = TestEngine::new().register(account(&calls));
                let run = engine.start("account", &10i64);
                engine.crash_at_append(point, side);
                let answer = run.update::<i64, _>("deposit", &5);
                if loses_checkpoints {
                    engine.lose_checkpoints();
                }
                assert_eq!(answer.unwrap(), 15, "{point} {side:?}");
                assert_eq!(run.update::<i64, _>("deposit", &0).unwrap(), 15, "{point} {side:?}");
                let shown = run.show();
                assert_eq!((shown.updates.len(), shown.status()), (2, Status::Done), "{point} {side:?}");
                crashes += u32::from(calls.load(Ordering::SeqCst) > 1);
                let answered = run.journal().iter().flat_map(|row| row.facts.clone()).collect::<Vec<Fact>>();
                let answers = answered.iter().filter(|fact| matches!(fact, Fact::Answered(_))).count();
                assert_eq!(answers, 2, "{point} {side:?}: each is answered once");
            }
        }
        assert!(crashes > 0, "one of them was killed inside of its effect");
    }
}

/// AB-3, AB-14: a function that takes updates can be killed everywhere, too.
#[test]
fn a_function_that_takes_updates_is_killed_everywhere() {
    let report =
        crash_everywhere(|| account(&Arc::default()), &10i64).update("deposit", &5).update("deposit", &0).run();
    report.assert_ok();
    assert!(report.undisturbed.contains("15") && report.points > 5, "{report}");
}

/// AB-14: whoever asks again with the same key gets the recorded answer: at once, after the end, and after a restart. The
/// key is for one question only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_gets_the_same_answer() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("keys.db").display());
    let once = || {
        Function::new("once", async |ctx: FnCtx, (): ()| {
            let asked = ctx.update::<u32>("double").await?;
            let answer = asked.input() * 2;
            asked.answer(&answer)?;
            ctx.signal::<()>("end").await
        })
    };
    let engine = Engine::open(&url).register(once()).start().await.unwrap();
    let run = engine.client().start("once", &()).await.unwrap();
    let first: u32 = run.update("double", &4u32).dedup("a").await.unwrap();
    assert_eq!(first, 8);
    assert_eq!(run.update::<u32, _>("double", &4u32).dedup("a").await.unwrap(), 8);
    assert!(!run.update::<u32, _>("double", &4u32).dedup("a").accepted().await.unwrap(), "it was accepted before");
    for (name, input) in [("double", 5u32), ("halve", 4)] {
        let other = run.update::<u32, _>(name, &input).dedup("a").await.unwrap_err();
        assert!(matches!(&other, ClientError::Refused(Refusal::Invalid { .. })), "{other}");
    }
    run.signal("end", &()).await.unwrap();
    run.result::<()>().await.unwrap();
    let id = run.id();
    end(&engine).await;
    drop(run);
    let engine = Engine::open(&url).register(once()).start().await.unwrap();
    let run = engine.client().run(id);
    assert_eq!(run.update::<u32, _>("double", &4u32).dedup("a").await.unwrap(), 8);
    let wrong = run.update::<String, _>("double", &4u32).dedup("a").await.unwrap_err();
    assert!(matches!(&wrong, ClientError::Codec { .. }), "{wrong}");
    let late = run.update::<u32, _>("double", &4u32).await.unwrap_err();
    assert!(matches!(&late, ClientError::Refused(Refusal::RunOver { .. })), "{late}");
    end(&engine).await;
}

/// AB-14: many callers at once, on real threads: each gets the answer to its own question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_gets_its_own_answer() {
    const CALLERS: u32 = 50;
    let square = Function::new("square", async |ctx: FnCtx, (): ()| {
        for _ in 0..CALLERS {
            let asked = ctx.update::<u32>("square").await?;
            let answer = asked.input() * asked.input();
            asked.answer(&answer)?;
        }
        Ok::<_, Failure>(())
    });
    let engine = Engine::open("memory:").register(square).start().await.unwrap();
    let run = engine.client().start("square", &()).await.unwrap();
    let ask = |n: u32| {
        let run = run.clone();
        tokio::spawn(async move { run.update::<u32, _>("square", &n).await.unwrap() })
    };
    let asked: Vec<_> = (0..CALLERS).map(ask).collect();
    for (n, answer) in (0..CALLERS).zip(asked) {
        assert_eq!(answer.await.unwrap(), n * n);
    }
    run.result::<()>().await.unwrap();
    end(&engine).await;
}

/// AB-14: wrong doors have names: no such run, a machine, a run that ends without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_cannot_be_answered_is_told_why() {
    let machine = Machine::<u32>::new("machine").step("wait", async |_, n: u32| Ok(await_signal("go", n)));
    let deaf = Function::new("deaf", async |ctx: FnCtx, (): ()| ctx.signal::<()>("end").await);
    let engine = Engine::open("memory:").register(machine).register(deaf).start().await.unwrap();
    let client = engine.client();
    let missing = client.run(abide::RunId(7)).update::<u32, _>("go", &1).await.unwrap_err();
    assert!(matches!(missing, ClientError::Refused(Refusal::NotFound { .. })), "{missing}");
    let machine = client.start("machine", &1u32).await.unwrap();
    let wrong = machine.update::<u32, _>("go", &1).await.unwrap_err();
    assert!(matches!(wrong, ClientError::NoUpdates { .. }), "{wrong}");
    assert!(wrong.to_string().contains("send it a signal"), "{wrong}");
    assert!(machine.show().await.unwrap().updates.is_empty(), "nothing was written");
    let deaf = client.start("deaf", &()).await.unwrap();
    until(&deaf, Status::AwaitingSignal).await;
    let asks = deaf.update::<u32, _>("go", &1).dedup("k");
    let asking = tokio::spawn(asks.into_future());
    while deaf.show().await.unwrap().updates.is_empty() {
        tokio::task::yield_now().await;
    }
    deaf.signal("end", &()).await.unwrap();
    let told = asking.await.unwrap().unwrap_err();
    assert!(matches!(told, ClientError::Refused(Refusal::Unanswered { .. })), "{told}");
    let again = deaf.update::<u32, _>("go", &1).dedup("k").await.unwrap_err();
    assert!(matches!(again, ClientError::Refused(Refusal::Unanswered { .. })), "{again}");
    end(&engine).await;
}

/// AB-14: a question that cannot be read is rejected by itself and harms nobody; a deploy that could read it does not bring
/// it back.
#[test]
fn what_cannot_be_read_is_rejected_and_the_wait_goes_on() {
    fn ages<T: serde::de::DeserializeOwned + serde::Serialize + Send + 'static>() -> Function {
        Function::new("ages", async |ctx: FnCtx, (): ()| {
            let asked = ctx.update::<T>("age").await?;
            let seen = serde_json::to_value(asked.input()).unwrap();
            asked.answer("noted")?;
            ctx.signal::<()>("end").await?;
            Ok::<_, Failure>(seen)
        })
    }
    let engine = TestEngine::new().register(ages::<u32>());
    let run = engine.start("ages", &());
    let unread = run.update::<String, _>("age", "old").unwrap_err();
    assert!(matches!(&unread, ClientError::UpdateRejected { error, .. } if &*error.code == "undecodable"), "{unread}");
    assert_eq!(run.status(), Status::AwaitingSignal);
    assert_eq!(run.update::<String, _>("age", &7).unwrap(), "noted");
    engine.deploy(ages::<serde_json::Value>());
    run.signal("end", &());
    assert_eq!(run.result::<u32>().unwrap(), 7);
}

/// AB-14: a wait with a deadline ends without a question; what comes later is for the next wait.
#[test]
fn a_wait_for_an_update_may_end_in_vain() {
    let patient = Function::new("patient", async |ctx: FnCtx, (): ()| {
        let mut days_waited = 0;
        loop {
            match ctx.update::<u32>("go").within(days(1)).await? {
                None => days_waited += 1,
                Some(asked) => {
                    asked.answer(&days_waited)?;
                    return Ok::<_, Failure>(days_waited);
                }
            }
        }
    });
    let engine = TestEngine::new().register(patient);
    let run = engine.start("patient", &());
    engine.advance(days(2) + hours(1));
    let unread = run.update::<u32, _>("go", "nonsense").unwrap_err();
    assert!(unread.to_string().contains("undecodable"), "{unread}");
    engine.advance(hours(23));
    assert_eq!(run.update::<u32, _>("go", &1).unwrap(), 3, "what cannot be read does not make the wait longer");
}

/// AB-14: a wait that lost a race does not swallow what comes: the next wait gets it.
#[test]
fn a_wait_that_lost_a_race_swallows_nothing() {
    let racing = Function::new("racing", async |ctx: FnCtx, (): ()| {
        let (asked, stop) = (ctx.scope("asked"), ctx.scope("stop"));
        let first = ctx
            .race([
                Box::pin(async move { asked.update::<u32>("go").await.map(|asked| *asked.input()) })
                    as Boxed<'_, Result<u32, Failure>>,
                Box::pin(async move { stop.signal::<u32>("skip").await }),
            ])
            .await;
        let asked = ctx.update::<u32>("go").await?;
        let answer = (first.1?, *asked.input());
        asked.answer(&answer)?;
        Ok::<_, Failure>(answer)
    });
    let engine = TestEngine::new().register(racing);
    let run = engine.start("racing", &());
    run.signal("skip", &1u32);
    engine.restart();
    assert_eq!(run.update::<(u32, u32), _>("go", &2).unwrap(), (1, 2));
}

/// AB-14: a function that fails after it was asked is tried again, and then answers what it was asked.
#[test]
fn a_retry_answers_what_the_attempt_before_was_asked() {
    let calls = Arc::new(AtomicU32::new(0));
    let inside = calls.clone();
    let flaky = Function::new("flaky", move |ctx: FnCtx, (): ()| {
        let calls = inside.clone();
        async move {
            let asked = ctx.update::<u32>("go").await?;
            let call = async |_| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(StepError::new("not yet")),
                _ => Ok(5u32),
            };
            let found = ctx.effect("find", call).await?;
            asked.answer(&found)?;
            Ok::<_, Failure>(())
        }
    })
    .retry(RetryPolicy::exponential(1_000));
    let engine = TestEngine::new().register(flaky);
    let run = engine.start("flaky", &());
    assert_eq!(run.update::<u32, _>("go", &1).unwrap(), 5);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    run.result::<()>().unwrap();
}

/// AB-14: a run that begins again without answering says so; what its code had not taken waits for the next life.
#[test]
fn a_new_beginning_answers_what_was_taken_and_keeps_the_rest() {
    let lives = Function::new("lives", async |ctx: FnCtx, life: u32| {
        let asked = ctx.update::<u32>("go").await?;
        if *asked.input() == 0 {
            return ctx.continue_as_new(&(life + 1));
        }
        asked.answer(&life)?;
        Ok::<_, Failure>(life)
    });
    let engine = TestEngine::new().register(lives);
    let run = engine.start("lives", &1u32);
    let dropped = run.update::<u32, _>("go", &0).unwrap_err();
    assert!(matches!(&dropped, ClientError::UpdateRejected { error, .. } if &*error.code == "unanswered"), "{dropped}");
    assert_eq!(run.update::<u32, _>("go", &1).unwrap(), 2);
}
