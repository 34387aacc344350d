//! `abide run watch` and `run start --follow`: what happens is told as it does, by a server, by nodes, and of a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use abide::{Engine, EngineBuilder, Machine, StepError, await_signal, done};
use abide_pg_testing::{FAST, Server};
use serde_json::{Value, json};
use shop::Shop;
use shop::served::Served;

/// A command that tells line by line.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn begin(shop: &Shop, args: &[&str]) -> Self {
        let piped = || Stdio::piped();
        let mut child = shop.command().args(args).stdout(piped()).stderr(piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads on until a line has these words.
    fn until(&mut self, words: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended before {words}: {}", self.errors());
            if line.contains(words) {
                return line;
            }
        }
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn interrupt(&self) {
        let told = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn worker(url: &str) -> EngineBuilder {
    let waits =
        Machine::<Value>::new("waits").step("wait", async |ctx, state: Value| match ctx.signal::<Value>("paid")? {
            None => Ok(await_signal("paid", state)),
            Some(paid) if paid == json!("fail") => Err(StepError::new("no \u{1b}[31mway").terminal()),
            Some(paid) => Ok(done(&paid)),
        });
    Engine::open(url).register(waits).node("hand")
}

/// The life of a run, told from its beginning to its end, whoever tells it.
fn lives(shop: &Shop, at: &[&str], signal: impl Fn(&str, &str)) {
    let run = shop.abide(&[at, &["run", "start", "waits"]].concat()).ok().out.trim().to_owned();
    let mut watching = Watching::begin(shop, &[at, &["run", "watch", &run[..30]]].concat());
    watching.until("started waits v1");
    watching.until("waits for signal paid");
    signal(&run, "\"大\"");
    watching.until("ended as done");
    assert_eq!((watching.line().as_str(), watching.end()), ("", Some(0)));

    let run = shop.abide(&[at, &["run", "start", "waits"]].concat()).ok().out.trim().to_owned();
    let mut watching = Watching::begin(shop, &[at, &["-o", "jsonl", "run", "watch", &run]].concat());
    let first: Value = serde_json::from_str(&watching.line()).unwrap();
    assert_eq!((&first["event"], &first["rev"]), (&json!("row"), &json!(1)));
    watching.until("waits for signal paid");
    signal(&run, "\"fail\"");
    let last: Value = serde_json::from_str(&watching.until("\"event\":\"end\"")).unwrap();
    assert_eq!((&last["status"], &last["run"]), (&json!("failed"), &json!(run)));
    assert_eq!(watching.end(), Some(4));
    // One that is over is told at once.
    let over = shop.abide(&[at, &["run", "watch", &run]].concat());
    assert!(over.code == 4 && over.out.contains("ended as failed") && !over.out.contains('\u{1b}'), "{over:?}");
    let way = at.join(" ") + if at.is_empty() { "" } else { " " };
    assert!(over.err.contains(&format!("look at it: abide {way}run show {run}")), "{over:?}");
}

/// AB-13: over HTTP, by the stream of the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_followed_by_a_server() {
    let shop = Shop::new();
    let served = Served::begin(&shop, &["--no-auth"]);
    let url = served.url();
    let hand = worker(&url).start().await.unwrap();
    let signal = |run: &str, payload: &str| {
        shop.abide(&["--url", &url, "run", "signal", run, "paid", "--payload", payload]).ok();
    };
    tokio::task::block_in_place(|| {
        lives(&shop, &["--url", &url], signal);
        // All runs of the namespace, until somebody has had enough.
        let mut all = Watching::begin(&shop, &["--url", &url, "-o", "jsonl", "run", "watch"]);
        let mut run = String::new();
        let mut followed = Watching::begin(&shop, &["--url", &url, "run", "start", "waits", "--follow"]);
        followed.until("waits for signal paid");
        // Whatever began before it listened is not told, so that there is another one.
        while run.is_empty() {
            shop.abide(&["--url", &url, "run", "start", "waits"]).ok();
            let told: Value = serde_json::from_str(&all.line()).unwrap();
            assert_eq!((&told["event"], &told["workflow"]), (&json!("happened"), &json!("waits")));
            told["run"].as_str().unwrap().clone_into(&mut run);
        }
        all.interrupt();
        assert_eq!(all.end(), Some(130));
        let listed = shop.abide(&["--url", &url, "run", "list", "--status", "awaiting_signal"]).ok().out;
        signal(listed.lines().last().unwrap().split('\t').next().unwrap(), "1");
        followed.until("ended as done");
        assert_eq!(followed.end(), Some(0));
        let waited = shop.abide(&["--url", &url, "run", "start", "waits", "--wait", "--timeout", "10ms"]);
        assert!(waited.code == 5 && waited.err.contains("code: timeout"), "{waited:?}");
    });
    hand.stop(Duration::from_secs(5)).await;
}

/// A store in a file, beside the engine that writes it: its changes are heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_followed_in_a_file() {
    let shop = Shop::new();
    let engine = worker(&shop.url()).start().await.unwrap();
    let client = engine.client().clone();
    for (payload, code) in [(json!("大"), 0), (json!("fail"), 4)] {
        let run = client.start("waits", &Value::Null).await.unwrap();
        let id = run.id().to_string();
        let mut watching = Watching::begin(&shop, &["run", "watch", &id]);
        tokio::task::block_in_place(|| watching.until("waits for signal paid"));
        run.signal("paid", &payload).await.unwrap();
        tokio::task::block_in_place(|| watching.until("ended as"));
        assert_eq!(tokio::task::block_in_place(|| watching.end()), Some(code));
    }
    let run = client.start("waits", &Value::Null).await.unwrap();
    let mut watching = Watching::begin(&shop, &["run", "watch", &run.id().to_string()]);
    tokio::task::block_in_place(|| watching.until("waits for signal paid"));
    watching.interrupt();
    assert_eq!(watching.end(), Some(130));
    let all = shop.abide(&["run", "watch"]);
    assert!(all.code == 2 && all.err.contains("code: needs_server"), "{all:?}");
    let nobody = shop.abide(&["run", "watch", "run_ffff"]);
    assert_eq!(nobody.code, 3, "{nobody:?}");
    engine.stop(Duration::from_secs(5)).await;
}

/// A store in a database: the nodes that serve it tell a guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_followed_in_a_database() {
    let (database, shop) = (Server::start_with(FAST), Shop::new());
    let url = database.url();
    let engine = worker(&url).start().await.unwrap();
    let signal = |run: &str, payload: &str| {
        shop.abide(&["--store", &url, "run", "signal", run, "paid", "--payload", payload]).ok();
    };
    tokio::task::block_in_place(|| lives(&shop, &["--store", &url], signal));
    engine.stop(Duration::from_secs(5)).await;
}
