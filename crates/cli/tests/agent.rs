//! The agent of the examples is killed inside its refund, and a person says what became of it.

mod shop;

use std::path::PathBuf;
use std::process::{Command, Output};

use shop::Shop;

/// The agent beside this test's own folder; it is built if it is not there.
fn agent() -> PathBuf {
    let deps = std::env::current_exe().expect("this test");
    let folder = deps.parent().and_then(|deps| deps.parent()).expect("a folder").join("examples");
    let built = folder.join("agent");
    if !built.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let made = Command::new(cargo).args(["build", "-q", "-p", "abide", "--example", "agent"]).status();
        assert!(made.expect("cargo").success());
    }
    built
}

fn run(shop: &Shop, more: &[&str]) -> Output {
    Command::new(agent()).args(["--store", &shop.url()]).args(more).output().expect("the agent")
}

/// JI-19, JI-20, AB-6: killed inside a refund it does not refund again: it is in doubt, and ends once that is resolved.
#[test]
fn a_refund_that_was_killed_is_in_doubt() {
    use std::os::unix::process::ExitStatusExt;
    let shop = Shop::new();
    let killed = run(&shop, &["--die-in", "refund"]);
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    let told = String::from_utf8(killed.stdout).expect("text");
    assert!(told.ends_with("tool refund: order 17\n"), "{told}");
    let again = String::from_utf8(run(&shop, &[]).stdout).expect("text");
    assert!(again.contains("in doubt: refund (unsafe_once)") && !again.contains("tool refund"), "{again}");
    let id = again.lines().find_map(|line| line.strip_prefix("run ")).expect("the run");
    shop.abide(&["effect", "resolve", id, "refund", "--result", "\"refunded\"", "--actor", "ada"]).ok();
    let last = String::from_utf8(run(&shop, &[]).stdout).expect("text");
    assert!(last.ends_with("answer: done after 4 tools\n") && !last.contains("tool refund"), "{last}");
}
