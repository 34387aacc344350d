//! A server comes up, keeps what it was given, and goes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abide_pg_testing::{FAST, Server};

/// What it was given is there after a stop, and after a crash; when it is dropped, nothing is left.
#[test]
fn a_server_keeps_its_data_until_it_is_dropped() {
    let mut server = Server::start_with(FAST);
    server.psql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)");
    server.restart();
    server.psql("INSERT INTO kept VALUES (2)");
    server.kill();
    server.restart();
    assert_eq!(server.psql("SELECT count(*) FROM kept; SHOW fsync"), "2\noff");
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!folder.exists());
}

/// Started by the test below in a process of its own: it never comes to an end by itself.
#[test]
#[ignore = "started by another test"]
fn a_process_that_never_ends() {
    let server = Server::start_with(FAST);
    println!("\nfolder {}", server.folder().display());
    loop {
        std::thread::park();
    }
}

/// A test that is killed leaves no server behind.
#[test]
fn a_server_goes_with_its_process() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "a_process_that_never_ends"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let folder = lines.map(|line| line.unwrap()).find_map(|line| line.strip_prefix("folder ").map(str::to_owned));
    let folder = folder.expect("it says where its server is");
    let pid = std::fs::read_to_string(Path::new(&folder).join("data/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().to_owned();
    process.kill().unwrap();
    process.wait().unwrap();
    let since = Instant::now();
    while Path::new(&folder).exists() || Path::new(&format!("/proc/{pid}")).exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "the server of a killed process is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
