//! Checkers: each looks for one kind of thing that must never be.

pub(crate) mod acknowledged;
pub(crate) mod calls;
pub(crate) mod claims;
pub(crate) mod effects;
pub(crate) mod endings;
pub(crate) mod isolation;
pub(crate) mod joins;
pub(crate) mod journal;
pub(crate) mod keys;
pub(crate) mod lines;
pub(crate) mod listing;
pub(crate) mod liveness;
pub(crate) mod order;
pub(crate) mod ownership;
pub(crate) mod projection;
pub(crate) mod refused;
pub(crate) mod timers;
pub(crate) mod undone;
pub(crate) mod uniqueness;
pub(crate) mod wakes;

use std::collections::{BTreeMap, BTreeSet};

use abide::{Fact, Row, Run, RunId, Status, Timestamp};
use abide_kernel::{Meta, Seq, ShardEpoch, ShardId};
use abide_store::Store;
use abide_store::memory::{MemoryStore, WriteFault};

use crate::Violation;
use crate::truth::Witness;

/// A run as its journal has it.
pub(crate) struct Told {
    /// Its rows, from where its journal begins.
    pub(crate) rows: Vec<Row>,
    /// The fold of them.
    pub(crate) run: Run,
    /// What was seen of it before its journal began anew.
    before: Before,
}

/// Rows that were seen before a journal began anew.
#[derive(Clone, Default)]
struct Before {
    rows: Vec<Row>,
    /// Whether rows were emptied before anybody saw them.
    gaps: bool,
}

impl Told {
    /// Every row that was seen of it.
    pub(crate) fn all_rows(&self) -> impl Iterator<Item = &Row> {
        self.before.rows.iter().chain(&self.rows)
    }

    /// Whether every row of it was seen.
    pub(crate) fn is_whole(&self) -> bool {
        !self.before.gaps
    }

    /// Looks at every fact, with the run as it was before.
    pub(crate) fn follow(&self, mut look: impl FnMut(&Run, &Row, &Fact) -> Result<(), String>) -> Result<(), String> {
        let Ok(mut run) = Run::begin(&self.rows[0]) else { return Ok(()) };
        for row in &self.rows[1..] {
            for fact in &row.facts {
                look(&run, row, fact)?;
                run.apply(fact, Meta { seq: row.seq, at: row.at });
            }
            run.rev = row.rev;
        }
        Ok(())
    }
}

/// Everything that is durable.
pub(crate) struct View {
    store: MemoryStore,
    /// All runs, but those whose records were removed.
    pub(crate) runs: BTreeMap<RunId, Told>,
    /// Runs that have changed since the last look.
    changed: BTreeSet<RunId>,
    /// Every row that says something, by run.
    rows: BTreeMap<RunId, Vec<Row>>,
    /// Runs whose records were removed.
    purged: BTreeSet<RunId>,
    /// What was seen before a journal began anew.
    before: BTreeMap<RunId, Before>,
    /// When each row was written.
    times: BTreeMap<(u16, Seq), Timestamp>,
    /// The last row of each shard that was read.
    heads: Vec<Seq>,
    /// A hash for every row that was seen, which must not change while the row says something.
    seen: BTreeMap<(u16, Seq), u64>,
    /// Who holds places of concurrency keys.
    places: keys::Places,
    /// Who waits under concurrency keys.
    pub(crate) lines: lines::Lines,
    /// How many groups of batches were torn.
    torn: u64,
    /// Index rows that were found to be right.
    compared: projection::Compared,
}

impl Before {
    /// Adds what came before a journal began anew with a row.
    fn add(&mut self, rows: Vec<Row>, anew: &Row) {
        let known = self.rows.last().map_or(0, |row| row.rev.0);
        self.rows.extend(rows.into_iter().filter(|row| row.rev.0 > known));
        let begins = self.rows.first().is_some_and(|row| row.rev.0 == 1);
        self.gaps |= !begins || !journal::is_dense(self.rows.iter().chain([anew]));
    }
}

impl View {
    pub(crate) fn new(store: MemoryStore) -> Self {
        let heads = store.map().all().map(|_| Seq(0)).collect();
        Self {
            store,
            runs: BTreeMap::new(),
            changed: BTreeSet::new(),
            rows: BTreeMap::new(),
            purged: BTreeSet::new(),
            before: BTreeMap::new(),
            heads,
            seen: BTreeMap::new(),
            times: BTreeMap::new(),
            places: keys::Places::default(),
            lines: lines::Lines::default(),
            torn: 0,
            compared: projection::Compared::new(),
        }
    }

    /// Runs that have changed since the last look.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&RunId, &Told)> {
        self.changed.iter().filter_map(|id| self.runs.get_key_value(id))
    }

    /// Runs whose records were removed.
    pub(crate) fn purged(&self) -> impl Iterator<Item = &RunId> {
        self.purged.iter()
    }

    /// Whether the record of a run was removed. It may have begun anew since.
    pub(crate) fn was_purged(&self, run: RunId) -> bool {
        self.purged.contains(&run)
    }

    /// Whether one process has the store for itself.
    pub(crate) fn is_alone(&self) -> bool {
        !self.store.is_shared()
    }

    /// Index rows that were written since the last look are what the journals say.
    pub(crate) fn compare(&mut self) -> Result<(), Violation> {
        let mut compared = std::mem::take(&mut self.compared);
        let checked = projection::check(self, &mut compared);
        self.compared = compared;
        checked
    }

    /// There is room for everybody who holds a place. A claim may follow from an end in another shard; where a group of
    /// batches was torn between the two, there may be one too many of a tenant for a while.
    pub(crate) fn check_places(&mut self) -> Result<(), Violation> {
        let appends = self.store.faults().struck().appends;
        let torn = [WriteFault::UnknownTorn, WriteFault::FatalTorn].iter().filter_map(|fault| appends.get(fault)).sum();
        if torn > self.torn {
            self.torn = torn;
            self.places.excuse();
        }
        self.places.check()
    }

    /// From now on so many attempts of a tenant may be claimed at once.
    pub(crate) fn limit(&mut self, tenant: &str, most: Option<u32>) {
        self.places.limit(tenant, most);
    }

    /// Where the log of each shard ended whenever it was taken.
    pub(crate) fn openings(&self, run: RunId) -> Vec<Seq> {
        self.store.openings(self.store.map().home(run.slot()))
    }

    /// When a row was written, whose ever it is.
    pub(crate) fn written_at(&self, run: RunId, seq: Seq) -> Option<Timestamp> {
        self.times.get(&(self.store.map().home(run.slot()).0, seq)).copied()
    }

    /// What was written under an ownership that had ended.
    fn usurped(&self) -> Option<(ShardId, ShardEpoch, ShardEpoch)> {
        self.store.faults().usurped()
    }

    /// Looks at everything in the store, also at what was seen before.
    pub(crate) fn look_again(&mut self) -> Result<(), Violation> {
        self.heads.iter_mut().for_each(|head| *head = Seq(0));
        self.rows.clear();
        self.runs.clear();
        self.look()
    }

    /// Looks at what is new in the store.
    pub(crate) fn look(&mut self) -> Result<(), Violation> {
        self.changed.clear();
        for shard in self.store.map().all() {
            let head = self.heads[usize::from(shard.0)];
            let scanned = self.store.scan(shard, head, usize::MAX / 2).map_err(|fault| fault.to_string())?;
            for row in scanned {
                let row = row.map_err(|fault| format!("journal: {fault}"))?;
                let head = &mut self.heads[usize::from(shard.0)];
                if row.seq != head.next() {
                    return Err(format!("journal: shard {} has {:?} after {head:?}", shard.0, row.seq));
                }
                let before = self.times.get(&(shard.0, *head));
                if before.is_some_and(|before| row.at < *before) {
                    return Err(format!("journal: shard {} goes back in time at {:?}", shard.0, row.seq));
                }
                *head = row.seq;
                self.times.insert((shard.0, row.seq), row.at);
                self.keep(shard.0, &row)?;
                if !row.facts.is_empty() {
                    self.changed.insert(row.run);
                    self.rows.entry(row.run).or_default().push(row);
                }
            }
        }
        for id in &self.changed {
            let Some(rows) = self.rows.get_mut(id) else { continue };
            // Long after a purge, the same request may begin a run of its own under the same id.
            if let Some(purged) = rows.iter().rposition(|row| matches!(row.facts.first(), Some(Fact::Purged))) {
                rows.drain(..=purged);
                self.before.remove(id);
                self.purged.insert(*id);
            }
            // A journal begins anew where it was compacted.
            if let Some(first) = rows.iter().rposition(|row| matches!(row.facts.first(), Some(Fact::Compacted(_)))) {
                let drained: Vec<Row> = rows.drain(..first).collect();
                journal::is_compacted(id, &drained, &rows[0])?;
                self.before.entry(*id).or_default().add(drained, &rows[0]);
            }
            let Some((first, rest)) = rows.split_first() else {
                self.runs.remove(id);
                continue;
            };
            let mut run = Run::begin(first).map_err(|bad| format!("journal: {id}: {bad:?}"))?;
            rest.iter().for_each(|row| run.apply_row(row));
            let before = self.before.get(id).cloned().unwrap_or_default();
            self.runs.insert(*id, Told { rows: rows.clone(), run, before });
        }
        Ok(())
    }

    /// A row that was seen stays as it was, unless it was emptied.
    fn keep(&mut self, shard: u16, row: &Row) -> Result<(), Violation> {
        if !self.seen.contains_key(&(shard, row.seq)) {
            self.places.follow(row);
            self.lines.follow(row);
        }
        if row.facts.is_empty() {
            self.seen.remove(&(shard, row.seq));
            return Ok(());
        }
        let hash = abide_kernel::stable_hash(format!("{row:?}").as_bytes());
        match self.seen.insert((shard, row.seq), hash) {
            Some(before) if before != hash => Err(format!("journal: row {:?} of shard {shard} has changed", row.seq)),
            _ => Ok(()),
        }
    }

    /// Runs that have not ended, and where they stand. Records that only hold a key for a run elsewhere do not count.
    pub(crate) fn open_runs(&self) -> Vec<(RunId, Status)> {
        let open = |(id, told): (&RunId, &Told)| {
            (told.run.end.is_none() && !told.run.is_reservation()).then(|| (*id, told.run.status()))
        };
        self.runs.iter().filter_map(open).collect()
    }

    pub(crate) fn hash(&self) -> u64 {
        self.seen
            .iter()
            .fold(0, |hash, ((shard, seq), row)| abide_kernel::mix(hash ^ row ^ u64::from(*shard) << 48 ^ seq.0))
    }
}

/// Asks every checker.
pub(crate) fn check(view: &View, witness: &Witness) -> Result<(), Violation> {
    let truth = witness.truth.lock();
    journal::check(view)?;
    ownership::check(view)?;
    acknowledged::check(view, &truth)?;
    refused::check(view, &truth)?;
    calls::check(view, &truth)?;
    claims::check(view)?;
    effects::check(view, &truth)?;
    timers::check(view)?;
    joins::check(view)?;
    wakes::check(view)?;
    isolation::check(view)?;
    order::check(view, &truth)?;
    view.lines.check()?;
    endings::check(view)?;
    undone::check(view, &truth)?;
    uniqueness::check(view)
}
