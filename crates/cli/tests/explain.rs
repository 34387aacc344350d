//! `run explain`: for a run that does not move, the reason, the evidence, and a line that would move it.

mod shop;

use std::time::Duration;

use abide::{Backoff, Machine, RetryPolicy, StepError, done};
use serde_json::{Value, json};
use shop::Shop;

fn explain(shop: &Shop, run: &str) -> Value {
    shop.abide(&["run", "explain", run, "--json"]).ok().json()
}

#[track_caller]
fn told(shop: &Shop, run: &str, reason: &str, words: &str) -> Value {
    let told = explain(shop, run);
    assert_eq!(told["reason"], reason, "{told}");
    assert!(told["sentence"].as_str().expect("a sentence").contains(words), "{told}");
    assert!(!told["next_actions"].as_array().expect("a list").is_empty(), "{told}");
    told
}

/// AB-1: one sentence with the cause, for runs that wait for a worker, a moment, a key or a person.
#[test]
fn a_run_that_nobody_can_execute_says_so() {
    let shop = Shop::new();
    let run = shop.start("greet", &["--version", "3", "--queue", "mail"]);
    let why = told(&shop, &run, "no_worker", "no live worker serves queue mail");
    assert_eq!(why["evidence"]["store_held_by"], "nobody");
    assert!(why["next_actions"][0].as_str().unwrap().contains("greet v3"), "{why}");
    let later = shop.start("greet", &["--delay", "1h"]);
    told(&shop, &later, "not_yet_eligible", "may not begin");
    shop.abide(&["run", "cancel", &later, "--reason", "no need"]).ok();
    told(&shop, &later, "ended", "cancelled");
    let text = shop.abide(&["run", "explain", &run]).ok().out;
    assert!(text.starts_with("why\t"), "{text}");
}

/// AB-1: waiting for a signal since when, sleeping, backing off until, waiting for children, key taken by whom.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_says_for_what_and_what_would_move_it() {
    let shop = Shop::new();
    let retry = RetryPolicy {
        backoff: Backoff::Constant,
        delay_ms: 3_600_000,
        delay_ms_max: 3_600_000,
        jitter_percent: 0,
        retries_max: None,
    };
    let fails = Machine::<Value>::new("fails")
        .step("call", async |_, _| Err(StepError::new("no answer").code("gateway")))
        .retry(retry);
    let asks = Machine::<Value>::new("asks")
        .step("ask", async |_, state: Value| Ok(abide::spawn([abide::child("waits", &1)], "end", state)))
        .step("end", async |_, state: Value| Ok(done(&state)));
    let newer = shop.start("waits", &["--version", "2"]);
    let engine = shop.engine().register(fails).register(asks).start().await.unwrap();
    let client = engine.client();
    let start = async |name: &str, status: &str| {
        let run = client.start(name, &json!({})).await.unwrap().id().to_string();
        shop.await_status(&run, status);
        run
    };
    let waiting = start("waits", "awaiting_signal").await;
    let why = told(&shop, &waiting, "waiting_for_signal", "waits for signal paid since");
    assert_eq!(why["next_actions"][0], format!("abide run signal {waiting} paid"));
    assert!(why["evidence"]["store_held_by"].as_str().unwrap().contains("the test's engine"));
    told(&shop, &newer, "no_worker_version", "needs waits v2, and live workers have v1");
    let sleeping = start("sleeps", "sleeping").await;
    told(&shop, &sleeping, "sleeping", "sleeps for another");
    let failing = start("fails", "runnable").await;
    shop::eventually(|| (explain(&shop, &failing)["reason"] == "backing_off").then_some(()));
    told(&shop, &failing, "backing_off", "gateway: no answer");
    let asking = start("asks", "awaiting_children").await;
    told(&shop, &asking, "waiting_for_children", "waits for 1 of its children");
    engine.stop(Duration::ZERO).await;
}

/// AB-1: a key that is taken, and by whom; a step that executes, and where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_key_is_taken_says_by_whom() {
    let shop = Shop::new();
    let hangs = Machine::<Value>::new("hangs").step("hang", async |_, _| std::future::pending().await);
    let engine = shop.engine().register(hangs).start().await.unwrap();
    let client = engine.client();
    let first = client.start("hangs", &0).concurrency("tenant", 1).await.unwrap().id().to_string();
    shop.await_status(&first, "executing");
    told(&shop, &first, "executing", "the test's engine executes step hang");
    let second = client.start("hangs", &0).concurrency("tenant", 1).await.unwrap().id().to_string();
    let why = told(&shop, &second, "key_saturated", "\"tenant\" is taken by");
    assert_eq!(why["next_actions"], json!([format!("abide run explain {first}")]));
    engine.stop(Duration::ZERO).await;
}

/// AB-1: a journal that does not fit is a reason too, with the place.
#[test]
fn a_run_whose_record_is_damaged_says_where() {
    let shop = Shop::new();
    let run = shop.start("greet", &["--input", "\"Ada\""]);
    shop.edit("DELETE FROM run; UPDATE shard SET watermark = 0");
    shop.edit("UPDATE journal SET facts = replace(facts, 'Ada', 'Bob')");
    told(&shop, &run, "damaged", "journal row 1 of shard 0");
}

/// AB-1, D25: beside a running engine, what the engine serves is known and not guessed: queue, workflow, version and
/// definition. A holder that does not say so, or says it in an unknown way, is judged by what it has executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_running_engine_serves_is_known() {
    let shop = Shop::new();
    let elsewhere = shop.start("waits", &["--queue", "mail"]);
    let unknown = shop.start("audits", &[]);
    let newer = shop.start("sleeps", &["--version", "4"]);
    let pinned = {
        let hangs = Machine::<Value>::new("hangs").step("hang", async |_, _| std::future::pending().await);
        let engine = shop.engine().register(hangs).start().await.unwrap();
        let run = engine.client().start("hangs", &0).await.unwrap().id().to_string();
        shop.await_status(&run, "executing");
        engine.stop(Duration::ZERO).await;
        run
    };
    let changed = Machine::<Value>::new("hangs").step("wait", async |_, _| std::future::pending().await);
    let engine = shop.engine().register(changed).start().await.unwrap();
    told(&shop, &elsewhere, "no_worker", "no live worker serves queue mail");
    told(&shop, &unknown, "no_worker_workflow", "no live worker of queue default has workflow audits");
    told(&shop, &newer, "no_worker_version", "needs sleeps v4, and live workers have v1");
    told(&shop, &pinned, "no_worker_definition", "it is pinned to definition");

    // What an engine of another release may have written.
    let lock = format!("{}.lock", shop.path().display());
    let written = std::fs::read_to_string(&lock).unwrap();
    let named: String = written.lines().take(2).map(|line| format!("{line}\n")).collect();
    for other in ["", "{\"queues\":[\"mail\"", "{\"serves\":\"everything\"}\n", "hello\n\nworld"] {
        std::fs::write(&lock, format!("{named}{other}")).unwrap();
        told(&shop, &unknown, "behind", "is ready since");
    }
    let more = written.replacen("{", "{\"limits\":[],", 1) + "{\"a line\":\"of the future\"}\n";
    std::fs::write(&lock, more).unwrap();
    told(&shop, &unknown, "no_worker_workflow", "no live worker of queue default has workflow audits");
    engine.stop(Duration::ZERO).await;
}
