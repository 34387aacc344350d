//! `abide user …`, as a person would use it, and logging in with what it makes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod served;
mod shop;

use serde_json::{Value, json};
use served::{Served, client};
use shop::Shop;

/// Gives a password by standard input.
fn with(shop: &Shop, args: &[&str], password: &str) -> shop::Answer {
    shop.abide_with(&[args, &["--password-file", "-"]].concat(), &format!("{password}\n"))
}

async fn log_in(served: &Served, password: &str) -> u16 {
    served.ask("POST", "/v1/session", &[], Some(json!({"name": "ada", "password": password}))).await.0
}

/// AB-16: a user of the command line logs in, with the role that was given; the store has only a hash of the password.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_added_logs_in_and_is_removed() {
    let shop = Shop::new();
    let add = ["user", "add", "ada", "--role", "reader", "--in", "default"];
    with(&shop, &add, "canary-password").ok();
    let again = with(&shop, &add, "canary-password");
    assert!(again.code == 1 && again.err.contains("user_exists"), "{again:?}");
    let listed = shop.abide(&["user", "list", "--json"]).ok();
    assert_eq!(
        (&listed.json()["users"][0]["name"], &listed.json()["users"][0]["role"]),
        (&json!("ada"), &json!("reader"))
    );
    assert!(!listed.out.contains("argon2"), "{listed:?}");
    let raw = std::fs::read(shop.path()).unwrap();
    assert!(!raw.windows(15).any(|part| part == b"canary-password"));

    let served = Served::begin(&shop, &["--listen", "127.0.0.1:0", "--log", "json", "--log-level", "trace"]);
    let login = client().post(format!("{}/v1/session", served.url)).header("content-type", "application/json");
    let login = login.body(json!({"name": "ada", "password": "canary-password"}).to_string()).send().await.unwrap();
    assert_eq!(login.status(), 200);
    let cookie = login.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let csrf: Value = serde_json::from_str(&login.text().await.unwrap()).unwrap();
    let csrf = csrf["csrf_token"].as_str().unwrap().to_owned();
    let headers = [("cookie", cookie.as_str()), ("x-csrf-token", &csrf)];
    assert_eq!(served.ask("GET", "/v1/namespaces/default/runs", &headers, None).await.0, 200);
    let start = Some(json!({"workflow": "greet"}));
    let (status, refused) = served.ask("POST", "/v1/namespaces/default/runs", &headers, start).await;
    assert!(status == 403 && refused.contains("\"forbidden\""), "{refused}");
    assert_eq!(log_in(&served, "canary-wrong-one").await, 401);
    let said = tokio::task::spawn_blocking(move || served.stop()).await.unwrap();
    let secret = cookie.split_once('=').unwrap().1;
    for canary in ["canary-password", "canary-wrong-one", secret, &csrf] {
        assert!(!said.contains(canary), "{said}");
    }

    with(&shop, &["user", "password", "ada"], "another password").ok();
    let served = Served::begin(&shop, &["--listen", "127.0.0.1:0"]);
    assert_eq!(served.ask("GET", "/v1/session", &headers, None).await.0, 401, "its sessions are over");
    assert_eq!(log_in(&served, "canary-password").await, 401);
    assert_eq!(log_in(&served, "another password").await, 200);
    drop(served);
    shop.abide(&["user", "remove", "ada"]).ok();
    assert_eq!(shop.abide(&["user", "remove", "ada"]).code, 3);
    assert_eq!(with(&shop, &["user", "password", "ada"], "another password").code, 3);
}

#[test]
fn a_user_that_makes_no_sense_is_refused_before_anything_is_made() {
    let shop = Shop::new();
    let add = |name, role, place| ["user", "add", name, "--role", role, "--in", place];
    for (args, password) in [
        (add("ada", "root", "*"), "long enough"),
        (add("a b", "reader", "*"), "long enough"),
        (add("ada", "reader", ""), "long enough"),
        (add("ada", "reader", "*"), "short"),
        (add("ada", "reader", "*"), ""),
    ] {
        let refused = with(&shop, &args, password);
        assert!(refused.code == 2 && (password.is_empty() || !refused.err.contains(password)), "{refused:?}");
    }
    let nowhere = shop.abide(&add("ada", "reader", "*"));
    assert!(nowhere.code == 2 && nowhere.err.contains("no_terminal"), "{nowhere:?}");
    let missing = shop.abide(&[&add("ada", "reader", "*")[..], &["--password-file", "none"]].concat());
    assert!(missing.code == 2 && missing.err.contains("unreadable"), "{missing:?}");
    assert!(!shop.path().exists());
}

/// AB-16: a token can be made by a role, as users are.
#[test]
fn a_token_is_made_by_a_role() {
    let shop = Shop::new();
    shop.abide(&["token", "create", "--name", "ci", "--role", "operator", "--in", "shop"]).ok();
    let listed = shop.abide(&["token", "list", "--json"]).ok().json();
    assert_eq!(listed["tokens"][0]["scopes"], json!(["read", "start", "signal", "operate"]));
    let neither = shop.abide(&["token", "create", "--name", "ci", "--in", "shop"]);
    assert_eq!(neither.code, 2, "{neither:?}");
}
