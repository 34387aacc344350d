//! Checkers: each looks for one kind of thing that must never be.

pub(crate) mod acknowledged;
pub(crate) mod claims;
pub(crate) mod effects;
pub(crate) mod isolation;
pub(crate) mod joins;
pub(crate) mod journal;
pub(crate) mod liveness;
pub(crate) mod order;
pub(crate) mod projection;
pub(crate) mod timers;
pub(crate) mod uniqueness;
pub(crate) mod wakes;

use std::collections::BTreeMap;

use abide::{Fact, Row, Run, RunId, Status};
use abide_kernel::Seq;
use abide_store::Store;
use abide_store::memory::MemoryStore;

use crate::Violation;
use crate::truth::Witness;

/// A run as its journal has it.
pub(crate) struct Told {
    /// Its rows, from where its journal begins.
    pub(crate) rows: Vec<Row>,
    /// The fold of them.
    pub(crate) run: Run,
}

/// Everything that is durable.
pub(crate) struct View {
    store: MemoryStore,
    /// All runs, but those whose records were removed.
    pub(crate) runs: BTreeMap<RunId, Told>,
    /// A hash for every row that was seen, which must not change while the row says something.
    seen: BTreeMap<(u16, Seq), u64>,
}

impl View {
    pub(crate) fn new(store: MemoryStore) -> Self {
        Self { store, runs: BTreeMap::new(), seen: BTreeMap::new() }
    }

    /// Looks at the store.
    pub(crate) fn look(&mut self) -> Result<(), Violation> {
        let mut rows: BTreeMap<RunId, Vec<Row>> = BTreeMap::new();
        for shard in self.store.map().all() {
            let scanned = self.store.scan(shard, Seq(0), usize::MAX / 2).map_err(|fault| fault.to_string())?;
            for (index, row) in scanned.into_iter().enumerate() {
                let row = row.map_err(|fault| format!("journal: {fault}"))?;
                if row.seq != Seq(index as u64 + 1) {
                    return Err(format!("journal: shard {} has {:?} in place {}", shard.0, row.seq, index + 1));
                }
                self.keep(shard.0, &row)?;
                if !row.facts.is_empty() {
                    rows.entry(row.run).or_default().push(row);
                }
            }
        }
        self.runs.clear();
        for (id, rows) in rows {
            // Long after a purge, the same request may begin a run of its own under the same id.
            let purged = rows.iter().rposition(|row| matches!(row.facts.first(), Some(Fact::Purged)));
            let rows = &rows[purged.map_or(0, |purged| purged + 1)..];
            if rows.is_empty() {
                continue;
            }
            // A journal begins anew where it was compacted.
            let first = rows.iter().rposition(|row| matches!(row.facts.first(), Some(Fact::Compacted(_)))).unwrap_or(0);
            let rows = rows[first..].to_vec();
            let mut run = Run::begin(&rows[0]).map_err(|bad| format!("journal: {id}: {bad:?}"))?;
            rows[1..].iter().for_each(|row| run.apply_row(row));
            self.runs.insert(id, Told { rows, run });
        }
        Ok(())
    }

    /// A row that was seen stays as it was, unless it was emptied.
    fn keep(&mut self, shard: u16, row: &Row) -> Result<(), Violation> {
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
    acknowledged::check(view, &truth)?;
    claims::check(view)?;
    effects::check(view, &truth)?;
    timers::check(view)?;
    joins::check(view)?;
    wakes::check(view)?;
    isolation::check(view)?;
    order::check(view)?;
    uniqueness::check(view)
}
