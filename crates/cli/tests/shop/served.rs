//! A server on the store of a shop, as a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::Shop;

/// A server that ends with the test.
pub struct Served {
    child: Child,
    pub address: String,
}

impl Served {
    pub fn begin(shop: &Shop, more: &[&str]) -> Self {
        Self::by(shop, "serve", more)
    }

    pub fn by(shop: &Shop, verb: &str, more: &[&str]) -> Self {
        Self::where_it_likes(shop, verb, &[&["--listen", "127.0.0.1:0"], more].concat())
    }

    /// One that is not told where to listen.
    pub fn where_it_likes(shop: &Shop, verb: &str, more: &[&str]) -> Self {
        let mut command = shop.command();
        let child = command.args([verb, "--json"]).args(more).stdout(Stdio::piped()).spawn().expect("the binary runs");
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

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The status and the body of an answer.
    pub fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
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
    pub fn stop(mut self, signal: &str) -> Option<i32> {
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

/// A server whose words on standard error are heard, in text.
pub struct Stopping {
    child: Child,
    address: String,
    err: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Stopping {
    pub fn begin(shop: &Shop, verb: &str, more: &[&str]) -> Self {
        let mut command = shop.command();
        command.args([verb, "--listen", "127.0.0.1:0"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        let err = BufReader::new(child.stderr.take().expect("it has an output")).lines();
        let begins = |line: &String| line.starts_with("api ");
        let api = lines.by_ref().map(|line| line.expect("text")).find(begins).expect("it says where it is");
        let address = api.trim_start_matches("api").trim().trim_start_matches("http://").trim_end_matches("/v1");
        let address = address.to_owned();
        // Whoever prints meets somebody who reads, to the end.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, err }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    pub fn tell(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(told.success());
    }

    /// The next line with these words.
    pub fn hears(&mut self, words: &str) -> String {
        let mut all = String::new();
        for line in self.err.by_ref().map(|line| line.expect("text")) {
            if line.contains(words) {
                return line;
            }
            all += &(line + "\n");
        }
        panic!("expected {words:?}, found {all}");
    }

    pub fn ended(mut self) -> Option<i32> {
        self.err.by_ref().for_each(drop);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
