//! Inspection: what is asked from outside, answered from memory and the store together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use abide_kernel::explain::{Explanation, Service, explain};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{Refusal, Row, Run, RunId, Seq, Shard, Str, Timestamp};
use abide_store::{Counters, Depth, Fault, Filter, Listed, Membership, Page, Serving, Stats, Store};

use crate::admission::Unanswered;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::telemetry::Meter;

/// How late a deadline is that counts as overdue.
const LATE_MS: i64 = 1_000;

/// Positions that whoever reads on in a journal keeps.
const TRAIL_MAX: usize = 16_384;

/// What the engine counted so far.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// What the store counted.
    pub store: Counters,
    /// Runs in memory.
    pub resident_runs: usize,
    /// Attempts that local workers execute.
    pub executing: usize,
    /// Runs whose index rows are behind.
    pub behind: usize,
    /// Runs for which something should have happened by itself a second ago, and has not.
    pub timers_overdue: usize,
    /// What happened so far.
    pub meter: Meter,
}

/// A place in a run's journal, from which it is read on. Rows lead back to each other, never on: so the way there is gone
/// once, and where the next rows lie is kept.
#[derive(Clone, Debug)]
pub struct Trail {
    run: RunId,
    from: u64,
    ahead: VecDeque<Seq>,
}

impl Trail {
    /// From a revision on.
    #[must_use]
    pub fn new(run: RunId, from: u64) -> Self {
        Self { run, from, ahead: VecDeque::new() }
    }

    /// The revision that is read next, if rows are known to follow those that were read last.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        (!self.ahead.is_empty()).then_some(self.from)
    }
}

impl Engine {
    /// Reads on in a run's journal: at most so many rows, and until their facts take up so many bytes; at least one, if
    /// there is any.
    ///
    /// # Errors
    /// When there is no such run, its record is damaged, or the engine has stopped.
    pub async fn read_on(&self, trail: &mut Trail, most: usize, bytes: usize) -> Result<Vec<Row>, Unanswered> {
        self.shared.read_on(trail, most, bytes).await
    }

    /// How much waits in each queue, of all namespaces, as the index rows have it: what changed in the last moments may be
    /// missing. It blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn depths(&self) -> Result<Vec<Depth>, Fault> {
        self.shared.views.count(|reader| reader.depths(None))
    }

    /// How many bytes the store takes up. It blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn store_bytes(&self) -> Result<u64, Fault> {
        self.shared.views.count(|reader| reader.bytes())
    }
}

impl Shared {
    /// The run as it stands, and the position of its last row.
    pub(crate) async fn show(self: &Arc<Self>, run: RunId) -> Result<(Run, Seq), Unanswered> {
        match self.ask_until_known(run.slot(), Command::Show { run }).await? {
            Answer::Run(run, head) => Ok((*run, head)),
            other => Err(Unanswered::unexpected(&other)),
        }
    }

    /// The run's journal from a revision on.
    pub(crate) async fn journal(self: &Arc<Self>, run: RunId, from: u64) -> Result<Vec<Row>, Unanswered> {
        let mut before = None;
        loop {
            let (_, head) = self.show(run).await?;
            let read = self.look(move |reader| reader.journal(run, head, from)).await?;
            let rows = read.map_err(|fault| corrupt(run, &fault))?;
            // Emptied meanwhile: the run was compacted or purged after it was shown, and is shown otherwise now.
            if rows.iter().all(|row| !row.facts.is_empty()) || before == Some(head) {
                return Ok(rows);
            }
            before = Some(head);
        }
    }

    /// Reads on in a journal.
    pub(crate) async fn read_on(
        self: &Arc<Self>,
        trail: &mut Trail,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<Row>, Unanswered> {
        let (run, mut before) = (trail.run, None);
        loop {
            let from = trail.from;
            let head = if trail.ahead.is_empty() { Some(self.show(run).await?.1) } else { None };
            let mut ahead = std::mem::take(&mut trail.ahead);
            let read = self.look(move |reader| {
                if let Some(head) = head {
                    ahead = reader.trail(run, head, from, TRAIL_MAX)?.into();
                }
                let places: Vec<Seq> = ahead.iter().take(most).copied().collect();
                let rows = reader.rows(run, &places, bytes)?;
                ahead.drain(..rows.len());
                Ok((ahead, rows))
            });
            let (ahead, rows) = read.await?.map_err(|fault| corrupt(run, &fault))?;
            // Emptied meanwhile, as in `journal`.
            if rows.iter().all(|row| !row.facts.is_empty()) || (head.is_some() && before == head) {
                trail.from = rows.last().map_or(from, |last| last.rev.0 + 1);
                trail.ahead = ahead;
                return Ok(rows);
            }
            before = head;
        }
    }

    /// Why the run does not move, seen from its shard and from the workers of this process.
    pub(crate) async fn explain(self: &Arc<Self>, run: RunId) -> Result<Explanation, Unanswered> {
        let (shown, _) = self.show(run).await?;
        let queues: Vec<Str> = self.pools.iter().map(|pool| pool.queue.as_str().into()).collect();
        let mut core = self.core.lock();
        let mut around = core.surroundings(run);
        let outside = core.desk.services(&shown.started.spec.namespace);
        drop(core);
        let here = [(queues.as_slice(), self.programs.definitions.as_slice())];
        let outside = outside.iter().map(|(queues, definitions)| (queues.as_slice(), definitions.as_slice()));
        around.service = Service::of(&shown, here.into_iter().chain(outside));
        Ok(explain(&shown, &around, self.now()))
    }

    /// Tells those who only read the store what this engine can execute.
    pub(crate) fn announce(&self, store: &mut dyn Store) {
        let queues = self.pools.iter().map(|pool| pool.queue.as_str().into()).collect();
        let definitions = self.programs.definitions.clone();
        if let Err(fault) = store.announce(&Serving { queues, definitions }) {
            tracing::warn!(%fault, "others cannot see what this engine executes; nothing depends on it");
        }
    }

    /// Runs that match, newest first: index rows, and what has changed since they were written.
    pub(crate) async fn list(self: &Arc<Self>, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Unanswered> {
        // Memory first: a run that is flushed in between is then seen twice, not missed.
        let (newer, gone) = self.unflushed().await?;
        // A stored row may stand for a run that no longer matches, so as many more are read as memory overrides.
        let overridden = newer.len() + gone.len();
        let wider = Page { most: page.most.saturating_add(overridden), before: page.before };
        let matching = filter.clone();
        let stored = self.look(move |reader| reader.list(&matching, &wider)).await??;
        let current = |listed: &Listed| !newer.contains_key(&listed.run) && !gone.contains(&listed.run);
        let mut all: Vec<Listed> = stored.into_iter().filter(current).collect();
        let wanted = |listed: &&Listed| filter.matches(listed) && page.before.is_none_or(|before| listed.run < before);
        all.extend(newer.values().filter(wanted).cloned());
        all.sort_by_key(|listed| std::cmp::Reverse(listed.run));
        all.truncate(page.most);
        Ok(all)
    }

    /// What the index rows of all shards do not say yet: runs that changed, and runs that are gone.
    async fn unflushed(self: &Arc<Self>) -> Result<(BTreeMap<RunId, Listed>, BTreeSet<RunId>), Unanswered> {
        let (mut newer, mut gone) = (BTreeMap::new(), BTreeSet::new());
        let map = self.core.lock().map;
        for slot in map.all().map(|shard| map.first_slot(shard)) {
            let unflushed = match self.ask_until_known(slot, Command::Unflushed).await? {
                Answer::Unflushed(unflushed) => unflushed,
                other => return Err(Unanswered::unexpected(&other)),
            };
            let records = unflushed.records.iter().filter(|record| !record.reservation);
            newer.extend(records.map(|record| (record.run, Listed::from(record))));
            gone.extend(unflushed.gone);
        }
        Ok((newer, gone))
    }

    pub(crate) fn stats(&self) -> Result<Stats, Fault> {
        self.views.count(|reader| reader.stats())
    }

    pub(crate) fn membership(&self) -> Result<Option<Membership>, Fault> {
        self.reader.lock().membership()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let store = self.visit().counters();
        let now = self.now();
        let core = self.core.lock();
        let late = |shard: &Shard| shard.overdue(Timestamp(now.0.saturating_sub(LATE_MS)));
        Metrics {
            store,
            resident_runs: core.served().map(Shard::resident_runs).sum(),
            executing: core.executing.len(),
            behind: core.behind(),
            timers_overdue: core.served().map(late).sum(),
            meter: core.meter.clone(),
        }
    }
}

fn corrupt(run: RunId, fault: &Fault) -> Unanswered {
    Refusal::Corrupt { run, found: fault.to_string() }.into()
}
