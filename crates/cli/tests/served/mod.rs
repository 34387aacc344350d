//! A server in a process of its own, as a person would start it, and whoever asks it.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::shop::Shop;

/// A server that ends with the test.
pub struct Served {
    child: Child,
    pub url: String,
    remarks: BufReader<ChildStderr>,
}

impl Served {
    /// What stands behind `abide serve --json`.
    pub fn begin(shop: &Shop, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_abide"))
            .args(["serve", "--json"])
            .args(more)
            .current_dir(shop.dir())
            .env_remove("ABIDE_STORE")
            .env_remove("ABIDE_LISTEN")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let remarks = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, url: String::new(), remarks };
        let mut text = String::new();
        for line in out.lines() {
            text.push_str(&line.unwrap());
            // The document ends where its braces do.
            if let Ok(said) = serde_json::from_str::<Value>(&text) {
                said["url"].as_str().unwrap().clone_into(&mut served.url);
                return served;
            }
        }
        panic!("it ended before it listened: {text}");
    }

    pub fn tell(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Reads remarks up to one that says this.
    pub fn until_it_says(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.remarks.read_line(&mut line).unwrap() > 0 {
            if line.contains(word) {
                return line;
            }
            line.clear();
        }
        panic!("it ended without saying {word:?}");
    }

    /// Tells it to stop, waits until it has, and answers with all that it wrote to standard error.
    pub fn stop(mut self) -> String {
        self.tell("-TERM");
        let mut said = String::new();
        self.remarks.read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        said
    }

    /// Asks it something: the status, and the body.
    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> (u16, String) {
        let mut request = client().request(method.parse().unwrap(), format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whoever asks over plain HTTP.
pub fn client() -> reqwest::Client {
    builder().build().unwrap()
}

pub fn builder() -> reqwest::ClientBuilder {
    // Another test may have done it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([])
}
