//! A store as someone sees it who only reads, also beside the engine that writes it: index rows, and over them
//! what the log says after their watermark.
//!
//! Nothing is locked and nothing is written. Only runs that the tail of the log touches are folded in memory; an
//! index row that is damaged or missing is replaced by the run's journal, which is the truth.

use std::collections::BTreeMap;
use std::ops::Bound;

use abide_kernel::{Fact, Row, Run, RunId, Seq, ShardId};
use abide_store::{DeadLetterItem, Fault, FaultKind, Filter, Listed, Page, Reader, Stats, StoredRun};

/// Rows read at a time.
const PAGE_ROWS: usize = 10_000;

/// What a store holds, as far as it was durable when it was read.
pub struct Snapshot {
    pub(crate) reader: Box<dyn Reader>,
    tail: BTreeMap<RunId, Tail>,
}

/// A run that the tail of the log changed: as its index row has it, and as it stands; either may be none.
pub(crate) struct ChangedRun {
    pub(crate) before: Option<Run>,
    pub(crate) after: Option<Run>,
}

/// What the log after the watermark says of a run.
enum Tail {
    Changed(Box<StoredRun>),
    Purged,
    Damaged(String),
}

impl Snapshot {
    /// Folds the log after the watermarks over the index rows.
    ///
    /// # Errors
    /// When the store cannot be read. A damaged row is no error: it sets its run aside.
    pub fn read(reader: Box<dyn Reader>) -> Result<Self, Fault> {
        let mut snapshot = Self { reader, tail: BTreeMap::new() };
        snapshot.refresh()?;
        Ok(snapshot)
    }

    /// Looks again.
    fn refresh(&mut self) -> Result<(), Fault> {
        self.tail.clear();
        // Watermarks first: what is flushed while the log is read is then seen twice, not missed.
        let watermarks: BTreeMap<ShardId, Seq> = self.reader.watermarks()?.into_iter().collect();
        for shard in self.reader.map().all() {
            let watermark = watermarks.get(&shard).copied().unwrap_or_default();
            self.fold_tail(shard, watermark)?;
        }
        Ok(())
    }

    fn fold_tail(&mut self, shard: ShardId, watermark: Seq) -> Result<(), Fault> {
        let mut after = watermark;
        loop {
            let rows = self.reader.scan(shard, after, PAGE_ROWS)?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                match row {
                    Ok(row) => {
                        after = row.seq;
                        self.fold(&row)?;
                    }
                    Err(fault) => {
                        let FaultKind::Corrupt { run, position: Some((_, seq)) } = fault.kind else {
                            return Err(fault);
                        };
                        after = seq;
                        if let Some(run) = run {
                            self.tail.insert(run, Tail::Damaged(fault.message));
                        }
                    }
                }
            }
        }
    }

    fn fold(&mut self, row: &Row) -> Result<(), Fault> {
        let next = match (self.tail.get_mut(&row.run), row.facts.first()) {
            (_, Some(Fact::Purged)) => Tail::Purged,
            (Some(Tail::Damaged(_)), _) => return Ok(()),
            // A row without facts was emptied by a purge or a compaction, whose own row is still to come.
            (_, None) => return Ok(()),
            (Some(Tail::Changed(known)), _) if !row.begins() || row.rev <= known.run.rev => match follow(known, row) {
                Ok(()) => return Ok(()),
                Err(found) => Tail::Damaged(found),
            },
            (_, Some(_)) if row.begins() => begun(row),
            (Some(Tail::Purged | Tail::Changed(_)), Some(_)) => return Ok(()),
            (None, Some(_)) => self.begin(row)?,
        };
        self.tail.insert(row.run, next);
        Ok(())
    }

    /// A run as the first row of the tail that is about it leaves it, when its journal begins before.
    fn begin(&mut self, row: &Row) -> Result<Tail, Fault> {
        if let Some(mut stored) = believed(self.reader.read_run(row.run))?
            && follow(&mut stored, row).is_ok()
        {
            return Ok(Tail::Changed(Box::new(stored)));
        }
        let rows = match self.reader.journal(row.run, row.seq, 0) {
            Ok(rows) => rows,
            Err(fault) if is_corrupt(&fault) => return Ok(Tail::Damaged(fault.message)),
            Err(fault) => return Err(fault),
        };
        let folded = fold_rows(&rows);
        Ok(folded.map_or_else(Tail::Damaged, |run| changed(run, row.seq)))
    }

    /// The run as it stands, and the position of its last row; `None` when there is no such run.
    ///
    /// # Errors
    /// When the store cannot be read, or the run's record is damaged.
    pub fn show(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        match self.tail.get(&run) {
            Some(Tail::Changed(stored)) => Ok(Some((**stored).clone())),
            Some(Tail::Purged) => Ok(None),
            Some(Tail::Damaged(found)) => Err(Fault::corrupt(Some(run), None, found.clone())),
            None => self.reader.read_run(run),
        }
    }

    /// The run's journal from a revision on; `None` when there is no such run.
    ///
    /// # Errors
    /// When the store cannot be read, or the run's record is damaged.
    pub fn journal(&mut self, run: RunId, from: u64) -> Result<Option<Vec<Row>>, Fault> {
        let mut before = None;
        loop {
            let Some(stored) = self.show(run)? else {
                return Ok(None);
            };
            let rows = self.reader.journal(run, stored.head, from)?;
            if rows.iter().all(|row| !row.facts.is_empty()) || before == Some(stored.head) {
                return Ok(Some(rows));
            }
            before = Some(stored.head);
            // The engine beside us has compacted or purged the run since: what it was then cannot be told any more.
            self.refresh()?;
        }
    }

    /// Runs that match, newest first.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        let upper = page.before.map_or(Bound::Unbounded, Bound::Excluded);
        let changed = self.tail.range((Bound::Unbounded, upper)).filter_map(open);
        let mut all: Vec<Listed> = changed.map(listed).filter(|listed| filter.matches(listed)).collect();
        // A stored row may stand for a run that no longer matches, so as many more are read as the tail overrides.
        let wider = Page { most: page.most.saturating_add(self.tail.len()), before: page.before };
        let stored = self.reader.list(filter, &wider)?;
        all.extend(stored.into_iter().filter(|listed| !self.tail.contains_key(&listed.run)));
        all.sort_by_key(|listed| std::cmp::Reverse(listed.run));
        all.truncate(page.most);
        Ok(all)
    }

    /// Run ids that begin with `prefix` (hex digits, without `run_`), at most `most`.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault> {
        let mut found = self.reader.find(prefix, most.saturating_add(self.tail.len()))?;
        found.retain(|run| !matches!(self.tail.get(run), Some(Tail::Purged)));
        let begins = |run: &RunId| format!("{:032x}", run.0).starts_with(prefix);
        // A damaged run is found too: it can be asked about, and the answer says what is wrong with it.
        let others = self.tail.iter().filter(|(_, tail)| match tail {
            Tail::Changed(stored) => !stored.run.is_reservation(),
            Tail::Purged => false,
            Tail::Damaged(_) => true,
        });
        found.extend(others.map(|(run, _)| *run).filter(begins));
        found.sort_unstable();
        found.dedup();
        found.truncate(most);
        Ok(found)
    }

    /// Envelopes that were set aside.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault> {
        self.reader.dead_letters()
    }

    /// Sizes and counts, with runs as the tail has them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn stats(&mut self) -> Result<Stats, Fault> {
        let mut stats = self.reader.stats()?;
        let mut counts: BTreeMap<String, u64> = stats.runs.into_iter().collect();
        for (run, tail) in &self.tail {
            let stored = believed(self.reader.read_run(*run))?;
            let before = stored.filter(|stored| !stored.run.is_reservation());
            if let Some(count) = before.and_then(|stored| counts.get_mut(stored.run.status().name())) {
                *count = count.saturating_sub(1);
            }
            if let Some(stored) = open((run, tail)) {
                *counts.entry(stored.run.status().name().to_owned()).or_default() += 1;
            }
        }
        stats.runs = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        Ok(stats)
    }

    /// Runs that the tail of the log changed.
    pub(crate) fn changed_runs(&mut self) -> Result<Vec<ChangedRun>, Fault> {
        let mut changed = Vec::with_capacity(self.tail.len());
        for (run, tail) in &self.tail {
            let before = believed(self.reader.read_run(*run))?.filter(|stored| !stored.run.is_reservation());
            let after = open((run, tail)).map(|stored| stored.run.clone());
            changed.push(ChangedRun { before: before.map(|stored| stored.run), after });
        }
        Ok(changed)
    }

    /// Runs that the tail of the log shows to be damaged, and what is wrong with them.
    pub fn damaged(&self) -> impl Iterator<Item = (RunId, &str)> {
        self.tail.iter().filter_map(|(run, tail)| match tail {
            Tail::Damaged(found) => Some((*run, found.as_str())),
            Tail::Changed(_) | Tail::Purged => None,
        })
    }
}

/// A run as the row leaves it with which its journal begins.
fn begun(row: &Row) -> Tail {
    Run::begin(row).map_or_else(|bad| Tail::Damaged(bad.to_string()), |run| changed(run, row.seq))
}

fn changed(run: Run, head: Seq) -> Tail {
    Tail::Changed(Box::new(StoredRun { run, head }))
}

/// A run of the tail that is listed: neither gone, nor damaged, nor only the holder of a key.
fn open<'a>((_, tail): (&'a RunId, &'a Tail)) -> Option<&'a StoredRun> {
    match tail {
        Tail::Changed(stored) if !stored.run.is_reservation() => Some(stored),
        Tail::Changed(_) | Tail::Purged | Tail::Damaged(_) => None,
    }
}

/// An index row that is damaged is as good as none: the journal tells the same.
fn believed(stored: Result<Option<StoredRun>, Fault>) -> Result<Option<StoredRun>, Fault> {
    match stored {
        Err(fault) if is_corrupt(&fault) => Ok(None),
        other => other,
    }
}

pub(crate) fn is_corrupt(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Corrupt { .. })
}

/// Applies a row that follows the run, skips one that it has already.
fn follow(known: &mut StoredRun, row: &Row) -> Result<(), String> {
    if row.rev <= known.run.rev {
        return Ok(());
    }
    if row.rev.0 != known.run.rev.0 + 1 {
        return Err(format!("row {} has rev {}, which does not follow rev {}", row.seq.0, row.rev.0, known.run.rev.0));
    }
    known.run.apply_row(row);
    known.head = row.seq;
    Ok(())
}

/// The run that a whole journal folds to.
pub(crate) fn fold_rows(rows: &[Row]) -> Result<Run, String> {
    let Some((first, rest)) = rows.split_first() else {
        return Err("its journal is empty".into());
    };
    let mut run = Run::begin(first).map_err(|bad| bad.to_string())?;
    for row in rest {
        run.apply_row(row);
    }
    Ok(run)
}

/// What a listing shows of a run: the same as its index row would.
fn listed(stored: &StoredRun) -> Listed {
    let run = &stored.run;
    let spec = &run.started.spec;
    Listed {
        run: run.id,
        namespace: spec.namespace.clone(),
        workflow: spec.workflow.clone(),
        version: spec.version,
        queue: spec.queue.clone(),
        status: run.status(),
        step: run.cursors.first().and_then(|cursor| cursor.step.clone()),
        key: spec.key.as_ref().map(|key| key.key.clone()),
        parent: run.started.parent.as_ref().filter(|_| !run.orphaned).map(|parent| parent.run),
        labels: spec.labels.clone(),
        created_at: run.created_at,
        updated_at: run.updated_at,
        due: run.next_due(),
        rev: run.rev.0,
    }
}
