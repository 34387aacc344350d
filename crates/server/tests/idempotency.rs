//! Idempotency keys: a request that is sent again gets the first answer, also after a restart, and only its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use desk::Desk;
use serde_json::json;

const KEY: &str = "0193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e0f";

/// G4: the same key is the same run, also across a restart.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_gets_the_first_answer_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let (path, body) = ("/v1/namespaces/shop/runs", json!({"workflow": "greet", "input": "Ada"}));
    let desk = Desk::open(&url).await;
    let token = desk.token(&[abide_protocol::Scope::Admin], &["shop"]);
    let first = desk.with(&token).keyed(path, KEY, body.clone()).await.good();
    assert_eq!(desk.with(&token).keyed(path, KEY, body.clone()).await.good(), first);
    let many = json!({"runs": [body, body]});
    let batch = desk.with(&token).keyed(&format!("{path}/batch"), KEY, many.clone()).await.good();
    assert_ne!(batch["answers"][0], batch["answers"][1]);
    desk.close().await;
    let desk = Desk::open(&url).await;
    assert_eq!(desk.with(&token).keyed(path, KEY, body).await.good(), first);
    assert_eq!(desk.with(&token).keyed(&format!("{path}/batch"), KEY, many).await.good(), batch);
    let listed = desk.with(&token).get(path).await.good();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 3);
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_for_two_tenants_or_two_runs_never_meets() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop", "bank"]);
    let body = json!({"workflow": "wait"});
    let shop = ada.keyed("/v1/namespaces/shop/runs", KEY, body.clone()).await.good();
    let bank = ada.keyed("/v1/namespaces/bank/runs", KEY, body.clone()).await.good();
    assert_ne!(shop["run"], bank["run"]);
    let other = ada.post("/v1/namespaces/shop/runs", body).await.good();
    for run in [&shop["run"], &other["run"]] {
        let path = format!("/v1/namespaces/shop/runs/{}/signals", run.as_str().unwrap());
        let signal = json!({"name": "later"});
        assert_eq!(ada.keyed(&path, KEY, signal.clone()).await.good(), json!({"signal": 1, "duplicate": false}));
        assert_eq!(ada.keyed(&path, KEY, signal).await.good(), json!({"signal": 1, "duplicate": true}));
    }
    let cancel = format!("/v1/namespaces/shop/runs/{}/cancel", shop["run"].as_str().unwrap());
    assert_eq!(ada.keyed(&cancel, KEY, json!({})).await.good()["duplicate"], false);
    assert_eq!(ada.keyed(&cancel, KEY, json!({})).await.good()["duplicate"], true);
    desk.close().await;
}

/// A token that is asked for twice is one token, and only the secret of the last answer opens anything.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_makes_one_token() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    let asked = json!({"name": "bob", "scopes": ["admin"], "namespaces": ["*"]});
    let first = admin.keyed("/v1/tokens", KEY, asked.clone()).await.good();
    let lost = desk.with(first["secret"].as_str().unwrap());
    assert_eq!(lost.get("/v1/tokens").await.status, 200);
    let second = admin.keyed("/v1/tokens", KEY, asked).await.good();
    assert_eq!(second["token"], first["token"]);
    let bob = desk.with(second["secret"].as_str().unwrap());
    assert_eq!(bob.get("/v1/tokens").await.good()["tokens"].as_array().unwrap().len(), 2);
    assert_eq!(lost.get("/v1/tokens").await.problem(), "unauthenticated");
    desk.close().await;
}

/// A user that is asked for twice is one user. Another wish under the same key, or the same under another, meets a name
/// that is taken; so does the first wish when the password has changed since.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_makes_one_user() {
    const OTHER: &str = "0193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e10";
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    let asked =
        |role: &str, password: &str| json!({"name": "ada", "role": role, "namespaces": ["shop"], "password": password});
    let (wish, path) = (asked("reader", "correct horse"), "/v1/users");
    let first = admin.keyed(path, KEY, wish.clone()).await;
    let again = admin.keyed(path, KEY, wish.clone()).await;
    assert_eq!((first.status, again.status, first.good()), (201, 201, again.good()));
    let others =
        [(KEY, asked("admin", "correct horse")), (KEY, asked("reader", "another horse")), (OTHER, wish.clone())];
    for (key, wish) in others {
        assert_eq!(admin.keyed(path, key, wish).await.problem(), "user_exists");
    }
    assert_eq!(admin.post(path, wish.clone()).await.problem(), "user_exists");
    let (json, changed) = (("content-type", "application/json"), json!({"password": "another horse"}).to_string());
    let put = admin.send(reqwest::Method::PUT, "/v1/users/ada/password", &[json], Some(changed)).await;
    assert_eq!((put.status, admin.keyed(path, KEY, wish).await.problem()), (204, "user_exists".into()));
    assert_eq!(admin.get(path).await.good()["users"].as_array().unwrap().len(), 1);
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_none_or_of_tomorrow_is_refused() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    for wrong in ["order-17", "ffffffff-ffff-7c3d-8e4f-5a6b7c8d9e0f", "550e8400-e29b-41d4-a716-446655440000"] {
        let refused = ada.keyed("/v1/namespaces/shop/runs", wrong, json!({"workflow": "greet"})).await;
        assert_eq!(refused.problem(), "bad_idempotency_key", "{wrong}");
        assert!(refused.json()["expected"].is_string() && refused.json()["found"].is_string());
    }
    assert_eq!(ada.get("/v1/namespaces/shop/runs").await.good()["runs"], json!([]));
    desk.close().await;
}

/// The first request is the one that counts: another body under its key makes the token no other than it is.
#[tokio::test(flavor = "multi_thread")]
async fn another_body_under_the_same_key_changes_no_token() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    let asked = |name: &str, scope: &str| json!({"name": name, "scopes": [scope], "namespaces": ["shop"]});
    let first = admin.keyed("/v1/tokens", KEY, asked("bob", "read")).await.good();
    let second = admin.keyed("/v1/tokens", KEY, asked("eve", "admin")).await.good();
    assert_eq!(second["token"], first["token"]);
    let eve = desk.with(second["secret"].as_str().unwrap());
    assert_eq!(eve.post("/v1/namespaces/shop/runs", json!({"workflow": "wait"})).await.problem(), "forbidden");
    let listed = admin.get("/v1/tokens").await.good();
    assert!(listed["tokens"].as_array().unwrap().iter().all(|token| token["name"] != "eve"), "{listed}");
    desk.close().await;
}
