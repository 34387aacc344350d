//! The ledger: what the process acknowledged, noted outside of it, line by line.

use std::collections::{BTreeMap, BTreeSet};

use super::audit::Found;

/// What was acknowledged, and what was found missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// Runs whose start was acknowledged.
    pub(crate) started: BTreeMap<String, ()>,
    /// Signals that were acknowledged: run and deduplication key.
    pub(crate) signals: BTreeMap<(String, String), ()>,
    /// Runs whose end was told, with how they ended and their result.
    pub(crate) ended: BTreeMap<String, String>,
    /// Runs whose cancellation was acknowledged.
    pub(crate) cancelled: BTreeMap<String, ()>,
    /// Updates whose answer was told: run and deduplication key, with the answer.
    pub(crate) updated: BTreeMap<(String, String), String>,
    /// Runs of which an approval was acknowledged.
    pub(crate) approved: BTreeSet<String>,
    /// Calls of what must not happen twice, by run.
    pub(crate) calls: BTreeMap<String, u64>,
    /// Naps whose beginning and end one process saw, and those that were over before their time.
    pub(crate) naps: u64,
    pub(crate) naps_early: u64,
    /// Requests by SQL whose transaction was committed, and those whose transaction was rolled back.
    pub(crate) asked: BTreeSet<String>,
    pub(crate) withdrawn: BTreeSet<String>,
    /// How many were committed, on all stores.
    pub(crate) asked_in_all: u64,
    pub(crate) asked_not_once: u64,
    /// Why processes said that they can not go on.
    pub(crate) closed: Vec<String>,
    /// Acknowledgements on stores that are done with.
    before: usize,
    pub(crate) lost: u64,
    pub(crate) terminal_twice: u64,
    pub(crate) lease_overlaps: u64,
    pub(crate) rebuild_mismatches: u64,
    pub(crate) unfinished: u64,
    pub(crate) problems: Vec<String>,
}

impl Ledger {
    /// Notes a line that the process wrote after an acknowledgement. A line cut off by a kill says nothing.
    pub(crate) fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split('\t').collect();
        match words.as_slice() {
            ["started", run, "."] => {
                self.started.insert((*run).to_owned(), ());
            }
            ["signalled", run, key, "."] => {
                self.signals.insert(((*run).to_owned(), (*key).to_owned()), ());
            }
            ["ended", run, how, "."] => {
                let before = self.ended.insert((*run).to_owned(), (*how).to_owned());
                if before.is_some_and(|before| before != *how) {
                    self.terminal_twice += 1;
                    self.problems.push(format!("{run} ended twice, differently"));
                }
            }
            ["updated", run, key, answer, "."] => {
                self.updated.insert(((*run).to_owned(), (*key).to_owned()), (*answer).to_owned());
            }
            ["approved", run, "."] => {
                self.approved.insert((*run).to_owned());
            }
            ["called", run, "."] => {
                let calls = self.calls.entry((*run).to_owned()).or_default();
                *calls += 1;
                if *calls == 2 {
                    self.problems.push(format!("{run} did twice what must not happen twice"));
                }
            }
            ["napped", run, how, "."] => {
                self.naps += 1;
                if *how == "early" {
                    self.naps_early += 1;
                    self.problems.push(format!("{run} was woken before its time"));
                }
            }
            ["asked", request, "."] => {
                self.asked_in_all += u64::from(self.asked.insert((*request).to_owned()));
            }
            ["withdrawn", request, "."] => {
                self.withdrawn.insert((*request).to_owned());
            }
            ["contradicted", run, "."] => {
                self.lost += 1;
                self.problems.push(format!("{run} was said to have ended, and had not"));
            }
            ["closed", reason, "."] => self.closed.push((*reason).to_owned()),
            ["cancelled", run, "."] => {
                self.cancelled.insert((*run).to_owned(), ());
            }
            _ => {}
        }
    }

    /// How many acknowledgements were noted.
    pub(crate) fn acknowledged(&self) -> usize {
        let done = self.signals.len() + self.cancelled.len() + self.updated.len() + self.approved.len();
        self.before + self.started.len() + done + self.ended.len()
    }

    /// Runs that did twice what must not happen twice.
    pub(crate) fn called_twice(&self) -> u64 {
        self.calls.values().filter(|calls| **calls > 1).count() as u64
    }

    /// Begins anew for another store; what was counted stays.
    pub(crate) fn turn_page(&mut self) {
        self.before = self.acknowledged();
        self.started.clear();
        self.signals.clear();
        self.ended.clear();
        self.cancelled.clear();
        self.updated.clear();
        self.approved.clear();
        self.asked.clear();
        self.withdrawn.clear();
        self.closed.clear();
    }

    /// Adds what an audit found.
    pub(crate) fn add(&mut self, found: &Found) {
        self.lost += found.lost.len() as u64;
        self.asked_not_once += found.asked_not_once.len() as u64;
        self.terminal_twice += found.terminal_twice.len() as u64;
        self.lease_overlaps += found.lease_overlaps.len() as u64;
        self.rebuild_mismatches += found.mismatches.len() as u64;
        let Found { lost, terminal_twice, lease_overlaps, mismatches, asked_not_once, .. } = found;
        for list in [lost, terminal_twice, lease_overlaps, mismatches, asked_not_once] {
            self.problems.extend(list.iter().take(5).cloned());
        }
    }
}
