//! Changing verbs, when nobody holds the store.

mod shop;

use std::time::Duration;

use abide::{Engine, Machine, done, stop};
use serde_json::{Value, json};
use shop::Shop;

/// A run started without its code pins name and version; the definition is pinned at the first claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_started_without_its_code_and_signalled_before_it_begins() {
    let shop = Shop::new();
    std::fs::write(shop.dir().join("order.json"), r#"{"n": 17}"#).unwrap();
    let started = shop.abide(&["run", "start", "waits", "--input-file", "order.json", "--key", "order-17"]).ok();
    let run = started.out.trim();
    assert!(started.err.contains("made a new store"), "{started:?}");
    let shown = shop.abide(&["run", "show", run, "--json"]).ok().json();
    assert_eq!(shown["record"]["started"]["spec"]["version"], 1);
    assert_eq!(shown["record"]["fingerprint"], Value::Null);
    assert_eq!(shown["state"], json!({"n": 17}));
    for (again, duplicate) in [(false, false), (true, true)] {
        let signal = ["run", "signal", run, "paid", "--payload", "[5]", "--dedup", "evt-9", "--json"];
        assert_eq!(shop.abide(&signal).ok().json()["duplicate"], duplicate, "again: {again}");
    }
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().run(run.parse().unwrap());
    assert_eq!(run.result::<Value>().await.unwrap(), json!([5]));
    let shown = shop.abide(&["run", "show", &run.id().to_string(), "--json"]).ok().json();
    assert!(shown["record"]["fingerprint"].is_string());
    engine.stop(Duration::from_secs(5)).await;
}

#[test]
fn a_key_is_rejected_or_reused() {
    let shop = Shop::new();
    let run = shop.start("greet", &["--input", "1", "--key", "k"]);
    let taken = shop.abide(&["run", "start", "greet", "--input", "1", "--key", "k"]);
    assert_eq!(taken.code, 1);
    assert!(taken.err.contains(&run) && taken.err.contains("code: key_taken"), "{taken:?}");
    let reuse = ["run", "start", "greet", "--key", "k", "--on-conflict", "reuse", "--json", "--input"];
    let same = shop.abide(&[&reuse[..], &["1"]].concat()).ok().json();
    assert_eq!(same, json!({"run": run, "admission": "reused"}));
    let other = shop.abide(&[&reuse[..], &["2"]].concat());
    assert_eq!(other.code, 1);
    assert!(other.err.contains("other_input"), "{other:?}");
}

/// A start whose answer was lost is sent again with the same request, and is the same run.
#[test]
fn the_same_request_gets_the_same_run() {
    let shop = Shop::new();
    let request = "req_019f0000000000000000000000000001";
    let one = shop.start("greet", &["--request", request]);
    assert_eq!(shop.start("greet", &["--request", request]), one);
    assert_eq!(shop.abide(&["run", "list"]).ok().out.lines().count(), 1);
}

#[test]
fn waiting_ends_with_the_run_or_in_time() {
    let shop = Shop::new();
    let late = shop.abide(&["run", "start", "ends", "--wait", "--timeout", "50ms"]);
    assert_eq!(late.code, 5, "{late:?}");
    assert!(late.err.contains("code: timeout") && late.err.contains("abide run explain"), "{late:?}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (input, code, out) in [("7", 0, "7\n"), ("0", 4, "")] {
        let shop = Shop::new();
        let waiting = std::thread::scope(|scope| {
            let asked = scope.spawn(|| shop.abide(&["run", "start", "ends", "--wait", "--input", input]));
            // The one who waits lets the store go; then an engine can have it.
            let engine = shop::eventually(|| {
                let ends = Machine::<u32>::new("ends").step("end", async |_, n: u32| {
                    let failed = abide::StepError::new("there is nothing").code("empty");
                    Ok(if n > 0 { done(&n) } else { stop(failed) })
                });
                let started = shop.abide(&["run", "list", "--workflow", "ends", "--status", "runnable"]);
                let waits = started.code == 0 && started.out.lines().count() >= 1;
                let opened = || runtime.block_on(Engine::open(&shop.url()).register(ends).start()).ok();
                waits.then(opened).flatten()
            });
            let answer = asked.join().unwrap();
            runtime.block_on(engine.stop(Duration::from_secs(5)));
            answer
        });
        assert_eq!((waiting.code, waiting.out.as_str()), (code, out), "{waiting:?}");
        assert_eq!(code == 4, waiting.err.contains("empty: there is nothing"), "{waiting:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_takes_the_children_along_if_asked() {
    let shop = Shop::new();
    let parent = Machine::<Value>::new("parent")
        .step("ask", async |_, state: Value| {
            Ok(abide::spawn([abide::child("waits", &1), abide::child("waits", &2)], "end", state))
        })
        .step("end", async |_, state: Value| Ok(done(&state)));
    let engine = shop.engine().register(parent).start().await.unwrap();
    let run = engine.client().start("parent", &0).await.unwrap().id().to_string();
    shop.await_status(&run, "awaiting_children");
    let children = shop.abide(&["run", "list", "--parent", &run, "--json"]).ok().json();
    for child in children["runs"].as_array().unwrap() {
        shop.await_status(child["run"].as_str().unwrap(), "awaiting_signal");
    }
    engine.stop(Duration::from_secs(5)).await;
    shop.abide(&["run", "cancel", &run, "--cascade", "--reason", "ordered twice"]).ok();
    let listed = shop.abide(&["run", "list", "--status", "cancelled"]).ok().out;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let history = shop.abide(&["run", "history", &run]).ok().out;
    assert!(history.contains("ended as cancelled: cancelled: ordered twice"), "{history}");
    shop.abide(&["run", "purge", &run, "--yes"]).ok();
    assert_eq!(shop.abide(&["run", "show", &run]).code, 3);
    assert_eq!(shop.abide(&["run", "list"]).ok().out.lines().count(), 2);
    shop.abide(&["store", "check"]).ok();
}

/// D1: the history goes, the run stays, the store is sound, and the story says where it begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_drops_the_history_and_keeps_the_run() {
    let shop = Shop::new();
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().start("waits", &7).await.unwrap().id().to_string();
    shop.await_status(&run, "awaiting_signal");
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);
    assert_eq!(shop.abide(&["run", "compact", &run]).code, 2, "it asks first");
    let before = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    shop.abide(&["run", "compact", &run, "--yes"]).ok();
    let again = shop.abide(&["run", "compact", &run, "--yes", "--json"]).ok().json();
    assert_eq!(again["compacted"], false);
    let history = shop.abide(&["run", "history", &run]).ok().out;
    assert_eq!(history.lines().count(), 1, "{history}");
    assert!(history.contains("the journal begins here: compacted at awaiting_signal with 7"), "{history}");
    let after = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    assert_eq!((&after["status"], &after["state"]), (&before["status"], &before["state"]));
    shop.abide(&["store", "check"]).ok();
    // The log alone is enough.
    shop.edit("UPDATE shard SET watermark = 0; DELETE FROM run");
    shop.abide(&["store", "migrate"]).ok();
    shop.abide(&["store", "check"]).ok();
    let engine = shop.engine().start().await.unwrap();
    let handle = engine.client().run(run.parse().unwrap());
    handle.signal("paid", &5).await.unwrap();
    assert_eq!(handle.result::<Value>().await.unwrap(), 5);
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);
    assert_eq!(shop.abide(&["run", "history", &run]).ok().out.lines().count(), 3);
    shop.abide(&["run", "purge", &run, "--yes"]).ok();
    shop.abide(&["store", "check"]).ok();
    let left = rusqlite::Connection::open(shop.path()).unwrap();
    let telling: i64 =
        left.query_row("SELECT count(*) FROM journal WHERE facts <> '[]'", [], |row| row.get(0)).unwrap();
    assert_eq!(telling, 1, "only that it was purged");
}
