//! The demo's verdict: every acknowledgement is looked for in the store, and every run must have ended once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use abide_kernel::{Fact, RunId, Status};
use abide_runtime::{Audit, Snapshot};
use abide_store::sqlite::open_read_only;
use abide_store::{Filter, Page};

use super::story::Story;
use crate::failure::Failure;
use crate::screen::{Screen, Tone};

/// What was found.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) runs: usize,
    pub(super) acknowledged: usize,
    pub(super) lost: usize,
    pub(super) terminal_twice: usize,
    pub(super) problems: u64,
    pub(super) attempts: usize,
    pub(super) attempts_lost: usize,
    pub(super) retries: usize,
    pub(super) charge_calls: usize,
    pub(super) charged_twice: usize,
}

pub(super) fn judge(dir: &Path, story: &Story) -> Result<Verdict, Failure> {
    let path = dir.join(super::STORE);
    let mut verdict = Verdict { problems: Audit::of(&mut open_read_only(&path)?)?.found, ..Verdict::default() };
    let mut snapshot = Snapshot::read(Box::new(open_read_only(&path)?))?;
    let page = Page { most: 100_000, before: None };
    let listed = snapshot.list(&Filter::default(), &page)?;
    verdict.runs = listed.len();
    let mut journals: BTreeMap<RunId, Vec<Fact>> = BTreeMap::new();
    for listed in &listed {
        let rows = snapshot.journal(listed.run, 0)?.unwrap_or_default();
        let facts: Vec<Fact> = rows.into_iter().flat_map(|row| row.facts).collect();
        verdict.count(&facts);
        journals.insert(listed.run, facts);
    }
    for order in &story.orders {
        let facts = order.run.and_then(|run| journals.get(&run));
        let ended = |fact: &Fact| matches!(fact, Fact::Ended(ended) if ended.status == Status::Done);
        let signalled = |fact: &Fact| matches!(fact, Fact::SignalReceived(_));
        verdict.acknowledged += usize::from(order.run.is_some()) + usize::from(order.paid);
        let kept = facts.is_some_and(|facts| facts.iter().any(ended));
        verdict.lost += usize::from(order.run.is_some() && !kept);
        let heard = facts.is_some_and(|facts| facts.iter().any(signalled));
        verdict.lost += usize::from(order.paid && !heard);
    }
    verdict.count_charges(&dir.join(super::CHARGES))?;
    Ok(verdict)
}

impl Verdict {
    fn count(&mut self, facts: &[Fact]) {
        let count = |wanted: fn(&Fact) -> bool| facts.iter().filter(|fact| wanted(fact)).count();
        self.terminal_twice += usize::from(count(|fact| matches!(fact, Fact::Ended(_))) > 1);
        self.attempts += count(|fact| matches!(fact, Fact::Claimed(_)));
        self.attempts_lost += count(|fact| matches!(fact, Fact::Expired(_)));
        self.retries += count(|fact| matches!(fact, Fact::Failed(_)));
    }

    /// The card service's book: every call by order and key. Calls with one key are one charge.
    fn count_charges(&mut self, book: &Path) -> Result<(), Failure> {
        let text = std::fs::read_to_string(book)?;
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (order, key) in text.lines().filter_map(|line| line.split_once(' ')) {
            self.charge_calls += 1;
            keys.entry(order).or_default().insert(key);
        }
        self.charged_twice = keys.values().filter(|keys| keys.len() > 1).count();
        Ok(())
    }

    pub(super) fn tell(&self, screen: &Screen, story: &Story) -> Result<(), Failure> {
        let sound = |bad: usize| if bad == 0 { Tone::Good } else { Tone::Bad };
        let lines = [
            (
                Tone::Strong,
                format!(
                    "{} kills, {:.1} s, {} orders, {} runs",
                    story.kills.len(),
                    story.took.as_secs_f64(),
                    story.orders.len(),
                    self.runs
                ),
            ),
            (
                Tone::Plain,
                format!(
                    "{} attempts: {} died with their worker and ran again, {} failed and were retried",
                    self.attempts, self.attempts_lost, self.retries
                ),
            ),
            (
                sound(self.charged_twice),
                format!(
                    "{} calls to the card service, {} cards charged twice: each retry carried the same key",
                    self.charge_calls, self.charged_twice
                ),
            ),
            (sound(self.lost), format!("{} acknowledgements, {} lost", self.acknowledged, self.lost)),
            (sound(self.terminal_twice), format!("{} runs, {} ended twice", self.runs, self.terminal_twice)),
            (sound(self.problems as usize), format!("the store was read from end to end: {} problems", self.problems)),
        ];
        screen.line("")?;
        for (tone, line) in lines {
            screen.line(&format!("  {}", screen.paint(tone, &line)))?;
        }
        Ok(())
    }
}
