//! Import: a file is looked through, an empty store is marked and filled, read back and held against the file; only then
//! the mark goes. Whatever ends it before leaves a store that nobody can open.

use std::collections::BTreeMap;
use std::io::{BufRead, Seek};

use abide_kernel::shard::{Batch, Config as ShardConfig, Rules, Windows};
use abide_kernel::{Facts, Rev, Row, RunId, Seq, Shard, ShardId, ShardMap, Timestamp, moving};
use abide_store::{Fault, FaultKind, Opened, Store, StoredRun, Verdict};

use super::file::{Contents, Letter, Line, Lines, Packed, Tally, verify};
use super::{House, HouseError, PAGE_ROWS};
use crate::snapshot::fold_rows;

/// Bytes of rows that are written at a time.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Runs that are folded before their index rows are written, so that memory stays bounded.
const FOLDED_RUNS_MAX: usize = 10_000;

/// Fills a store that is empty with what a file holds. The store is opened when the file was found to be whole.
///
/// # Errors
/// When the file is not whole, the store is not empty or served by others, or either cannot be read or written. If anything
/// was written by then, the store can be opened by nobody.
pub fn import(
    open: impl FnOnce() -> Result<Box<dyn Store>, Fault>,
    node: &str,
    file: &mut (impl BufRead + Seek),
) -> Result<Contents, HouseError> {
    let contents = verify(file)?;
    file.rewind()?;
    let mut house = House::take(open()?, node)?;
    let filled = fill(&mut house, file, &contents);
    house.leave();
    filled.map(|()| contents)
}

fn fill(house: &mut House, file: &mut dyn BufRead, contents: &Contents) -> Result<(), HouseError> {
    house.store.import().begin_import()?;
    let mut filler = Filler::new(house.map, &house.opened);
    filler.take_in(house, file)?;
    filler.free_keys(house)?;
    for shard in house.map.all() {
        index(house, shard, filler.ends[usize::from(shard.0)])?;
    }
    let found = read_back(house)?;
    if found != *contents {
        return Err(HouseError::Differs { expected: Box::new(contents.clone()), found: Box::new(found) });
    }
    house.check_ours()?;
    Ok(house.store.import().end_import()?)
}

/// Rows on their way into the store, and where each run's last one went.
struct Filler {
    map: ShardMap,
    ends: Vec<Seq>,
    heads: BTreeMap<RunId, Seq>,
    /// Runs whose keys are held by a record in another shard, and the record.
    held: Vec<(RunId, RunId)>,
    batches: Vec<Batch>,
    rows: usize,
    bytes: usize,
    last_at: Timestamp,
}

impl Filler {
    fn new(map: ShardMap, opened: &[Opened]) -> Self {
        let batch = |(shard, opened): (ShardId, &Opened)| Batch { shard, epoch: opened.epoch, ..Batch::default() };
        Self {
            map,
            ends: vec![Seq(0); opened.len()],
            heads: BTreeMap::new(),
            held: Vec::new(),
            batches: map.all().zip(opened).map(batch).collect(),
            rows: 0,
            bytes: 0,
            last_at: Timestamp::default(),
        }
    }

    fn take_in(&mut self, house: &mut House, file: &mut dyn BufRead) -> Result<(), HouseError> {
        let (mut lines, _) = Lines::begin(file)?;
        while let Some(line) = lines.next()? {
            match line {
                Line::Row(row) => {
                    self.place(row);
                    self.bytes += lines.bytes();
                    if self.rows >= PAGE_ROWS || self.bytes >= BATCH_BYTES {
                        self.write(house)?;
                    }
                }
                Line::Outcome(outcome) => house.store.import().import_outcome(&outcome)?,
                Line::DeadLetter(letter) => house.store.import().import_letter(&Letter::unpack(*letter, self.map))?,
                Line::Export(_) | Line::End(_) => {}
            }
        }
        self.write(house)
    }

    /// Puts a row behind the others of its shard, and holds its run's key where that is at home.
    fn place(&mut self, packed: Packed) {
        let (run, at) = (packed.run, packed.at);
        let mut row = self.next(packed);
        let holder = moving::unpack(&mut row, self.map);
        self.put(row);
        if let Some(holder) = holder {
            self.held.push((run, holder.record));
            self.add(holder.record, Rev(1), at, holder.facts);
        }
    }

    fn add(&mut self, run: RunId, rev: Rev, at: Timestamp, facts: Facts) {
        let row = self.next(Packed { run, rev, at, facts });
        self.put(row);
    }

    fn next(&self, packed: Packed) -> Row {
        let end = self.ends[usize::from(self.map.home(packed.run.slot()).0)];
        let prior = self.heads.get(&packed.run).copied().unwrap_or_default();
        packed.at(end.next(), prior)
    }

    fn put(&mut self, row: Row) {
        let shard = usize::from(self.map.home(row.run.slot()).0);
        self.ends[shard] = row.seq;
        self.heads.insert(row.run, row.seq);
        self.last_at = self.last_at.max(row.at);
        self.rows += 1;
        self.batches[shard].rows.push(row);
    }

    fn write(&mut self, house: &mut House) -> Result<(), HouseError> {
        (self.rows, self.bytes) = (0, 0);
        house.stay()?;
        let mut group = Vec::new();
        for batch in self.batches.iter_mut().filter(|batch| !batch.rows.is_empty()) {
            let next = Batch { shard: batch.shard, epoch: batch.epoch, ..Batch::default() };
            group.push(std::mem::replace(batch, next));
        }
        if group.is_empty() {
            return Ok(());
        }
        let verdicts = house.store.append(&group)?;
        if verdicts.contains(&Verdict::Stale) { Err(HouseError::Disturbed) } else { Ok(()) }
    }

    /// Ends the records whose runs no longer occupy their keys.
    fn free_keys(&mut self, house: &mut House) -> Result<(), HouseError> {
        let mut reader = house.reader()?;
        for (run, record) in std::mem::take(&mut self.held) {
            let head = self.heads.get(&run).copied().unwrap_or_default();
            let rows = reader.journal(run, head, 0)?;
            let folded = fold_rows(&rows).map_err(|found| Fault::corrupt(Some(run), None, found))?;
            if folded.key_freed {
                self.add(record, Rev(2), self.last_at, moving::freed());
            }
            if self.rows >= PAGE_ROWS {
                self.write(house)?;
            }
        }
        self.write(house)
    }
}

/// Writes the index rows of a shard: its log is folded, and nothing is decided.
fn index(house: &mut House, id: ShardId, end: Seq) -> Result<(), HouseError> {
    let opened = &house.opened[usize::from(id.0)];
    let config = ShardConfig {
        id,
        map: house.map,
        epoch: opened.epoch,
        node: house.member.node.clone(),
        process: house.member.process.clone(),
        head: end,
        sent: opened.sent.clone(),
        consumed: opened.consumed.clone(),
        notify: false,
        windows: Windows::default(),
        rules: Rules::default(),
        definition_wait_ms: u64::MAX,
    };
    let mut shard = Shard::new(config, opened.last_at);
    let mut after = Seq(0);
    loop {
        house.stay()?;
        let rows = house.store.scan(id, after, PAGE_ROWS)?;
        let done = rows.is_empty();
        for row in rows {
            let row = row?;
            after = row.seq;
            replay(house.store.as_mut(), &mut shard, &row)?;
        }
        if (done || shard.behind() >= FOLDED_RUNS_MAX)
            && let Some(mut flush) = shard.flush()
        {
            flush.through = flush.through.min(after);
            if house.store.flush(&[flush])? != [Verdict::Durable] {
                return Err(HouseError::Disturbed);
            }
            shard.flushed();
        }
        if done {
            return Ok(());
        }
    }
}

fn replay(store: &mut dyn Store, shard: &mut Shard, row: &Row) -> Result<(), HouseError> {
    if row.rev.0 > 1
        && !shard.is_resident(row.run)
        && let Some(StoredRun { run, head }) = store.read_run(row.run)?
    {
        shard.adopt(run, head);
    }
    let position = Some((shard.id(), row.seq));
    shard.replay(row).map_err(|found| Fault::corrupt(Some(row.run), position, found).into())
}

/// What the store holds now, read from the beginning.
fn read_back(house: &mut House) -> Result<Contents, HouseError> {
    let mut reader = house.reader()?;
    let mut tally = Tally::default();
    for shard in house.map.all() {
        let mut holders = std::collections::BTreeSet::new();
        let mut after = Seq(0);
        loop {
            house.stay()?;
            let rows = reader.scan(shard, after, PAGE_ROWS)?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                let row = row?;
                after = row.seq;
                if moving::begins_holder(&row) {
                    holders.insert(row.run);
                }
                if !holders.contains(&row.run) {
                    tally.count(&Line::Row(Packed::of(row)));
                }
            }
        }
    }
    let stats = reader.stats()?;
    if stats.envelopes > 0 {
        return Err(Fault::new(FaultKind::Refused, "envelopes wait in a store that was just filled").into());
    }
    let mut page = reader.outcomes(None, PAGE_ROWS)?;
    while let Some(last) = page.last().cloned() {
        page.into_iter().for_each(|outcome| tally.count(&Line::Outcome(outcome)));
        page = reader.outcomes(Some(&last), PAGE_ROWS)?;
    }
    for letter in reader.dead_letters()? {
        tally.count(&Line::DeadLetter(Box::new(Letter::of(letter))));
    }
    Ok(tally.contents(stats.runs.into_iter().collect()))
}
