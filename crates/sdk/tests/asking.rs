//! Asking a run from outside: its state.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use abide::testing::TestEngine;
use abide::{ClientError, Engine, Fact, Failure, FnCtx, Function, Machine, Refusal, StepError, await_signal, done};
use tokio::sync::Notify;

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
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
