//! Who changed what, and what a server takes at most.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use std::io::{Read, Write};

use abide::Engine;
use abide_protocol::Scope;
use abide_server::Limits;
use desk::{Desk, workflows};
use serde_json::{Value, json};

const RUNS: &str = "/v1/namespaces/shop/runs";

/// AB-16: every change is kept with who, what, when, of what and how it was answered, in order, without payloads and
/// secrets, and is there after a restart. What is only read is not.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let desk = Desk::open(&url).await;
    let root = desk.admin(&["*"]);
    let made = desk.make(&[Scope::Start, Scope::Read], &["shop"], None);
    let ada = desk.with(&made.secret);
    let started = ada.post(RUNS, json!({"workflow": "wait", "input": "canary"})).await.good();
    let run = started["run"].as_str().unwrap();
    assert_eq!(ada.post(&format!("{RUNS}/{run}/cancel"), json!({"reason": "canary"})).await.problem(), "forbidden");
    assert_eq!(ada.post("/v1/namespaces/bank/runs", json!({"workflow": "wait"})).await.problem(), "not_found");
    ada.get(&format!("{RUNS}/{run}")).await.good();
    root.post("/v1/tokens", json!({"name": "eve", "scopes": ["read"], "namespaces": ["shop"]})).await.good();
    assert_eq!(desk.nobody().post(RUNS, json!({"workflow": "wait"})).await.problem(), "unauthenticated");
    desk.close().await;

    let desk = Desk::open(&url).await;
    let root = desk.admin(&["*"]);
    let all = root.get("/v1/audit").await;
    assert!(!all.text.contains("canary") && !all.text.contains("secret") && !all.text.contains("abide_"), "{all:?}");
    let all = all.good();
    let changes = all["changes"].as_array().unwrap();
    let told: Vec<Value> = changes
        .iter()
        .rev()
        .map(|change| json!([change["name"], change["operation"], change["target"], change["status"], change["code"]]))
        .collect();
    let cancel = format!("{RUNS}/{run}/cancel");
    let expected = [
        json!(["ada", "run_start", RUNS, 201, null]),
        json!(["ada", "run_cancel", cancel, 403, "forbidden"]),
        json!(["ada", "run_start", "/v1/namespaces/bank/runs", 404, "not_found"]),
        json!(["ada", "token_create", "/v1/tokens", 201, null]),
    ];
    assert_eq!(told, expected);
    assert_eq!(changes[3]["token"], json!(made.token.token));
    assert!(changes[3]["at"].as_str() <= changes[0]["at"].as_str(), "{all}");

    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = root.get(&format!("/v1/audit?limit=3{before}")).await.good();
        seen.extend(page["changes"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        before = format!("&before={next}");
    }
    assert_eq!(&seen, changes, "pages without gap or repeat");
    let shop = desk.admin(&["shop"]);
    assert_eq!(shop.get("/v1/audit").await.problem(), "forbidden", "it is about all namespaces");
    desk.close().await;
}

/// What a server takes at most can be asked, and a token that asks too often is told so; others are not held up.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_asks_too_often_is_told_so() {
    let engine = workflows(Engine::open("memory:")).start().await.unwrap();
    let mut limits = Limits::default();
    limits.requests_per_second_max = 5;
    let desk = Desk::within(engine, limits, |server| server).await;
    let (ada, eve) = (desk.admin(&["shop"]), desk.admin(&["shop"]));
    assert_eq!(ada.get("/v1/limits").await.good()["requests_per_second_max"], 5);
    // A burst takes no second.
    let mut heard = Vec::new();
    for _ in 0..50 {
        heard.push(eve.get("/v1/limits").await);
    }
    let refused: Vec<_> = heard.iter().filter(|heard| heard.status == 429).collect();
    assert!(refused.len() >= 25, "{}", refused.len());
    assert_eq!(refused[0].problem(), "rate_limited");
    assert_eq!(ada.get("/v1/limits").await.status, 200);
    desk.close().await;
}

/// One connection more than there may be is turned away, with a word, and there is room again when one is closed.
#[tokio::test(flavor = "multi_thread")]
async fn there_are_so_many_connections_at_once() {
    let engine = workflows(Engine::open("memory:")).start().await.unwrap();
    let mut limits = Limits::default();
    limits.connections_max = 2;
    let desk = Desk::within(engine, limits, |server| server).await;
    let connect = || std::net::TcpStream::connect(desk.server.address()).unwrap();
    let ask = |stream: &mut std::net::TcpStream| {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).map(|()| String::from_utf8_lossy(&answer).into_owned())
    };
    let (mut one, mut two) = (connect(), connect());
    assert_eq!((ask(&mut one).unwrap(), ask(&mut two).unwrap()), ("HTTP/1.1 200".into(), "HTTP/1.1 200".into()));
    let mut turned_away = String::new();
    connect().read_to_string(&mut turned_away).unwrap();
    assert!(turned_away.starts_with("HTTP/1.1 503") && turned_away.contains("too_many_connections"), "{turned_away}");
    drop(one);
    // The server hears of it in its own time.
    let mut again = connect();
    while ask(&mut again).is_ok_and(|answer| !answer.ends_with("200")) || ask(&mut again).is_err() {
        again = connect();
    }
    drop((two, again));
    desk.close().await;
}

/// AB-16: whoever hangs up before the answer is in the audit all the same: what was asked is done, and kept.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_up_hides_nothing() {
    let desk = Desk::open("memory:").await;
    let secret = desk.token(&[Scope::Admin], &["*"]);
    let ada = desk.with(&secret);
    // Nobody has its code, so that the update waits as long as it may.
    let started = ada.post(RUNS, json!({"workflow": "parcel"})).await.good();
    let path = format!("{RUNS}/{}", started["run"].as_str().unwrap());
    let mut stream = std::net::TcpStream::connect(desk.server.address()).unwrap();
    let body = json!({"name": "double", "input": 1, "wait_ms": 1_000}).to_string();
    let head = format!(
        "POST {path}/updates HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {secret}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    while !ada.get(&format!("{path}/journal")).await.text.contains("double") {}
    drop(stream);
    let asked = std::time::Instant::now();
    while !ada.get("/v1/audit").await.text.contains("run_update") {
        assert!(asked.elapsed() < std::time::Duration::from_secs(20), "the update is not in the audit");
    }
    desk.close().await;
}

/// AB-16: what is older than is kept goes when something else changes, and no more than that.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_goes_from_the_audit() {
    let desk = Desk::over(Engine::open("memory:").start().await.unwrap(), |server| {
        server.keep_audit(std::time::Duration::from_secs(3600))
    })
    .await;
    let engine = desk.engine.runtime().unwrap();
    let old = abide_kernel::Timestamp(engine.now().0 - 7_200_000);
    let body = json!({"id": "x", "at": "2026-01-01T00:00:00Z", "token": null, "name": "old", "operation": "o",
        "target": "/", "status": 200, "code": null});
    let id = |at| format!("{}{:020}", abide_server::audit_mark(at), 0);
    let kept = |id| abide_store::Kept { kind: abide_server::AUDIT.into(), id, body: body.to_string() };
    engine.keep(&[kept(id(old)), kept(id(engine.now()))]).unwrap();
    let admin = desk.admin(&["*"]);
    admin.send(reqwest::Method::POST, "/v1/namespaces/shop/queues/q/pause", &[], None).await;
    // Removed a moment after the change was answered, and before the next is kept.
    admin.send(reqwest::Method::POST, "/v1/namespaces/shop/queues/q/resume", &[], None).await;
    let ids: Vec<String> = engine.kept(abide_server::AUDIT, None, 9).unwrap().into_iter().map(|kept| kept.id).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    assert!(!ids.contains(&id(old)), "{ids:?}");
}
