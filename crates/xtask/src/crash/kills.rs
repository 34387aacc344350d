//! Kills: the process is killed with SIGKILL, at random and at named points, over and over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use abide_runtime::points::POINTS;
use anyhow::{Context, Result, bail};
use serde_json::json;

use super::ledger::Ledger;
use super::process::{Plan, Process, Task};
use super::{Options, audit};

/// Acknowledgements a cycle must have at least.
const ACKNOWLEDGED_MIN: usize = 100;
/// Cycles after which a fresh store is begun.
const CYCLES_PER_STORE: u64 = 10;
/// No cycle takes longer than this, or something hangs.
const CYCLE_MAX: Duration = Duration::from_secs(60);

struct Harness<'a> {
    options: &'a Options,
    store: PathBuf,
    chance: fastrand::Rng,
    ledger: Ledger,
    kills: u64,
    by_point: BTreeMap<String, u64>,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("abide-crash-").tempdir_in(".").context("making a directory here")?;
    let mut harness = Harness {
        options,
        store: dir.path().join("crash-0.db"),
        chance: fastrand::Rng::with_seed(options.seed),
        ledger: Ledger::default(),
        kills: 0,
        by_point: POINTS.iter().map(|point| ((*point).to_owned(), 0)).collect(),
    };
    for cycle in 0..options.cycles {
        // An audit reads the whole journal, so a store serves only so many cycles.
        if cycle > 0 && cycle % CYCLES_PER_STORE == 0 {
            harness.finish()?;
            harness.store = dir.path().join(format!("crash-{cycle}.db"));
            harness.ledger.turn_page();
        }
        harness.cycle(cycle)?;
        let found = audit::audit(&harness.store, &harness.ledger)?;
        harness.ledger.add(&found);
        if harness.found_out() {
            break;
        }
        if cycle % 5 == 4 {
            harness.ledger.rebuild_mismatches += audit::lose_index(&harness.store)?;
        }
        if cycle % 10 == 9 {
            eprintln!(
                "cycle {}: {} acknowledged, {} lost",
                cycle + 1,
                harness.ledger.acknowledged(),
                harness.ledger.lost
            );
        }
    }
    if !harness.found_out() {
        harness.finish()?;
    }
    let reported = harness.report();
    if options.keep {
        eprintln!("the store is kept in {}", dir.keep().display());
    }
    reported
}

impl Harness<'_> {
    /// Whether a fault that was made on purpose has shown: there is nothing more to learn then, and a store that lost what
    /// it acknowledged may never come to its end.
    fn found_out(&self) -> bool {
        self.options.sabotage.is_some() && self.ledger.lost > 0
    }

    /// Lets the process run until it was killed and enough was acknowledged.
    fn cycle(&mut self, cycle: u64) -> Result<()> {
        let before = self.ledger.acknowledged();
        if let Some(point) = named_point(cycle, self.options.sabotage.is_some()) {
            let count = if point.ends_with("opened") { 1 } else { self.chance.u64(20..200) };
            self.life(cycle, Some((point, count)))?;
        }
        while self.ledger.acknowledged() - before < ACKNOWLEDGED_MIN {
            self.life(cycle, None)?;
        }
        Ok(())
    }

    /// One life of the process: until its point kills it, or chance does.
    fn life(&mut self, cycle: u64, point: Option<(&str, u64)>) -> Result<()> {
        let seed = self.chance.u64(..);
        let Process { mut child, lines } = self.spawn(seed, point, Task::Load)?;
        let began = Instant::now();
        let enough = self.ledger.acknowledged() + ACKNOWLEDGED_MIN;
        let mut deadline = point.is_none().then(|| began + CYCLE_MAX);
        loop {
            let wait = deadline.map_or(CYCLE_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            match lines.recv_timeout(wait) {
                Ok(line) => self.ledger.note(&line),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if deadline.is_some()
                && self.ledger.acknowledged() >= enough
                && deadline.is_some_and(|at| at >= began + CYCLE_MAX)
            {
                // Enough was acknowledged: the end comes at some moment soon.
                deadline = Some(Instant::now() + Duration::from_micros(self.chance.u64(0..150_000)));
            }
            if began.elapsed() > CYCLE_MAX {
                let _ = child.kill();
                bail!("cycle {cycle}: the process neither died nor progressed for {CYCLE_MAX:?} (point {point:?})");
            }
        }
        let struck = child.try_wait().context("looking at the process")?;
        child.kill().context("killing the process")?;
        let status = child.wait().context("waiting for the process")?;
        for line in lines.iter() {
            self.ledger.note(&line);
        }
        self.kills += 1;
        match point {
            Some((point, _)) if struck.is_some() || killed(status) => {
                *self.by_point.entry(point.to_owned()).or_default() += 1;
            }
            _ => *self.by_point.entry("random".to_owned()).or_default() += 1,
        }
        Ok(())
    }

    fn spawn(&self, seed: u64, point: Option<(&str, u64)>, task: Task) -> Result<Process> {
        let mut plan = Plan::new(self.options, &self.store, seed, task);
        plan.point = point.map(|(point, count)| (point.to_owned(), count));
        plan.start()
    }

    /// Lets everything come to its end, undisturbed, and looks once more.
    fn finish(&mut self) -> Result<()> {
        let seed = self.chance.u64(..);
        let Process { mut child, lines } = self.spawn(seed, None, Task::Drain)?;
        let began = Instant::now();
        while let Ok(line) = lines.recv_timeout(CYCLE_MAX) {
            self.ledger.note(&line);
        }
        if began.elapsed() > CYCLE_MAX * 3 {
            let _ = child.kill();
        }
        let status = child.wait().context("waiting for the process")?;
        if !status.success() {
            self.ledger.problems.push(format!("the last process ended with {status}"));
        }
        let found = audit::audit(&self.store, &self.ledger)?;
        self.ledger.unfinished += found.open;
        self.ledger.add(&found);
        self.ledger.rebuild_mismatches += audit::lose_index(&self.store)?;
        Ok(())
    }

    fn report(&self) -> Result<()> {
        let unstruck: Vec<&String> =
            self.by_point.iter().filter(|(_, kills)| **kills == 0).map(|(point, _)| point).collect();
        let particular = json!({
            "cycles": self.options.cycles,
            "shards": self.options.shards,
            "kills": self.kills,
            "kills_by_point": self.by_point,
        });
        super::report::tell(&self.ledger, particular)?;
        let enough = self.options.cycles >= 2 * POINTS.len() as u64;
        if enough && !unstruck.is_empty() {
            bail!("these points never struck: {unstruck:?}");
        }
        Ok(())
    }
}

/// The point at which a cycle kills, if it has one. Named points and moments by chance take turns; every point has its
/// turn again and again. What a sabotaged process lets out too early is at stake where it has just left, so that point
/// comes first, and two cycles are enough.
fn named_point(cycle: u64, sabotaged: bool) -> Option<&'static str> {
    let turn = cycle / 2;
    let first = if sabotaged { POINTS.iter().position(|point| *point == "released").unwrap_or(0) } else { 0 };
    cycle.is_multiple_of(2).then(|| POINTS[(turn as usize + first) % POINTS.len()])
}

fn killed(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every point has its turn in twice as many cycles as there are points, sabotaged or not; the fault that is made on
    /// purpose is looked for where it shows.
    #[test]
    fn every_point_has_its_turn() {
        for sabotaged in [false, true] {
            let struck: BTreeSet<&str> =
                (0..2 * POINTS.len() as u64).filter_map(|cycle| named_point(cycle, sabotaged)).collect();
            assert_eq!(struck, POINTS.iter().copied().collect());
        }
        assert_eq!(named_point(0, true), Some("released"));
        assert_eq!(named_point(0, false), Some(POINTS[0]));
        assert_eq!(named_point(1, true), None, "chance has its turn too");
    }
}
