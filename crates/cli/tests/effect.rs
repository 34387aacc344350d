//! `abide effect …`: what took place, and what nobody knows.

mod shop;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{Control, Engine, Failure, FnCtx, Function, RunId, Status, StepError};
use shop::Shop;

/// A refund whose first call never returns.
fn refund(calls: &Arc<AtomicU32>) -> Function {
    let calls = calls.clone();
    Function::new("refund", move |ctx: FnCtx, (): ()| {
        let calls = calls.clone();
        async move {
            ctx.effect("note", async |_| Ok::<_, StepError>("noted".to_owned())).await?;
            let call = async |_| {
                if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, StepError>("re_2".to_owned())
            };
            let id: String = ctx.effect("refund", call).unsafe_once().await?;
            Ok::<_, Failure>(id)
        }
    })
    .control(Control::allow().named("refund"))
}

/// A run whose refund was begun by a process that is gone, and that waits to be told what became of it.
async fn doubted(shop: &Shop, calls: &Arc<AtomicU32>) -> RunId {
    let engine = Engine::open(&shop.url()).register(refund(calls)).start().await.expect("an engine");
    let run = engine.client().start("refund", &()).await.expect("a run").id();
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    engine.stop(Duration::ZERO).await;
    let engine = Engine::open(&shop.url()).register(refund(calls)).start().await.expect("an engine");
    let waiting = engine.client().run(run);
    while waiting.show().await.expect("a run").status() != Status::InDoubt {
        tokio::task::yield_now().await;
    }
    engine.stop(Duration::from_secs(5)).await;
    run
}

async fn result(shop: &Shop, calls: &Arc<AtomicU32>, run: RunId) -> String {
    let engine = Engine::open(&shop.url()).register(refund(calls)).start().await.expect("an engine");
    let result = engine.client().run(run).result::<String>().await.expect("a result");
    engine.stop(Duration::from_secs(5)).await;
    result
}

/// AB-6, JI-25, JI-26: effects in doubt are listed and shown, and a recorded result lets the run go on without a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_in_doubt_is_listed_and_resolved() {
    let (shop, calls) = (Shop::new(), Arc::new(AtomicU32::new(0)));
    let run = doubted(&shop, &calls).await;
    let id = run.to_string();
    let listed = shop.abide(&["effect", "list", "--json"]).ok().json();
    assert_eq!(listed["effects"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["effects"][0]["standing"], "in_doubt");
    let all = shop.abide(&["effect", "list", &id]).ok().out;
    assert!(all.contains("note") && all.contains("committed") && all.contains("in_doubt"), "{all}");
    let shown = shop.abide(&["effect", "show", &id, "refund", "--json"]).ok().json();
    let key = shown["idempotency_key"].as_str().expect("a key");
    assert!(key.starts_with(&id) && key.ends_with("/refund"), "{key}");
    let told = shop.abide(&["run", "explain", &id]).ok().out;
    assert!(told.contains("abide effect resolve"), "{told}");
    let missing = shop.abide(&["effect", "show", &id, "refnd"]);
    assert!(missing.code == 3 && missing.err.contains("it has: note, refund"), "{missing:?}");
    let none = shop.abide(&["effect", "resolve", &id, "refund"]);
    assert_eq!(none.code, 2, "{none:?}");
    let done = shop.abide(&["effect", "resolve", &id, "note", "--retry"]);
    assert!(done.code == 1 && done.err.contains("committed, not in doubt"), "{done:?}");
    shop.abide(&["effect", "resolve", &id, "refund", "--result", "\"re_1\"", "--actor", "ada", "--note", "seen"]).ok();
    let history = shop.abide(&["run", "history", &id]).ok().out;
    assert!(history.contains("ada says that refund took place"), "{history}");
    assert_eq!(result(&shop, &calls, run).await, "re_1");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// JI-20, JI-21: one retry, of exactly the interrupt that is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_allowed_once() {
    let (shop, calls) = (Shop::new(), Arc::new(AtomicU32::new(0)));
    let run = doubted(&shop, &calls).await;
    let id = run.to_string();
    let wrong = shop.abide(&["effect", "resolve", &id, "refund", "--retry", "--interrupt", "77"]);
    assert!(wrong.code == 1 && wrong.err.contains("interrupt 77"), "{wrong:?}");
    shop.abide(&["effect", "resolve", &id, "refund", "--retry"]).ok();
    assert_eq!(result(&shop, &calls, run).await, "re_2");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}
