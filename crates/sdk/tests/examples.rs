//! The examples say what their readers are told they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The folder of examples beside the one this test was built into; they are built if they are not there.
fn example(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let folder = deps.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let built = folder.join(name);
    if !built.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let made = Command::new(cargo).args(["build", "-q", "--example", name]).current_dir("../..").status().unwrap();
        assert!(made.success());
    }
    built
}

fn run(name: &str, args: &[&str]) -> Output {
    Command::new(example(name)).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn hello_greets_twice() {
    let told = said(&run("hello", &[]));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[..2], ["hello Ada", "goodbye Ada"]);
    assert!(lines[2].starts_with("run_") && lines[2].ends_with("ended with \"goodbye Ada\""), "{told}");
}

/// On a store of its own: once the run has ended, its key is free for the next.
#[test]
fn hello_runs_on_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("hello.db").display());
    let first = said(&run("hello", &[&url]));
    assert_eq!(first.lines().count(), 3);
    assert_eq!(said(&run("hello", &[&url])).lines().count(), 3);
}

#[test]
fn saga_undoes_what_it_did() {
    let told = said(&run("saga", &[]));
    let expected =
        "booked flight\nbooked hotel\ncancelled hotel\ncancelled flight\nthe trip failed: no_car: no car is left\n";
    assert!(told.starts_with(expected), "{told}");
    assert!(told.contains("cancel hotel: committed") && told.contains("car: failed"), "{told}");
}

#[test]
fn fan_out_adds_up() {
    assert_eq!(said(&run("fan_out", &[])), "page 0: 3 words\npage 1: 3 words\npage 2: 5 words\n11 words on 3 pages\n");
}

#[test]
fn human_approval_asks_and_goes_on() {
    assert_eq!(
        said(&run("human_approval", &[])),
        "40 paid\nasked about 400: approval\n400 paid\nasked about 4000: approval\n4000 rejected by ada\n"
    );
}

#[test]
fn agent_comes_to_an_answer() {
    let told = said(&run("agent", &[]));
    for line in [
        "tool clock: order 17",
        "asked: pause \"budget\"",
        "asked: approval \"approve refund\"",
        "tool refund: order 17",
    ] {
        assert_eq!(told.lines().filter(|said| *said == line).count(), 1, "{line} in {told}");
    }
    assert!(told.ends_with("answer: done after 4 tools\n"), "{told}");
}
