//! A full disk: the process works until there is no room, says so, and loses nothing; with room again it goes on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Options;
use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::report::{PATIENCE, settle, tell};
use crate::setup;

const ROUNDS: u64 = 3;
const DISK: &str = "size=24m";
/// What is taken from the disk at first, and given back when it is full.
const FILLER_BYTES: usize = 12 * 1024 * 1024;

/// What SQLite says then.
const FULL: &str = "database or disk is full";

/// A small file system in memory. Dropped, it is unmounted.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Result<Self> {
        let said = Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "none"]).arg(at).output()?;
        ensure!(
            said.status.success(),
            "a small tmpfs cannot be mounted, which takes root: {}",
            String::from_utf8_lossy(&said.stderr).trim()
        );
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    setup::need(&[("mount", "mount")])?;
    let folder = tempfile::Builder::new().prefix("abide-full-").tempdir_in(".").context("making a directory here")?;
    let mut ledger = Ledger::default();
    let mut said = 0;
    for round in 0..ROUNDS {
        let disk = Disk::mount(folder.path())?;
        let (store, filler) = (disk.0.join("abide.db"), disk.0.join("filler"));
        std::fs::write(&filler, vec![1; FILLER_BYTES]).context("filling the disk")?;
        let process = Plan::new(options, &store, options.seed + round, Task::Load).start()?;
        process.end(&mut ledger, PATIENCE).context("on a disk that fills up")?;
        let full = ledger.closed.iter().any(|reason| reason.contains(FULL));
        ensure!(full, "the process ended on a full disk and did not say so: {:?}", ledger.closed);
        said += ledger.closed.len();
        std::fs::remove_file(&filler).context("making room")?;
        settle(options, &store, &mut ledger)?;
        ledger.turn_page();
    }
    tell(&ledger, json!({ "fault": "full disk", "rounds": ROUNDS, "said": said }))
}
