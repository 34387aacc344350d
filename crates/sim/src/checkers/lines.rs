//! Under a concurrency key attempts are claimed in order: first by priority, then by when they became eligible, then as they
//! arrived. One is claimed only while there is room for all that come before it; and of those none is of its own workflow, which
//! its claimant could as well have been given.
//!
//! Who comes before is read from the log of the key's shard. An attempt that had to wait for an instant joins the line when its
//! shard takes notice of that instant, which no fact tells: it is held to the order, and nobody is held to its place.

use std::collections::BTreeMap;

use abide::{Fact, Row, RunId, Timestamp};
use abide_kernel::{Phase, Run, Seq, StartSpec, Str};

use crate::Violation;

/// A run, and one of its cursors.
type Place = (RunId, u16);

/// A tenant, and a concurrency key of its.
type Key = (Str, Str);

/// What is known of a run that has a key.
struct Member {
    key: Key,
    limit: u32,
    priority: i32,
    workflow: Str,
}

/// An attempt that is scheduled.
#[derive(Clone, Copy)]
struct Waiting {
    eligible_at: Timestamp,
    arrival: Seq,
    /// Whether its shard knows that it may be claimed.
    ready: bool,
}

/// A claim that stands in the row of what it follows from, and may have been made when rows after that were written.
struct Riding {
    claim: u32,
    ahead: Vec<Place>,
}

/// The lines of all keys, as far as the logs were read.
#[derive(Default)]
pub(crate) struct Lines {
    members: BTreeMap<RunId, Member>,
    waiting: BTreeMap<Key, BTreeMap<Place, Waiting>>,
    claimed: BTreeMap<Place, Waiting>,
    riding: BTreeMap<Place, Riding>,
    /// Claims that others had to wait behind.
    kept: u64,
    wrong: Option<Violation>,
}

impl Lines {
    /// Follows one row, each of a shard in its order.
    pub(crate) fn follow(&mut self, row: &Row) {
        match row.facts.first() {
            Some(Fact::Started(started)) => self.knows(row.run, &started.spec),
            Some(Fact::Compacted(run)) => self.begins_anew(row, run),
            _ => {}
        }
        if !self.members.contains_key(&row.run) {
            return;
        }
        // What was emptied before anybody looked may have been anything.
        if row.facts.is_empty() {
            self.forgets(row.run);
        }
        let mut alone = true;
        for fact in &row.facts {
            match fact {
                Fact::Scheduled(scheduled) => {
                    let eligible_at = scheduled.visible_at.unwrap_or(row.at);
                    let ready = eligible_at <= row.at;
                    self.waits((row.run, scheduled.cursor), Waiting { eligible_at, arrival: row.seq, ready });
                }
                Fact::Claimed(claimed) => self.claims((row.run, claimed.cursor), claimed.claim, alone),
                Fact::Returned(claim) => {
                    self.ends((row.run, claim.cursor), claim.claim);
                    if let Some(waiting) = self.claimed.remove(&(row.run, claim.cursor)) {
                        self.waits((row.run, claim.cursor), Waiting { ready: true, ..waiting });
                    }
                }
                Fact::Expired(claim) => self.ends((row.run, claim.cursor), claim.claim),
                Fact::Completed(completed) => self.ends((row.run, completed.cursor), completed.claim),
                Fact::Failed(failed) => self.ends((row.run, failed.cursor), failed.claim),
                Fact::DeadLettered(letter) => drop(self.leaves((row.run, letter.cursor))),
                Fact::Ended(_) | Fact::Purged => self.forgets(row.run),
                _ => {}
            }
            alone &= matches!(fact, Fact::Pinned(_) | Fact::Progressed(_));
        }
    }

    /// Whether every claim was in order.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// How many claims others had to wait behind.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    fn knows(&mut self, run: RunId, spec: &StartSpec) {
        if let Some(concurrency) = &spec.concurrency {
            let key = (spec.namespace.clone(), concurrency.key.clone());
            let (limit, priority, workflow) = (concurrency.limit, spec.priority, spec.workflow.clone());
            self.members.insert(run, Member { key, limit, priority, workflow });
        }
    }

    /// A journal begins anew. Of whoever waits, no fact tells whether its shard knows that it may be claimed.
    fn begins_anew(&mut self, row: &Row, run: &Run) {
        self.forgets(row.run);
        self.knows(row.run, &run.started.spec);
        for (index, cursor) in run.cursors.iter().enumerate() {
            if let Phase::Scheduled { visible_at, arrival } = cursor.phase {
                self.waits((row.run, index as u16), Waiting { eligible_at: visible_at, arrival, ready: false });
            }
        }
    }

    fn line(&mut self, run: RunId) -> Option<&mut BTreeMap<Place, Waiting>> {
        let key = &self.members.get(&run)?.key;
        Some(self.waiting.entry(key.clone()).or_default())
    }

    fn waits(&mut self, place: Place, waiting: Waiting) {
        self.line(place.0).and_then(|line| line.insert(place, waiting));
    }

    /// It waits no more, and nobody waits behind it.
    fn leaves(&mut self, place: Place) -> Option<Waiting> {
        self.riding.values_mut().for_each(|riding| riding.ahead.retain(|ahead| *ahead != place));
        self.line(place.0)?.remove(&place)
    }

    fn forgets(&mut self, run: RunId) {
        let of_run = (run, 0)..=(run, u16::MAX);
        let waiting = self.line(run).map(|line| line.range(of_run.clone()).map(|(place, _)| *place).collect());
        let waiting: Vec<Place> = waiting.unwrap_or_default();
        for place in waiting {
            self.leaves(place);
        }
        self.claimed.retain(|place, _| !of_run.contains(place));
        self.riding.retain(|place, _| !of_run.contains(place));
    }

    /// An attempt is claimed. In a row of its own it is claimed when everything before that row was so and nothing after;
    /// else at some time before it ends: whoever waits for all of that time waited when it was claimed.
    fn claims(&mut self, place: Place, claim: u32, alone: bool) {
        let Some(waiting) = self.leaves(place) else { return };
        self.claimed.insert(place, waiting);
        let ahead = self.ahead(place, waiting);
        if alone {
            self.judge(place, &ahead);
        } else {
            self.riding.insert(place, Riding { claim, ahead });
        }
    }

    fn ends(&mut self, place: Place, claim: u32) {
        if let Some(riding) = self.riding.remove(&place).filter(|riding| riding.claim == claim) {
            self.judge(place, &riding.ahead);
        }
    }

    /// Who waits before an attempt.
    fn ahead(&mut self, place: Place, waiting: Waiting) -> Vec<Place> {
        let order = |place: Place, waiting: Waiting| {
            let priority = self.members.get(&place.0).map(|member| member.priority);
            (priority, waiting.eligible_at, waiting.arrival, place)
        };
        let Some(line) = self.members.get(&place.0).and_then(|member| self.waiting.get(&member.key)) else {
            return Vec::new();
        };
        let ours = order(place, waiting);
        let others = line.iter().filter(|(_, other)| other.ready);
        let others = others.map(|(other, waiting)| order(*other, *waiting));
        let (ahead, behind): (Vec<_>, Vec<_>) = others.partition(|other| *other < ours);
        self.kept += u64::from(!behind.is_empty());
        ahead.into_iter().map(|(.., other)| other).collect()
    }

    fn judge(&mut self, place: Place, ahead: &[Place]) {
        let Some(member) = self.members.get(&place.0) else { return };
        let of_ours =
            |other: &&Place| self.members.get(&other.0).is_some_and(|other| other.workflow == member.workflow);
        let ours = ahead.iter().find(of_ours);
        if ahead.len() >= member.limit as usize || ours.is_some() {
            let (run, (tenant, key), limit) = (place.0, &member.key, member.limit);
            let wrong =
                format!("lines: {run} is claimed before {ahead:?} under {key} of {tenant}, which has room for {limit}");
            self.wrong.get_or_insert(wrong);
        }
    }
}
