//! Two processes on one file. While the first holds it, the second is refused and told who has it. Then the first is
//! stopped, its lock is taken away behind its back and the second works; when the first goes on, what either of them
//! acknowledges is there, and nothing has ended twice.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::Options;
use super::ledger::Ledger;
use super::pauses::send;
use super::process::{Plan, Process, Task};
use super::report::{PATIENCE, settle, tell};

const ROUNDS: u64 = 3;
/// Acknowledgements of a process that works.
const ENOUGH: usize = 100;

pub(crate) fn perform(options: &Options) -> Result<()> {
    perform_rounds(options, ROUNDS)
}

pub(crate) fn perform_rounds(options: &Options, rounds: u64) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("abide-two-").tempdir_in(".").context("making a directory here")?;
    let (mut ledger, mut refused) = (Ledger::default(), 0);
    for round in 0..rounds {
        let store = folder.path().join(format!("abide-{round}.db"));
        let first = Plan::new(options, &store, options.seed + round, Task::Contend).start()?;
        works(&first, &mut ledger).context("the first process")?;
        refuse(&first, &store)?;
        refused += 1;

        send(&first.child, Signal::STOP)?;
        std::fs::remove_file(format!("{}.lock", store.display())).context("taking the lock away")?;
        let second = Plan::new(options, &store, options.seed + 100 + round, Task::Contend).start()?;
        // The first may have been stopped inside a transaction, which the file itself keeps others out of. What it said
        // before it was stopped does not show that it goes on.
        first.listen_for(&mut ledger, Duration::from_millis(300));
        send(&first.child, Signal::CONT)?;
        works(&second, &mut ledger).context("the second process, with the first beside it")?;
        works(&first, &mut ledger).context("the first process, with the second beside it")?;
        first.kill(&mut ledger)?;
        second.kill(&mut ledger)?;
        settle(options, &store, &mut ledger)?;
        ledger.turn_page();
    }
    tell(&ledger, json!({ "fault": "two processes", "rounds": rounds, "refused": refused }))
}

/// A process goes on until it has acknowledged something more.
fn works(process: &Process, ledger: &mut Ledger) -> Result<()> {
    let enough = ledger.acknowledged() + ENOUGH;
    let going = process.listen(ledger, enough, PATIENCE)?;
    ensure!(going, "it ended by itself: {}", process.said(ledger));
    Ok(())
}

/// A second process comes to nothing, and learns who has the store.
fn refuse(first: &Process, store: &Path) -> Result<()> {
    let me = std::env::current_exe().context("finding this program")?;
    let second = Command::new(me)
        .args(["crash-worker", "--drain", "--seed", "1", "--shards", "1", "--store"])
        .arg(format!("sqlite:{}", store.display()))
        .output()
        .context("starting a second process")?;
    let said = String::from_utf8_lossy(&second.stderr);
    let named = said.contains("in use by process") && said.contains(&first.child.id().to_string());
    ensure!(!second.status.success() && named, "the second process was not told who has the store: {said}");
    Ok(())
}
