//! Stores that move by the command line.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use abide_pg_testing::{FAST, Server};
use serde_json::Value;
use shop::Shop;

/// AB-8: from a file to a database and back, what arrives is what left, and it goes on there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_moves_to_a_database_and_back() {
    let (shop, server) = (Shop::new(), Server::start_with(FAST));
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().start("waits", &7).key("order 7").concurrency("ada", 1).await.unwrap().id().to_string();
    shop.await_status(&run, "awaiting_signal");
    engine.client().start("sleeps", &1).await.unwrap();
    let held = shop.abide(&["--store", &shop.url(), "store", "export", "--to", "there.jsonl"]);
    assert_eq!(held.code, 1, "{held:?}");
    assert!(!shop.dir().join("there.jsonl").exists() && !shop.dir().join("there.jsonl.part").exists());
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);

    let left = shop.abide(&["store", "export", "--to", "there.jsonl", "--json"]).ok().json();
    assert_eq!((&left["runs"]["awaiting_signal"], &left["runs"]["sleeping"]), (&Value::from(1), &Value::from(1)));
    let mode = fs::metadata(shop.dir().join("there.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds every payload");
    let again = shop.abide(&["store", "export", "--to", "there.jsonl"]);
    assert!(again.code == 2 && again.err.contains("code: file_exists"), "{again:?}");
    let url = server.url();
    let there = ["--store", &url, "store", "import", "--from", "there.jsonl", "--json"];
    assert_eq!(shop.abide(&there).ok().json(), left);
    let full = shop.abide(&there);
    assert!(full.code == 1 && full.err.contains("is not empty"), "{full:?}");
    assert_eq!(shop.abide(&["--store", &url, "run", "start", "waits", "--key", "order 7"]).code, 1, "its key is taken");
    shop.abide(&["--store", &url, "store", "check"]).ok();

    shop.abide(&["--store", &url, "store", "export", "--to", "back.jsonl"]).ok();
    let new = ["--store", "sqlite:new.db", "store", "import", "--from", "back.jsonl", "--shards", "4", "--json"];
    assert_eq!(shop.abide(&new).ok().json()["hash"], left["hash"]);
    shop.abide(&["--store", "sqlite:new.db", "run", "signal", &run, "paid", "--payload", "5"]).ok();
    shop.abide(&["--store", "sqlite:new.db", "store", "check"]).ok();
}

/// AB-8: what is no whole export is refused, and no store is made for it.
#[test]
fn a_file_that_is_not_whole_makes_no_store() {
    let shop = Shop::new();
    shop.start("waits", &[]);
    shop.abide(&["store", "export", "--to", "all.jsonl"]).ok();
    let text = fs::read_to_string(shop.dir().join("all.jsonl")).unwrap();
    let cut: String = text.lines().take(2).flat_map(|line| [line, "\n"]).collect();
    for (name, text) in
        [("cut", cut), ("other", text.replace("waits", "wakes")), ("none", "remember the milk\n".into())]
    {
        fs::write(shop.dir().join(name), text).unwrap();
        let refused = shop.abide(&["--store", "sqlite:new.db", "store", "import", "--from", name]);
        assert!(refused.code == 1 && refused.err.contains("code: bad_file"), "{refused:?}");
        assert!(!shop.dir().join("new.db").exists(), "{name}");
    }
    let missing = shop.abide(&["--store", "sqlite:new.db", "store", "import", "--from", "nowhere"]);
    assert_eq!(missing.code, 2, "{missing:?}");
}
