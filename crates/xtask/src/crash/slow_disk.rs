//! A slow disk: every sync takes a fifth of a second. Everything comes to its end, late.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Options;
use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::report::{PATIENCE, settle, tell};
use crate::setup;

const DELAY_US: u64 = 200_000;
const RUNS: u64 = 8;

pub(crate) fn perform(options: &Options) -> Result<()> {
    setup::need(&[("strace", "strace")])?;
    let folder = tempfile::Builder::new().prefix("abide-slow-").tempdir_in(".").context("making a directory here")?;
    let store = folder.path().join("abide.db");
    let mut ledger = Ledger::default();
    let said = folder.path().join("strace.txt").display().to_string();
    let delay = format!("inject=fsync,fdatasync:delay_exit={DELAY_US}");
    let tool = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-e", &delay, "-o", &said];
    // Shorter than a few syncs: a claim must outlive the disk by its heartbeats.
    let mut plan = Plan::new(options, &store, options.seed, Task::Few(RUNS)).under(&tool);
    plan.lease_ms = Some(1_000);
    let began = Instant::now();
    let status = plan.start()?.end(&mut ledger, PATIENCE)?;
    ensure!(status.success(), "on a slow disk the process ended with {status}: {:?}", ledger.closed);
    let took = began.elapsed().as_millis() as u64;
    let calls = std::fs::read_to_string(&said).context("reading what strace says")?;
    let delayed = calls.lines().filter(|line| line.contains("(DELAYED)")).count() as u64;
    let sync_ms = DELAY_US / 1_000;
    // The runs come one after the other, and none of them is acknowledged without a sync.
    ensure!(delayed >= RUNS, "{RUNS} runs were made, and {delayed} syncs took their time");
    ensure!(took >= RUNS * sync_ms, "{RUNS} runs took {took} ms, where every sync takes {sync_ms} ms");
    settle(options, &store, &mut ledger)?;
    let particular =
        json!({ "fault": "slow disk", "sync_ms": sync_ms, "delayed": delayed, "runs": RUNS, "took_ms": took });
    tell(&ledger, particular)
}
