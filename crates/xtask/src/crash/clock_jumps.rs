//! Clock jumps: the clock of the machine goes hours forward and back, under a process that works and between two of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Options;
use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::report::{PATIENCE, settle_under, tell};
use crate::setup;

/// How far the clock is off when a process starts, and while it works, in seconds.
const OFFSETS: [(i64, i64); 5] = [(0, 7_200), (7_200, -7_200), (-7_200, 86_400), (86_400, 0), (0, -30)];
/// Later than any clock was: what waits for a moment ends then.
const LAST: i64 = 90_000;

pub(crate) fn perform(options: &Options) -> Result<()> {
    setup::need(&[("faketime", "faketime")])?;
    let library = library().context("expected libfaketimeMT.so.1 of the package faketime, found none")?;
    let folder = tempfile::Builder::new().prefix("abide-clock-").tempdir_in(".").context("making a directory here")?;
    let folder_path = folder.path().canonicalize()?;
    let (store, clock) = (folder_path.join("abide.db"), folder_path.join("clock"));
    let words = [
        "env".to_owned(),
        format!("LD_PRELOAD={}", library.display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        // Only the clock that people set jumps; the one that measures does not, there as here.
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
    ];
    let mut ledger = Ledger::default();
    for (life, (at_start, later)) in (0..).zip(OFFSETS) {
        set(&clock, at_start)?;
        let process = Plan::new(options, &store, options.seed + life, Task::Load).under(&words).start()?;
        let enough = ledger.acknowledged() + 20;
        let going =
            process.listen(&mut ledger, enough, PATIENCE).with_context(|| format!("begun at {at_start:+} s"))?;
        ensure!(going, "begun with the clock at {at_start:+} s the process ended: {:?}", ledger.closed);
        set(&clock, later)?;
        process.listen_for(&mut ledger, Duration::from_secs(2));
        process.kill(&mut ledger)?;
    }
    set(&clock, LAST)?;
    let connection = rusqlite::Connection::open(&store)?;
    let latest: i64 = connection.query_row("SELECT max(at) FROM journal", [], |row| row.get(0))?;
    drop(connection);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
    ensure!(latest > now + 80_000_000, "the clock did not jump: faketime has no effect here");
    settle_under(options, &store, &mut ledger, &words)?;
    ensure!(ledger.naps > 0, "no nap began and ended in one process: nothing shows that none is too short");
    tell(&ledger, json!({ "fault": "clock jumps", "jumps": 2 * OFFSETS.len() }))
}

fn set(clock: &Path, offset: i64) -> Result<()> {
    // Whole or not at all: the process reads it at every look at the clock.
    let new = clock.with_extension("new");
    std::fs::write(&new, format!("{offset:+}\n"))
        .and_then(|()| std::fs::rename(&new, clock))
        .context("setting the clock")
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let paths = folders.flatten().map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.exists())
}
