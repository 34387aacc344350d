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
    assert!(told["sentence"].as_str().unwrap().contains(words), "{told}");
    assert!(!told["next_actions"].as_array().unwrap().is_empty(), "{told}");
    told
}

/// AB-1: one sentence with the cause, for runs that wait for a worker, a moment, a key or a person.
#[test]
fn a_run_that_nobody_can_execute_says_so() {
    let shop = Shop::new();
    let run = shop.start("greet", &["--version", "3", "--queue", "mail"]);
    let why = told(&shop, &run, "no_worker", "no live worker serves queue mail");
    assert_eq!(why["evidence"]["store_held_by"], "nobody");
    assert!(
        why["next_actions"][0].as_str().unwrap().contains("greet v3"),
        "{why}"
    );
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
        .step("call", async |_, _| {
            Err(StepError::new("no answer").code("gateway"))
        })
        .retry(retry);
    let hangs = Machine::<Value>::new("hangs").step("hang", async |_, _| std::future::pending().await);
    let asks = Machine::<Value>::new("asks")
        .step("ask", async |_, state: Value| {
            Ok(abide::spawn([abide::child("waits", &1)], "end", state))
        })
        .step("end", async |_, state: Value| Ok(done(&state)));
    let engine = shop
        .engine()
        .register(fails)
        .register(hangs)
        .register(asks)
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let start = async |name: &str, status: &str| {
        let run = client.start(name, &json!({})).await.unwrap().id().to_string();
        shop.await_status(&run, status);
        run
    };
    let waiting = start("waits", "awaiting_signal").await;
    let why = told(
        &shop,
        &waiting,
        "waiting_for_signal",
        "waits for signal paid since",
    );
    assert_eq!(why["next_actions"][0], format!("abide run signal {waiting} paid"));
    assert!(
        why["evidence"]["store_held_by"]
            .as_str()
            .unwrap()
            .contains("the test's engine")
    );
    let sleeping = start("sleeps", "sleeping").await;
    told(&shop, &sleeping, "sleeping", "sleeps for another");
    let failing = start("fails", "runnable").await;
    shop::eventually(|| (explain(&shop, &failing)["reason"] == "backing_off").then_some(()));
    told(&shop, &failing, "backing_off", "gateway: no answer");
    let asking = start("asks", "awaiting_children").await;
    told(
        &shop,
        &asking,
        "waiting_for_children",
        "waits for 1 of its children",
    );

    let first = client
        .start("hangs", &0)
        .concurrency("tenant", 1)
        .await
        .unwrap()
        .id()
        .to_string();
    shop.await_status(&first, "executing");
    told(&shop, &first, "executing", "the test's engine executes step hang");
    let second = client
        .start("hangs", &0)
        .concurrency("tenant", 1)
        .await
        .unwrap()
        .id()
        .to_string();
    let why = told(&shop, &second, "key_saturated", "\"tenant\" is taken by");
    assert_eq!(why["next_actions"], json!([format!("abide run explain {first}")]));
    engine.stop(Duration::ZERO).await;
}
