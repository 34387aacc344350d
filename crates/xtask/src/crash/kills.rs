//! Kills: the process is killed with SIGKILL, at random and at named points, over and over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

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
/// The last process says next to nothing until everything has ended.
const DRAIN_MAX: Duration = Duration::from_secs(180);

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

    /// One life of the process: until its point kills it, or chance does. A life that ends otherwise ends everything:
    /// what died by itself was not killed, and a store that cannot be opened again would be tried for ever.
    fn life(&mut self, cycle: u64, point: Option<(&str, u64)>) -> Result<()> {
        let seed = self.chance.u64(..);
        let process = self.spawn(seed, point, Task::Load)?;
        let lived = match point {
            Some(_) => process.die(&mut self.ledger, CYCLE_MAX),
            None => self.until_chance(process),
        };
        lived.with_context(|| format!("cycle {cycle}, point {point:?}"))?;
        self.kills += 1;
        let name = point.map_or("random", |(point, _)| point);
        *self.by_point.entry(name.to_owned()).or_default() += 1;
        Ok(())
    }

    /// When enough was acknowledged, the end comes at some moment soon.
    fn until_chance(&mut self, process: Process) -> Result<()> {
        let enough = self.ledger.acknowledged() + ACKNOWLEDGED_MIN;
        process.listen(&mut self.ledger, enough, CYCLE_MAX)?;
        process.listen_for(&mut self.ledger, Duration::from_micros(self.chance.u64(0..150_000)));
        process.kill(&mut self.ledger)
    }

    fn spawn(&self, seed: u64, point: Option<(&str, u64)>, task: Task) -> Result<Process> {
        let mut plan = Plan::new(self.options, &self.store, seed, task);
        plan.point = point.map(|(point, count)| (point.to_owned(), count));
        plan.start()
    }

    /// Lets everything come to its end, undisturbed, and looks once more.
    fn finish(&mut self) -> Result<()> {
        let seed = self.chance.u64(..);
        let status = self.spawn(seed, None, Task::Drain)?.end(&mut self.ledger, DRAIN_MAX)?;
        if !status.success() {
            self.ledger.problems.push(format!("the last process ended with {status}"));
            self.ledger.unfinished += 1;
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
