//! The command line on a store in PostgreSQL: alone, and beside the nodes that share it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::time::Duration;

use abide::{Engine, Machine, await_signal, done};
use abide_pg_testing::{FAST, Server};
use serde_json::Value;
use shop::served::Served;
use shop::{Answer, Shop};

const PATIENCE: Duration = Duration::from_secs(20);

struct Database {
    server: Server,
    shop: Shop,
}

impl Database {
    fn new() -> Self {
        Self { server: Server::start_with(FAST), shop: Shop::new() }
    }

    /// Its URL, with a password, which nobody may see.
    fn url(&self) -> String {
        self.server.url().replace("postgres@", "postgres:hush@")
    }

    fn abide(&self, args: &[&str]) -> Answer {
        let url = self.url();
        let answer = self.shop.abide(&[&["--store", &url], args].concat());
        assert!(!format!("{answer:?}").contains("hush"), "{answer:?}");
        answer
    }

    async fn engine(&self, name: &str) -> Engine {
        let waits = Machine::<Value>::new("waits").step("wait", async |ctx, state: Value| {
            match ctx.signal::<Value>("paid")? {
                None => Ok(await_signal("paid", state)),
                Some(paid) => Ok(done(&paid)),
            }
        });
        let builder = Engine::open(&self.url()).node(name).shards(8).node_lease(Duration::from_secs(9));
        builder.register(waits).start().await.unwrap()
    }

    fn nodes(&self) -> Vec<(String, u64, bool)> {
        let listed = self.abide(&["node", "list", "--json"]).ok().json();
        let nodes = listed["nodes"].as_array().unwrap().iter();
        let one = |node: &Value| {
            let shards = node["shards"].as_array().unwrap().len() as u64;
            assert!(node["living"] == true && node["lease_left_ms"].as_u64().unwrap() > 0, "{node}");
            (node["node"].as_str().unwrap().to_owned(), shards, node["draining"] == true)
        };
        let mut nodes: Vec<_> = nodes.map(one).collect();
        nodes.sort();
        nodes
    }
}

/// SQ-14: without a node every verb does by itself what it does on a file, and the password is shown to nobody.
#[test]
fn every_verb_works_on_a_database() {
    let database = Database::new();
    let missing = database.abide(&["run", "list"]);
    assert_eq!(missing.code, 3, "{missing:?}");
    assert!(missing.err.contains("code: no_store"), "{missing:?}");
    let started = database.abide(&["run", "start", "waits", "--key", "k", "--input", "7"]).ok();
    assert!(started.err.contains("made a new store"), "{started:?}");
    let run = started.out.trim().to_owned();
    let again = database.abide(&["run", "start", "waits", "--key", "k"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(database.abide(&["run", "list"]).ok().out.lines().count(), 1);
    assert_eq!(database.abide(&["run", "show", &run[..20], "--json"]).ok().json()["status"], "runnable");
    database.abide(&["run", "signal", &run, "paid", "--payload", "5", "--dedup", "once"]).ok();
    let history = database.abide(&["run", "history", &run]).ok().out;
    assert!(history.contains("paid"), "{history}");
    let why = database.abide(&["run", "explain", &run, "--json"]).ok().json();
    assert_eq!(why["evidence"]["store_held_by"], "nobody");
    database.abide(&["run", "export", &run]).ok();
    for verb in [["store", "stats"], ["store", "check"], ["store", "migrate"], ["dead-letter", "list"]] {
        database.abide(&verb).ok();
    }
    for verb in [["effect", "list"], ["approval", "list"], ["task", "list"], ["node", "list"]] {
        database.abide(&verb).ok();
    }
    assert_eq!(database.abide(&["dead-letter", "requeue", "letter_9"]).code, 3);
    let ill = database.abide(&["doctor", "--json", "--grace", "0s"]);
    assert_eq!(ill.json()["holder"], Value::Null, "{ill:?}");
    database.abide(&["run", "cancel", &run, "--reason", "enough"]).ok();
    database.abide(&["run", "compact", &run, "--yes"]).ok();
    database.abide(&["run", "purge", &run, "--yes"]).ok();
    assert_eq!(database.abide(&["run", "show", &run]).code, 3);
    database.abide(&["store", "check"]).ok();
}

/// SE-35: beside nodes a verb takes nothing from them: it asks whoever serves the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_nodes_a_verb_asks_whoever_serves() {
    let database = Database::new();
    let (ada, bob) = (database.engine("ada").await, database.engine("bob").await);
    shop::eventually(|| (database.nodes().iter().map(|node| node.1).eq([4, 4])).then_some(()));
    for n in 0..6 {
        let key = format!("key-{n}");
        let run = database.abide(&["run", "start", "waits", "--key", &key]).ok().out.trim().to_owned();
        database.abide(&["run", "signal", &run, "paid", "--payload", "5"]).ok();
        let handle = ada.client().run(run.parse().unwrap());
        let result = tokio::time::timeout(PATIENCE, handle.result::<Value>()).await.unwrap();
        assert_eq!(result.unwrap(), 5);
    }
    let waited = database.abide(&["run", "start", "waits", "--wait", "--timeout", "50ms"]);
    assert_eq!(waited.code, 5, "{waited:?}");
    assert_eq!(database.nodes(), [("ada".into(), 4, false), ("bob".into(), 4, false)], "nobody was disturbed");
    let stats = database.abide(&["store", "stats"]).ok().out;
    assert!(stats.contains("node ada") && stats.contains("node bob"), "{stats}");
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}

/// SE-35: a node that is asked to drain gives what it serves to the others; resumed, it takes its share again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_drained_and_resumed() {
    let database = Database::new();
    let (ada, bob) = (database.engine("ada").await, database.engine("bob").await);
    shop::eventually(|| (database.nodes().iter().map(|node| node.1).eq([4, 4])).then_some(()));
    database.abide(&["node", "drain", "ada"]).ok();
    let drained = [("ada".to_owned(), 0, true), ("bob".to_owned(), 8, false)];
    shop::eventually(|| (database.nodes() == drained).then_some(()));
    let last = database.abide(&["node", "drain", "bob"]).ok();
    assert!(last.err.contains("no other node takes shards"), "{last:?}");
    let run = database.abide(&["run", "start", "waits"]).ok().out.trim().to_owned();
    database.abide(&["node", "resume", "ada"]).ok();
    database.abide(&["run", "signal", &run, "paid", "--payload", "5"]).ok();
    let handle = bob.client().run(run.parse().unwrap());
    let result = tokio::time::timeout(PATIENCE, handle.result::<Value>()).await.unwrap();
    assert_eq!(result.unwrap(), 5);
    let nobody = database.abide(&["node", "drain", "eve"]);
    assert_eq!(nobody.code, 3, "{nobody:?}");
    ada.stop(PATIENCE).await;
    bob.stop(PATIENCE).await;
}

#[test]
fn a_file_has_no_nodes() {
    let shop = Shop::new();
    shop.start("waits", &[]);
    for args in [&["node", "list"][..], &["node", "drain", "ada"], &["node", "resume", "ada"]] {
        let refused = shop.abide(args);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.err.contains("it has no nodes") && refused.err.contains("code: no_nodes"), "{refused:?}");
    }
}

/// SE-35: nodes are listed, drained and resumed by any of their servers, as by the store itself.
#[test]
fn a_server_drains_another() {
    let database = Database::new();
    let url = database.url();
    let serve = |node: &str| Served::begin(&database.shop, &["--no-auth", "--store", &url, "--node", node]);
    let (one, two) = (serve("one"), serve("two"));
    let shares = || database.nodes().iter().map(|node| node.1).collect::<Vec<_>>();
    shop::eventually(|| (shares() == [32, 32]).then_some(()));
    let by = |args: &[&str]| database.shop.abide(&[&["--url", &one.url()], args].concat());
    let listed = |answer: Answer| -> Vec<Value> {
        let mut nodes = answer.ok().json()["nodes"].as_array().unwrap().clone();
        // A lease that is renewed between the two is no difference.
        for node in &mut nodes {
            node.as_object_mut().unwrap().retain(|key, _| !key.starts_with("lease_"));
        }
        nodes
    };
    assert_eq!(listed(by(&["node", "list", "--json"])), listed(database.abide(&["node", "list", "--json"])));
    by(&["node", "drain", "two"]).ok();
    shop::eventually(|| (shares() == [64, 0]).then_some(()));
    assert!(database.nodes()[1].2);
    by(&["node", "resume", "two"]).ok();
    shop::eventually(|| (shares() == [32, 32]).then_some(()));
    assert_eq!(by(&["node", "drain", "eve"]).code, 3);
    drop(two);
}
