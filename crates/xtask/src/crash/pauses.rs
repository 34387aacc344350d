//! Pauses: the process is stopped for longer than its claims last, and goes on as if nothing had been.

use std::process::Child;
use std::time::Duration;

use abide_kernel::Fact;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::report::{PATIENCE, settle, tell};
use super::{Options, audit};

const PAUSES: u64 = 8;
const LEASE_MS: u64 = 300;

pub(crate) fn perform(options: &Options) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("abide-pause-").tempdir_in(".").context("making a directory here")?;
    let store = folder.path().join("abide.db");
    let (mut ledger, mut chance) = (Ledger::default(), fastrand::Rng::with_seed(options.seed));
    let mut plan = Plan::new(options, &store, options.seed, Task::Load);
    plan.lease_ms = Some(LEASE_MS);
    let process = plan.start()?;
    for _ in 0..PAUSES {
        let enough = ledger.acknowledged() + chance.usize(50..200);
        ensure!(process.listen(&mut ledger, enough, PATIENCE)?, "the process ended: {:?}", ledger.closed);
        send(&process.child, Signal::STOP)?;
        std::thread::sleep(Duration::from_millis(LEASE_MS * chance.u64(2..5)));
        send(&process.child, Signal::CONT)?;
    }
    let enough = ledger.acknowledged() + 50;
    ensure!(process.listen(&mut ledger, enough, PATIENCE)?, "the process ended: {:?}", ledger.closed);
    process.kill(&mut ledger)?;
    settle(options, &store, &mut ledger)?;
    let expired = audit::count(&store, |fact| matches!(fact, Fact::Expired(_)))?;
    tell(&ledger, json!({ "fault": "pauses", "pauses": PAUSES, "lease_ms": LEASE_MS, "expired": expired }))?;
    ensure!(expired > 0, "no claim expired in {PAUSES} pauses, so nothing was shown");
    Ok(())
}

pub(crate) fn send(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the process has an id")?;
    kill_process(pid, signal).context("sending a signal to the process")
}
