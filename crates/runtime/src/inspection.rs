//! Inspection: what is asked from outside, answered from memory and the store together.

use abide_kernel::explain::{Explanation, Service, explain};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{Refusal, Row, Run, RunId, Seq, Str};
use abide_store::{Counters, Fault, Filter, Listed, Page, Serving, Stats, Store};

use crate::admission::Unanswered;
use crate::driver::Shared;

/// What the engine counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics {
    /// What the store counted.
    pub store: Counters,
    /// Runs in memory.
    pub resident_runs: usize,
    /// Attempts that local workers execute.
    pub executing: usize,
    /// Runs whose index rows are behind.
    pub behind: usize,
}

impl Shared {
    /// The run as it stands, and the position of its last row.
    pub(crate) async fn show(&self, run: RunId) -> Result<(Run, Seq), Unanswered> {
        loop {
            match self.ask(run.slot(), Command::Show { run }).await? {
                Answer::Run(run, head) => return Ok((*run, head)),
                Answer::Refused(Refusal::Unknown) => {}
                Answer::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Unanswered::unexpected(&other)),
            }
        }
    }

    /// The run's journal from a revision on.
    pub(crate) async fn journal(&self, run: RunId, from: u64) -> Result<Vec<Row>, Unanswered> {
        let (_, head) = self.show(run).await?;
        self.reader.lock().journal(run, head, from).map_err(|fault| corrupt(run, &fault))
    }

    /// Why the run does not move, seen from its shard and from the workers of this process.
    pub(crate) async fn explain(&self, run: RunId) -> Result<Explanation, Unanswered> {
        let (shown, _) = self.show(run).await?;
        let queues: Vec<Str> = self.pools.iter().map(|pool| pool.queue.as_str().into()).collect();
        let mut around = self.core.lock().surroundings(run);
        around.service = Service::of(&shown, [(queues.as_slice(), self.programs.definitions.as_slice())]);
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
    pub(crate) fn list(&self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        // Memory first: a run that is flushed in between is then seen twice, not missed.
        let unflushed: Vec<Listed> = {
            let core = self.core.lock();
            let records = core.shards.iter().flat_map(|shard| shard.unflushed());
            records.filter(|record| !record.reservation).map(|record| Listed::from(&record)).collect()
        };
        // A stored row may stand for a run that no longer matches, so as many more are read as memory overrides.
        let wider = Page { most: page.most + unflushed.len(), before: page.before };
        let stored = self.reader.lock().list(filter, &wider)?;
        let overridden = |listed: &Listed| unflushed.iter().any(|newer| newer.run == listed.run);
        let mut all: Vec<Listed> = stored.into_iter().filter(|listed| !overridden(listed)).collect();
        let wanted = |listed: &&Listed| filter.matches(listed) && page.before.is_none_or(|before| listed.run < before);
        all.extend(unflushed.iter().filter(wanted).cloned());
        all.sort_by_key(|listed| std::cmp::Reverse(listed.run));
        all.truncate(page.most);
        Ok(all)
    }

    pub(crate) fn stats(&self) -> Result<Stats, Fault> {
        self.reader.lock().stats()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let store = self.store.lock().counters();
        // The driver may have found the store busy just now, and gone to sleep.
        self.bell.ring();
        let core = self.core.lock();
        Metrics {
            store,
            resident_runs: core.shards.iter().map(abide_kernel::Shard::resident_runs).sum(),
            executing: core.executing.len(),
            behind: core.behind(),
        }
    }
}

fn corrupt(run: RunId, fault: &Fault) -> Unanswered {
    Refusal::Corrupt { run, found: fault.to_string() }.into()
}
