//! Several servers on one database: a worker asks one of them, and is given what all of them have.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use abide::{Client, Ctx, Engine, Machine, RunHandle, done, next};
use abide_pg_testing::{FAST, Server};
use serde_json::{Value, json};

/// A server that ends with the test.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn begin(store: &str, node: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_abide"))
            .args(["serve", "--json", "--no-auth", "--listen", "127.0.0.1:0", "--node", node])
            .env("ABIDE_STORE", store)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut served = Self { child, url: String::new() };
        let mut text = String::new();
        for line in BufReader::new(served.child.stdout.take().unwrap()).lines() {
            text.push_str(&line.unwrap());
            if let Ok(said) = serde_json::from_str::<Value>(&text) {
                said["url"].as_str().unwrap().clone_into(&mut served.url);
                return served;
            }
        }
        panic!("it ended before it listened: {text}");
    }

    fn client(&self) -> Client {
        Client::connect(&self.url).open().unwrap()
    }

    async fn ask(&self, path: &str) -> Value {
        // It fails where it was done before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        let answer = client.get(format!("{}{path}", self.url)).send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    fn tell(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Whether none of its threads runs any more.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let mut states = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
        states.all(|state| state.rsplit(')').next().unwrap().trim_start().starts_with('T'))
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parcel() -> Machine<u32> {
    Machine::<u32>::new("parcel")
        .step("pack", async |_, n: u32| Ok(next("send", n + 1)))
        .step("send", async |_: Ctx, n: u32| Ok(done(&(n + 1))))
}

async fn start(client: &Client, count: u32) -> Vec<RunHandle> {
    let many = client.start_many((0..count).map(|n| client.start("parcel", &n))).await.unwrap();
    many.into_iter().map(Result::unwrap).collect()
}

async fn all_end(runs: Vec<RunHandle>) {
    for (n, run) in runs.into_iter().enumerate() {
        assert_eq!(run.result::<u32>().await.unwrap(), n as u32 + 2);
    }
}

/// AB-19, SE-33, SE-36: two servers share the shards; a worker that knows one of them executes what either was asked for, what
/// is asked for by SQL as well, and all of it when the other is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_one_server_serves_all() {
    let database = Server::start_with(FAST);
    let url = database.url();
    let (one, two) = (Served::begin(&url, "one"), Served::begin(&url, "two"));
    // Both have their share.
    let shares = "SELECT count(DISTINCT owner) FROM abide.shard";
    while database.psql(shares) != "2" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let early = start(&two.client(), 20).await;
    let worker = Engine::open(&one.url).node("hand").lease(Duration::from_secs(2)).register(parcel());
    let worker = worker.start().await.unwrap();
    all_end(early).await;
    all_end(start(&one.client(), 20).await).await;
    all_end(start(&two.client(), 20).await).await;
    // Whoever is asked knows who works for all of them.
    let workers = two.ask("/v1/namespaces/default/workers").await;
    assert_eq!((&workers["workers"][0]["worker"], &workers["workers"][0]["node"]), (&json!("hand"), &json!("one")));
    assert_eq!(workers["silent"], json!([]), "{workers}");
    let offered = two.ask("/v1/namespaces/default/workflows").await;
    let first = &offered["workflows"][0];
    assert_eq!((&first["workflow"], &first["workers"]), (&json!("parcel"), &json!(1)), "{offered}");
    two.tell("-STOP");
    while !two.is_stopped() {
        tokio::task::yield_now().await;
    }
    let workers = one.ask("/v1/namespaces/default/workers").await;
    two.tell("-CONT");
    assert_eq!((&workers["workers"][0]["worker"], &workers["silent"]), (&json!("hand"), &json!(["two"])), "{workers}");

    let asked = database.psql("SELECT abide.start('parcel', '7')");
    let run = loop {
        let told = database.psql(&format!("SELECT run FROM abide.request('{asked}')"));
        if !told.is_empty() {
            break told.parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(one.client().run(run).result::<u32>().await.unwrap(), 9);

    let left = start(&one.client(), 20).await;
    two.kill();
    all_end(left).await;
    worker.stop(Duration::from_secs(10)).await;
}
