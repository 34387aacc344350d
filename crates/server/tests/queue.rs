//! Queues over a real socket: seen, paused, resumed and limited, and what was said of them outlives the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use desk::{Caller, Desk};
use serde_json::{Value, json};

const QUEUES: &str = "/v1/namespaces/shop/queues";

async fn start(caller: &Caller<'_>, namespace: &str, workflow: &str) -> String {
    let body = json!({"workflow": workflow, "input": "Ada"});
    let started = caller.post(&format!("/v1/namespaces/{namespace}/runs"), body).await.good();
    started["run"].as_str().unwrap().to_owned()
}

async fn explained(caller: &Caller<'_>, run: &str) -> Value {
    caller.get(&format!("/v1/namespaces/shop/runs/{run}/explain")).await.good()["reason"].clone()
}

async fn queues(caller: &Caller<'_>) -> Vec<Value> {
    caller.get(QUEUES).await.good()["queues"].as_array().unwrap().clone()
}

async fn post(caller: &Caller<'_>, path: &str) -> Value {
    caller.send(reqwest::Method::POST, &format!("{QUEUES}/{path}"), &[], None).await.good()
}

/// AB-18: a queue of one namespace is paused: nothing of it begins, there and nowhere else, also after a restart, until it
/// is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_outlives_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let desk = Desk::open(&url).await;
    let ada = desk.admin(&["shop", "bank"]);
    assert_eq!(queues(&ada).await, [""; 0]);
    let held = json!({"queue": "default", "paused": true, "limits": {}});
    assert_eq!(post(&ada, "default/pause").await, held);
    assert_eq!(post(&ada, "default/pause").await, held, "twice is once");
    let run = start(&ada, "shop", "greet").await;
    let other = start(&ada, "bank", "greet").await;
    let ended = ada.get(&format!("/v1/namespaces/bank/runs/{other}/result?wait_ms=20000")).await.good();
    assert_eq!(ended["status"], "done");
    assert_eq!(explained(&ada, &run).await, "queue_paused");
    desk.close().await;

    let desk = Desk::open(&url).await;
    let ada = desk.admin(&["shop"]);
    let seen = queues(&ada).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((&seen[0]["paused"], &seen[0]["depth"], &seen[0]["running"]), (&json!(true), &json!(1), &json!(0)));
    assert!(seen[0]["oldest_at"].is_string() && seen[0]["oldest_age_ms"].is_u64(), "{seen:?}");
    assert_eq!(explained(&ada, &run).await, "queue_paused");
    assert_eq!(post(&ada, "default/resume").await["paused"], false);
    let ended = ada.get(&format!("/v1/namespaces/shop/runs/{run}/result?wait_ms=20000")).await.good();
    assert_eq!(ended["status"], "done");
    assert_eq!(queues(&ada).await, [""; 0], "nothing waits, and nothing holds");
    desk.close().await;
}

/// AB-18, D23: caps and rates of a queue are kept as they are said, and what cannot be meant is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_limited_while_it_goes_on() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let limits = format!("{QUEUES}/default/limits");
    let slow = json!({"rate": {"count": 1, "per_ms": 3_600_000}});
    assert_eq!(ada.put(&limits, slow.clone()).await.good()["limits"], slow);
    let first = start(&ada, "shop", "greet").await;
    ada.get(&format!("/v1/namespaces/shop/runs/{first}/result?wait_ms=20000")).await.good();
    let second = start(&ada, "shop", "greet").await;
    assert_eq!(explained(&ada, &second).await, "rate_reached");
    let seen = queues(&ada).await;
    assert_eq!((&seen[0]["depth"], &seen[0]["limits"]), (&json!(1), &slow));
    // What a rate has used up is not forgotten when something else changes.
    post(&ada, "mail/pause").await;
    assert_eq!(explained(&ada, &second).await, "rate_reached");
    assert_eq!(ada.put(&limits, json!({"at_most": 5})).await.good()["limits"], json!({"at_most": 5}));
    let ended = ada.get(&format!("/v1/namespaces/shop/runs/{second}/result?wait_ms=20000")).await.good();
    assert_eq!(ended["status"], "done");
    assert_eq!(ada.put(&limits, json!({})).await.good()["limits"], json!({}));
    let wrong = [
        json!({"at_most": 0}),
        json!({"rate": {"count": 0, "per_ms": 1}}),
        json!({"rate": {"count": 1, "per_ms": 0}}),
        json!({"rate": {"count": 1, "per_ms": u64::MAX}}),
    ];
    for wrong in wrong {
        assert_eq!(ada.put(&limits, wrong.clone()).await.problem(), "invalid", "{wrong}");
    }
    for wrong in
        [json!({"at_most": -1}), json!({"rate": 1}), json!({"colour": "red"}), json!({"at_most": 4_294_967_296u64})]
    {
        assert_eq!(ada.put(&limits, wrong.clone()).await.problem(), "malformed", "{wrong}");
    }
    for name in ["*", &"q".repeat(201)] {
        let heard = ada.send(reqwest::Method::POST, &format!("{QUEUES}/{name}/pause"), &[], None).await;
        assert_eq!((heard.status, heard.problem()), (400, "bad_id".into()), "{name}");
    }
    assert_eq!(queues(&ada).await.len(), 1, "the other one is still paused");
    desk.close().await;
}
