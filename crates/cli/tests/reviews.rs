//! Effects under review on the command line: what is to be approved, by whom, and what became of it.

mod shop;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{Control, Engine, Failure, FnCtx, Function, StepError};
use serde_json::json;
use shop::Shop;

fn refund(calls: &Arc<AtomicU32>) -> Function {
    let calls = calls.clone();
    Function::new("refund", move |ctx: FnCtx, amount: u32| {
        let calls = calls.clone();
        async move {
            let call = async |_| Ok::<_, StepError>(calls.fetch_add(1, Ordering::SeqCst));
            let wired = ctx.effect("wire", call).input(&amount).unsafe_once().await;
            Ok::<_, Failure>(wired.map_err(|error| error.to_string()))
        }
    })
    .control(Control::interrupt().named("wire").roles(&["finance"]))
}

/// Lets an engine bring the run to what it does next, and go.
async fn advance(shop: &Shop, calls: &Arc<AtomicU32>, run: &str, status: &str) {
    let engine = Engine::open(&shop.url()).register(refund(calls)).start().await.expect("an engine");
    shop.await_status(run, status);
    engine.stop(Duration::from_secs(5)).await;
}

/// JI-9, JI-20, JI-21, JI-22: a reviewer finds the operation with its input and key, and approves or rejects exactly that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reviewer_decides_from_the_command_line() {
    // One after the other: a process that is started meanwhile holds a store open for a moment that was just closed.
    approves().await;
    rejects().await;
}

/// Who approved, and why, is on the effect.
async fn approves() {
    let (shop, calls) = (Shop::new(), Arc::new(AtomicU32::new(0)));
    let run = shop.start("refund", &["--input", "5"]);
    advance(&shop, &calls, &run, "awaiting_decision").await;
    let listed = shop.abide(&["approval", "list", "--json"]).ok().json();
    let asked = &listed["approvals"][0];
    let id = asked["boundary"].as_str().expect("an id").to_owned();
    assert_eq!(asked["payload"]["input"], 5);
    assert_eq!((&asked["payload"]["operation"], &asked["payload"]["policy"]), (&json!("wire"), &json!("unsafe_once")));
    let shown = shop.abide(&["approval", "show", &id]).ok().out;
    assert!(shown.contains("wire#review") && shown.contains("idempotency_key"), "{shown}");
    let told = shop.abide(&["run", "explain", &run]).ok().out;
    assert!(told.contains("a review of effect \"wire\"") && told.contains("--role finance"), "{told}");
    let other = id.replace(".1", ".2");
    let wrong = shop.abide(&["approval", "approve", &other, "--as", "ada", "--role", "finance"]);
    assert!(wrong.code == 1 && wrong.err.contains("code: stale_boundary"), "{wrong:?}");
    shop.abide(&["approval", "approve", &id, "--as", "ada", "--role", "finance", "--note", "seen"]).ok();
    let twice = shop.abide(&["approval", "approve", &id, "--as", "bob", "--role", "finance"]);
    assert!(twice.code == 1 && twice.err.contains("code: already_decided"), "{twice:?}");
    advance(&shop, &calls, &run, "done").await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let effect = shop.abide(&["effect", "show", &run, "wire", "--json"]).ok().json();
    let approval = &effect["approval"];
    assert_eq!((&approval["actor"], &approval["note"]), (&json!("ada"), &json!("seen")));
    assert_eq!((&approval["interrupt"], &effect["doubt"]), (&json!(id), &json!(null)));
    assert_eq!(effect["idempotency_key"], asked["payload"]["idempotency_key"]);
    let text = shop.abide(&["effect", "show", &run, "wire"]).ok().out;
    assert!(text.contains("approved by") && text.contains("ada") && text.contains("seen"), "{text}");
    let history = shop.abide(&["run", "history", &run]).ok().out;
    assert!(history.contains("effect wire begins (unsafe_once, approved by ada)"), "{history}");
}

/// A reviewer who says no is named in what the run came to.
async fn rejects() {
    let (shop, calls) = (Shop::new(), Arc::new(AtomicU32::new(0)));
    let run = shop.start("refund", &["--input", "5"]);
    advance(&shop, &calls, &run, "awaiting_decision").await;
    let id = shop.abide(&["run", "show", &run, "--json"]).ok().json()["boundary"].as_str().expect("an id").to_owned();
    shop.abide(&["approval", "reject", &id, "--as", "bob", "--role", "finance", "--note", "too much"]).ok();
    advance(&shop, &calls, &run, "done").await;
    let shown = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    assert_eq!(shown["result"], json!({"Err": "rejected: effect \"wire\" was rejected by bob: too much"}));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}
