//! Two processes on one file. While the first holds it, the second is refused and told who has it. Then the first is
//! stopped, its lock is taken away behind its back and the second works; when the first goes on, what either of them
//! acknowledges is there, and nothing has ended twice.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::Options;
use super::ledger::Ledger;
use super::pauses::send;
use super::process::{Plan, Task};
use super::report::{PATIENCE, settle, tell};

const ROUNDS: u64 = 3;

pub(crate) fn perform(options: &Options) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("abide-two-").tempdir_in(".").context("making a directory here")?;
    let mut ledger = Ledger::default();
    for round in 0..ROUNDS {
        let store = folder.path().join(format!("abide-{round}.db"));
        let first = Plan::new(options, &store, options.seed + round, Task::Load).start()?;
        ensure!(first.listen(&mut ledger, round as usize * 400 + 100, PATIENCE)?, "the first process ended");
        let me = std::env::current_exe()?;
        let refused = Command::new(me)
            .args(["crash-worker", "--drain", "--seed", "1", "--shards", "1", "--store"])
            .arg(&store)
            .output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let named = said.contains("in use by process") && said.contains(&first.child.id().to_string());
        ensure!(!refused.status.success() && named, "the second process was not told who has the store: {said}");

        send(&first.child, Signal::STOP)?;
        std::fs::remove_file(format!("{}.lock", store.display())).context("taking the lock away")?;
        let second = Plan::new(options, &store, options.seed + 100 + round, Task::Load).start()?;
        // The first may have been stopped inside a transaction, which the file itself keeps others out of.
        std::thread::sleep(Duration::from_millis(300));
        send(&first.child, Signal::CONT)?;
        let enough = ledger.acknowledged() + 200;
        let going = second.listen(&mut ledger, enough, PATIENCE);
        first.listen_for(&mut ledger, Duration::from_millis(100));
        first.kill(&mut ledger)?;
        second.kill(&mut ledger)?;
        if let Err(error) = going {
            eprintln!("round {}: {error:#}", round + 1);
        }
        settle(options, &store, &mut ledger)?;
        ledger.turn_page();
    }
    tell(&ledger, json!({ "fault": "two processes", "rounds": ROUNDS, "refused": ROUNDS }))
}
