//! `abide serve` and `abide token`, as a person would use them.

mod shop;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shop::Shop;

/// A server that ends with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn begin(shop: &Shop, more: &[&str]) -> Self {
        Self::by(shop, "serve", more)
    }

    fn by(shop: &Shop, verb: &str, more: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_abide"))
            .args([verb, "--json", "--listen", "127.0.0.1:0"])
            .args(more)
            .current_dir(shop.dir())
            .env_remove("ABIDE_STORE")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut served = Self { child, address: String::new() };
        // The document ends where its braces do.
        let mut text = String::new();
        for line in BufReader::new(served.child.stdout.take().expect("it has an output")).lines() {
            text.push_str(&line.expect("it writes text"));
            if let Ok(said) = serde_json::from_str::<Value>(&text) {
                said["url"].as_str().expect("an address").trim_start_matches("http://").clone_into(&mut served.address);
                return served;
            }
        }
        panic!("it ended before it listened: {text}");
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
    }

    /// Tells it to stop, and waits until it has.
    fn stop(mut self, signal: &str) -> Option<i32> {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(told.success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// AB-16: a token of the command line opens the server, the store has only its hash, and a signal ends it in order.
#[test]
fn a_token_opens_the_server_and_a_signal_ends_it() {
    let shop = Shop::new();
    let made = shop.abide(&["token", "create", "--name", "ada", "--scope", "admin", "--in", "*"]).ok();
    let secret = made.out.trim().to_owned();
    let listed = shop.abide(&["token", "list", "--json"]).ok();
    assert!(!listed.out.contains(&secret[30..]), "{listed:?}");
    assert_eq!(listed.json()["tokens"][0]["name"], "ada");

    let served = Served::begin(&shop, &[]);
    let runs = "/v1/namespaces/default/runs";
    assert_eq!(served.ask("GET", runs, "abide_none", "").0, 401);
    let (status, started) = served.ask("POST", runs, &secret, r#"{"workflow":"greet","input":"Ada"}"#);
    assert_eq!(status, 201, "{started}");
    let started: Value = serde_json::from_str(&started).expect("JSON");
    let run = started["run"].as_str().expect("a run");
    let (_, why) = served.ask("GET", &format!("{runs}/{run}/explain"), &secret, "");
    assert!(why.contains("\"no_worker\""), "{why}");
    // Looking works beside it; changing does not, and says who has the store.
    assert_eq!(shop.abide(&["run", "show", run, "--json"]).ok().json()["status"], "runnable");
    let held = shop.abide(&["token", "create", "--name", "eve", "--scope", "read", "--in", "*"]);
    assert!(held.code == 1 && held.err.contains("store_in_use"), "{held:?}");
    assert_eq!(served.stop("-TERM"), Some(0));

    let id = listed.json()["tokens"][0]["token"].as_str().expect("an id").to_owned();
    shop.abide(&["token", "revoke", &id]).ok();
    assert_eq!(shop.abide(&["token", "revoke", &id]).code, 3);
    let served = Served::begin(&shop, &[]);
    assert_eq!(served.ask("GET", runs, &secret, "").0, 401);
    assert_eq!(served.stop("-INT"), Some(0));
}

#[test]
fn without_login_it_answers_this_machine_only() {
    let shop = Shop::new();
    let open = shop.abide(&["serve", "--no-auth", "--listen", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.err.contains("open_to_all"), "{open:?}");
    assert!(!shop.path().exists(), "nothing is left behind");
    let served = Served::begin(&shop, &["--no-auth"]);
    assert_eq!(served.ask("GET", "/v1/nodes", "", "").0, 200);
    assert_eq!(served.stop("-TERM"), Some(0));
}

/// A store of this folder, without a token, for a first try; the next one goes on with it.
#[test]
fn the_first_five_minutes_need_nothing() {
    let shop = Shop::new();
    let open = shop.abide(&["dev", "--listen", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.err.contains("open_to_all"), "{open:?}");
    let store = shop.dir().join(".abide/abide.db");
    assert!(!store.exists(), "nothing is left behind");
    let runs = "/v1/namespaces/default/runs";
    let served = Served::by(&shop, "dev", &[]);
    assert_eq!(served.ask("POST", runs, "", r#"{"workflow":"greet","key":"one"}"#).0, 201);
    assert_eq!(served.stop("-INT"), Some(0));
    assert!(store.exists());
    let served = Served::by(&shop, "dev", &[]);
    let (_, listed) = served.ask("GET", &format!("{runs}?key=one"), "", "");
    assert!(listed.contains("run_"), "{listed}");
    assert_eq!(served.stop("-TERM"), Some(0));
}

#[test]
fn a_token_that_makes_no_sense_is_refused_before_anything_is_made() {
    let shop = Shop::new();
    for wrong in [
        ["--name", "ada", "--scope", "everything", "--in", "*"],
        ["--name", "", "--scope", "read", "--in", "*"],
        ["--name", "ada", "--scope", "read", "--in", ""],
    ] {
        let refused = shop.abide(&[&["token", "create"][..], &wrong].concat());
        assert_eq!(refused.code, 2, "{refused:?}");
    }
    assert!(!shop.path().exists());
}
