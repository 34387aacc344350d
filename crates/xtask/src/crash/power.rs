//! Power cuts: the process works on a file system of its own, which loses its power at some moment. Mounted again, it
//! has what was synced and nothing else, and everything acknowledged must be among it.
//!
//! Every other cycle first kills the process and starts it again, and cuts right after its first acknowledgements: what
//! the killed one had written but not synced still looks durable then, and must not be built upon.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::image::Image;
use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::{Options, audit};
use crate::setup;

/// Acknowledgements before the power is cut, at least.
const ACKNOWLEDGED_MIN: usize = 150;
/// Cuts after which a fresh file system is made.
const CUTS_PER_IMAGE: u64 = 10;
const TOOLS: &[(&str, &str)] = &[("mkfs.ext4", "e2fsprogs"), ("mount", "mount")];
const PATIENCE: Duration = Duration::from_secs(60);

struct Harness<'a> {
    options: &'a Options,
    image: Image,
    chance: fastrand::Rng,
    ledger: Ledger,
    cuts: u64,
    kills: u64,
    /// Times a process that was started again found frames of the killed one in its log.
    unsettled: u64,
}

pub(crate) fn perform(options: &Options, cuts: u64) -> Result<()> {
    setup::need(TOOLS)?;
    let folder = tempfile::Builder::new().prefix("abide-power-").tempdir_in(".").context("making a directory here")?;
    let mut harness = Harness {
        options,
        image: Image::make(folder.path())?,
        chance: fastrand::Rng::with_seed(options.seed),
        ledger: Ledger::default(),
        cuts: 0,
        kills: 0,
        unsettled: 0,
    };
    let relaxed = options.durability == "relaxed";
    for cycle in 0..cuts {
        // What was lost once would be missed again and again: a store that may lose serves for one cut.
        if cycle > 0 && (relaxed || cycle % CUTS_PER_IMAGE == 0) {
            harness.finish()?;
            harness.image.unmount()?;
            harness.image = Image::make(folder.path())?;
            harness.ledger.turn_page();
        }
        harness.cycle(cycle).with_context(|| format!("power cut {}", cycle + 1))?;
        let (acknowledged, lost) = (harness.ledger.acknowledged(), harness.ledger.lost);
        eprintln!("cut {}: {acknowledged} acknowledged, {lost} lost", cycle + 1);
    }
    harness.finish()?;
    let reported = harness.report(cuts);
    harness.image.unmount()?;
    if options.keep {
        eprintln!("the image is kept in {}", folder.keep().display());
    }
    reported
}

/// Whether the power can be cut here: it takes root, a loop device and ext4.
pub(crate) fn try_out() -> Result<()> {
    ensure!(setup::is_root(), "this user is not root");
    setup::need(TOOLS)?;
    let folder = tempfile::Builder::new().prefix("abide-power-").tempdir_in(".").context("making a directory here")?;
    let mut image = Image::make(folder.path())?;
    image.cut()?;
    image.unmount()
}

impl Harness<'_> {
    fn store(&self) -> PathBuf {
        self.image.path().join("abide.db")
    }

    fn cycle(&mut self, cycle: u64) -> Result<()> {
        if cycle % 2 == 1 {
            self.kill()?;
        }
        let more = if cycle % 2 == 1 { self.chance.usize(1..20) } else { ACKNOWLEDGED_MIN };
        let mut process = Plan::new(self.options, &self.store(), self.chance.u64(..), Task::Load).start()?;
        let enough = self.ledger.acknowledged() + more;
        if !process.listen(&mut self.ledger, enough, PATIENCE)? {
            bail!("the process ended by itself with {}: {}", process.child.wait()?, process.said(&self.ledger));
        }
        let moment = Duration::from_micros(self.chance.u64(0..300_000));
        process.listen_for(&mut self.ledger, moment);
        // A machine without power says nothing more. This one does: a sync that waits for the file system's log while that
        // is given up may be told that all is well, so what is heard from now on counts for nothing.
        let mut late = self.ledger.clone();
        self.image.cut()?;
        self.cuts += 1;
        process.listen_for(&mut late, Duration::from_millis(50));
        process.put_down(&mut late)?;
        self.ledger.closed = late.closed;
        self.image.unmount()?;
        self.image.mount()?;
        let found = audit::audit(&self.store(), &self.ledger)?;
        self.ledger.add(&found);
        Ok(())
    }

    /// A process that is killed while the power stays on.
    fn kill(&mut self) -> Result<()> {
        let process = Plan::new(self.options, &self.store(), self.chance.u64(..), Task::Load).start()?;
        let enough = self.ledger.acknowledged() + ACKNOWLEDGED_MIN;
        process.listen(&mut self.ledger, enough, PATIENCE)?;
        process.listen_for(&mut self.ledger, Duration::from_micros(self.chance.u64(0..50_000)));
        process.kill(&mut self.ledger)?;
        self.kills += 1;
        let log = std::fs::metadata(format!("{}-wal", self.store().display()));
        self.unsettled += u64::from(log.is_ok_and(|log| log.len() > 0));
        Ok(())
    }

    /// Lets everything come to its end, undisturbed, and looks once more.
    fn finish(&mut self) -> Result<()> {
        let process = Plan::new(self.options, &self.store(), self.chance.u64(..), Task::Drain).start()?;
        let status = process.end(&mut self.ledger, PATIENCE)?;
        if !status.success() {
            self.ledger.problems.push(format!("the last process ended with {status}"));
            self.ledger.unfinished += 1;
        }
        let found = audit::audit(&self.store(), &self.ledger)?;
        self.ledger.unfinished += found.open;
        // What is missing was counted after the cut.
        let before = self.ledger.lost;
        self.ledger.add(&found);
        if self.options.durability == "relaxed" {
            self.ledger.lost = before;
        }
        Ok(())
    }

    fn report(&self, asked: u64) -> Result<()> {
        let particular = json!({
            "cuts": self.cuts,
            "skipped": asked - self.cuts,
            "durability": self.options.durability,
            "kills": self.kills,
            "unsettled": self.unsettled,
        });
        super::report::tell(&self.ledger, particular)?;
        ensure!(self.cuts == asked, "{} of {asked} cuts were made", self.cuts);
        let settled = self.kills > 0 && self.unsettled == 0;
        ensure!(!settled, "no killed process left anything in its log, so nothing was shown of what it had not synced");
        Ok(())
    }
}
