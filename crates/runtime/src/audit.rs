//! Audit: everything a store holds is read once and held against itself. It repairs nothing.
//!
//! First the log in order: every checksum, no gap, every row pointing at its run's row before it. Then run by run:
//! the journal is folded, its invariants are checked, and the fold is compared with the checkpoint. Memory grows by
//! a few words per run, not by what runs hold.

use std::collections::BTreeMap;

use abide_kernel::{Fact, Rev, Row, Run, RunId, Seq, ShardId};
use abide_store::{Fault, FaultKind, Filter, Page, Reader, StoredRun};

use crate::snapshot::is_corrupt;

const PAGE_ROWS: usize = 10_000;
const PAGE_RUNS: usize = 1_000;
/// Problems that are kept; more are only counted.
const PROBLEMS_KEPT: usize = 1_000;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Journal rows that were read.
    pub rows: u64,
    /// Runs that were folded.
    pub runs: u64,
    /// Runs whose record was purged.
    pub purged: u64,
    /// How many problems there are.
    pub found: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

/// Something in a store that is not as it was written, or does not fit the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The run, if it is known.
    pub run: Option<RunId>,
    /// The shard and position of the journal row, if it is about one.
    pub position: Option<(ShardId, Seq)>,
    /// What was expected and what was found.
    pub what: String,
}

/// What the log of a shard says.
struct Log {
    /// Of each run, in short.
    chains: BTreeMap<RunId, Chain>,
    end: Seq,
    /// Whether it could be read to its end.
    whole: bool,
}

/// What the log says of a run, in short.
struct Chain {
    head: Seq,
    rev: u64,
    /// A row of it was emptied, and no compacted row came after it.
    emptied: bool,
    /// Its last row removes it.
    purged: bool,
    /// Something was found already: the rest would only repeat it.
    broken: bool,
}

impl Audit {
    /// Reads everything. What the engine writes meanwhile is left for another time.
    ///
    /// # Errors
    /// When the store cannot be read at all. Damage is no error: it is what is looked for.
    pub fn of(reader: &mut dyn Reader) -> Result<Self, Fault> {
        let mut audit = Self::default();
        let watermarks: BTreeMap<ShardId, Seq> = match reader.watermarks() {
            Ok(watermarks) => watermarks.into_iter().collect(),
            // Without them index rows are held against the log only where they say something.
            Err(fault) => {
                audit.add_fault(fault)?;
                BTreeMap::new()
            }
        };
        for shard in reader.map().all() {
            let watermark = watermarks.get(&shard).copied().unwrap_or_default();
            let Log { chains, end, whole } = audit.read_log(reader, shard)?;
            if !whole {
                continue;
            }
            if watermark > end {
                let what = format!(
                    "index rows cover the log of shard {} up to {}, but it ends at {}",
                    shard.0, watermark.0, end.0
                );
                audit.add(None, Some((shard, end.next())), what);
            }
            for (run, chain) in &chains {
                audit.check_run(reader, *run, chain, watermark.min(end), end)?;
            }
            audit.check_strays(reader, shard, &chains, end)?;
        }
        if let Err(fault) = reader.dead_letters() {
            audit.add_fault(fault)?;
        }
        Ok(audit)
    }

    fn add(&mut self, run: Option<RunId>, position: Option<(ShardId, Seq)>, what: String) {
        self.found += 1;
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(Problem { run, position, what });
        }
    }

    fn add_fault(&mut self, fault: Fault) -> Result<(), Fault> {
        match fault.kind {
            FaultKind::Corrupt { run, position } => {
                self.add(run, position, fault.message);
                Ok(())
            }
            FaultKind::Refused
            | FaultKind::Unknown
            | FaultKind::Fatal
            | FaultKind::Held
            | FaultKind::Importing
            | FaultKind::Unusable => Err(fault),
        }
    }

    /// Every row of a shard's log, in order.
    fn read_log(&mut self, reader: &mut dyn Reader, shard: ShardId) -> Result<Log, Fault> {
        let mut chains: BTreeMap<RunId, Chain> = BTreeMap::new();
        let mut after = Seq(0);
        loop {
            let rows = match reader.scan(shard, after, PAGE_ROWS) {
                Ok(rows) => rows,
                // Of what comes behind it nothing is known, and so nothing is said.
                Err(fault) => {
                    self.add_fault(fault)?;
                    return Ok(Log { chains, end: after, whole: false });
                }
            };
            if rows.is_empty() {
                return Ok(Log { chains, end: after, whole: true });
            }
            for row in rows {
                match row {
                    Ok(row) => {
                        after = row.seq;
                        self.rows += 1;
                        self.link(shard, &mut chains, &row);
                    }
                    Err(fault) => {
                        let seq = fault.position();
                        if let FaultKind::Corrupt { run: Some(run), .. } = fault.kind {
                            break_chain(&mut chains, run, seq);
                        }
                        self.add_fault(fault)?;
                        after = seq.unwrap_or_else(|| after.next());
                    }
                }
            }
        }
    }

    /// Whether the row follows its run's row before it.
    fn link(&mut self, shard: ShardId, chains: &mut BTreeMap<RunId, Chain>, row: &Row) {
        let known = chains.get(&row.run);
        let (head, rev) = known.map_or((Seq(0), 0), |chain| (chain.head, chain.rev));
        let broken = known.is_some_and(|chain| chain.broken);
        let compacted = matches!(row.facts.first(), Some(Fact::Compacted(_)));
        let starts_over = known.is_none() && compacted;
        let follows = row.prior == head && row.rev.0 == rev + 1;
        if !follows && !starts_over && !broken {
            let what = format!(
                "expected rev {} after row {}, found rev {} after row {}",
                rev + 1,
                head.0,
                row.rev.0,
                row.prior.0
            );
            self.add(Some(row.run), Some((shard, row.seq)), what);
        }
        let chain = Chain {
            head: row.seq,
            rev: row.rev.0,
            emptied: !compacted && (row.facts.is_empty() || known.is_some_and(|chain| chain.emptied)),
            purged: matches!(row.facts.first(), Some(Fact::Purged)),
            broken: broken || !(follows || starts_over),
        };
        chains.insert(row.run, chain);
    }

    /// Folds a run's journal and compares it with its index row.
    fn check_run(
        &mut self,
        reader: &mut dyn Reader,
        id: RunId,
        chain: &Chain,
        watermark: Seq,
        end: Seq,
    ) -> Result<(), Fault> {
        let shard = reader.map().home(id.slot());
        let place = Some((shard, chain.head));
        let stored = match reader.read_run(id) {
            Ok(stored) => stored.filter(|stored| stored.head <= end),
            Err(fault) => return self.add_fault(fault),
        };
        if chain.purged {
            self.purged += 1;
            if stored.is_some() && chain.head <= watermark {
                self.add(Some(id), place, "it was purged, but its index row is there".into());
            }
            return Ok(());
        }
        if chain.broken {
            return Ok(());
        }
        if chain.emptied {
            self.add(Some(id), place, "its rows were emptied, but it was neither purged nor compacted".into());
            return Ok(());
        }
        self.runs += 1;
        let rows = match reader.journal(id, chain.head, 0) {
            Ok(rows) => rows,
            Err(fault) => return self.add_fault(fault),
        };
        // It was compacted or purged since its rows were read: that is left for another time.
        if rows.iter().any(|row| row.facts.is_empty()) {
            return Ok(());
        }
        // An index row that is older than a compaction which was not flushed yet has no journal to be held against.
        let begins = rows.first().map_or(Rev(0), |row| row.rev);
        let stored = stored.filter(|stored| stored.run.rev >= begins || chain.head <= watermark);
        let wanted = stored.as_ref().map(|stored| stored.run.rev);
        let (run, then) = match fold_to(&rows, wanted) {
            Ok(folded) => folded,
            Err(bad) => {
                self.add(Some(id), place, bad);
                return Ok(());
            }
        };
        if let Err(broken) = run.check() {
            self.add(Some(id), place, format!("an invariant does not hold: {broken}"));
        }
        if let Some(what) = index_problem(chain, watermark, stored, then) {
            self.add(Some(id), place, what);
        }
        Ok(())
    }

    /// Index rows of runs that the log does not know.
    fn check_strays(
        &mut self,
        reader: &mut dyn Reader,
        shard: ShardId,
        chains: &BTreeMap<RunId, Chain>,
        end: Seq,
    ) -> Result<(), Fault> {
        let map = reader.map();
        let mut before = None;
        loop {
            let page = Page { most: PAGE_RUNS, before };
            let listed = match reader.list(&Filter::default(), &page) {
                Ok(listed) => listed,
                // Which row it is was said when that run was read.
                Err(fault) if is_corrupt(&fault) => return self.add_fault(fault),
                Err(fault) => return Err(fault),
            };
            let Some(last) = listed.last() else {
                return Ok(());
            };
            before = Some(last.run);
            for listed in &listed {
                if map.home(listed.run.slot()) != shard || chains.contains_key(&listed.run) {
                    continue;
                }
                let stored = reader.read_run(listed.run);
                if !matches!(stored, Ok(Some(stored)) if stored.head > end) {
                    self.add(Some(listed.run), None, "it has an index row and no journal".into());
                }
            }
        }
    }
}

fn break_chain(chains: &mut BTreeMap<RunId, Chain>, run: RunId, seq: Option<Seq>) {
    let chain =
        chains.entry(run).or_insert(Chain { head: Seq(0), rev: 0, emptied: false, purged: false, broken: true });
    chain.broken = true;
    chain.head = seq.unwrap_or(chain.head);
}

/// What is wrong with a run's index row, given what its journal folds to at the row's revision.
fn index_problem(chain: &Chain, watermark: Seq, stored: Option<StoredRun>, then: Option<Run>) -> Option<String> {
    let covered = chain.head <= watermark;
    match (stored, then) {
        (None, _) if covered => Some(format!("expected an index row that ends at {}, found none", chain.head.0)),
        (Some(stored), _) if covered && stored.head != chain.head => Some(format!(
            "expected an index row that ends at {}, found one that ends at {}",
            chain.head.0, stored.head.0
        )),
        (Some(stored), Some(then)) if stored.run != then => {
            Some(format!("its checkpoint at rev {} is not what its journal folds to", then.rev.0))
        }
        (Some(stored), None) => {
            Some(format!("its checkpoint is of rev {}, which its journal has not", stored.run.rev.0))
        }
        (None, _) | (Some(_), Some(_)) => None,
    }
}

/// The run that the journal folds to, and as it was at the wanted revision.
fn fold_to(rows: &[Row], wanted: Option<Rev>) -> Result<(Run, Option<Run>), String> {
    let (first, rest) = rows.split_first().ok_or("its journal is empty")?;
    let mut run = Run::begin(first).map_err(|bad| bad.to_string())?;
    let mut then = (wanted == Some(run.rev)).then(|| run.clone());
    for row in rest {
        run.apply_row(row);
        if wanted == Some(run.rev) {
            then = Some(run.clone());
        }
    }
    Ok((run, then))
}
