//! Export: what is under way is delivered, the store is taken, and its logs are written down in the order of time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;

use abide_kernel::envelope::Message;
use abide_kernel::{Fact, RequestId, Row, RunId, Seq, ShardId, Timestamp, moving};
use abide_store::{DeadLetterItem, Fault, FaultKind, Store};

use super::file::{Contents, Letter, Line, Packed, Writer};
use super::{House, HouseError, PAGE_ROWS, alone};
use crate::{Config, Crank, Snapshot, Turned};

/// Writes everything a store holds to `out`. The store is opened twice: by an engine that executes nothing and delivers what
/// is under way, and to be read. Nobody else may work on it.
///
/// # Errors
/// When the store is served by others, damaged, or cannot be read; and when `out` cannot be written.
pub fn export(
    mut open: impl FnMut() -> Result<Box<dyn Store>, Fault>,
    node: &str,
    now: Timestamp,
    out: &mut dyn Write,
) -> Result<Contents, HouseError> {
    deliver(open()?, node)?;
    let mut house = House::take(open()?, node)?;
    let written = write(&mut house, now, out);
    house.leave();
    written
}

/// Turns an engine without workers until no envelope is under way, and all index rows are written.
fn deliver(store: Box<dyn Store>, node: &str) -> Result<(), HouseError> {
    if let Some(seen) = store.reader()?.membership()? {
        alone(seen.living.iter().map(|living| &living.member))?;
    }
    let shards = usize::from(store.map().count());
    let mut config = Config { node: node.into(), pools: Vec::new(), ..Config::default() };
    config.sharing.guest = true;
    let crank = Crank::open(store, config)?;
    while !matches!(crank.turn(), Turned::Rests(_)) {}
    let under_way = crank.engine().stats()?.envelopes;
    let (closed, serves) = (crank.closed(), crank.serves());
    crank.leave();
    match closed {
        Some(why) => Err(Fault::new(FaultKind::Refused, why).into()),
        None if serves < shards || under_way > 0 => Err(HouseError::Disturbed),
        None => Ok(()),
    }
}

fn write(house: &mut House, now: Timestamp, out: &mut dyn Write) -> Result<Contents, HouseError> {
    for shard in house.map.all() {
        if !house.store.read_envelopes(shard, 1)?.is_empty() {
            return Err(HouseError::Disturbed);
        }
    }
    if let Some(request) = first_asked(house)? {
        return Err(HouseError::Asked { request });
    }
    let letters = house.reader()?.dead_letters()?;
    letters.iter().try_for_each(check_letter)?;
    let mut writer = Writer::begin(out, now, house.map.count())?;
    let mut logs = Logs::open(house)?;
    while let Some(row) = logs.next(house)? {
        writer.write(&Line::Row(Packed::of(row)))?;
    }
    let mut reader = house.reader()?;
    let mut page = reader.outcomes(None, PAGE_ROWS)?;
    while let Some(last) = page.last().cloned() {
        house.stay()?;
        page.into_iter().try_for_each(|outcome| writer.write(&Line::Outcome(outcome)))?;
        page = reader.outcomes(Some(&last), PAGE_ROWS)?;
    }
    for letter in letters {
        writer.write(&Line::DeadLetter(Box::new(Letter::of(letter))))?;
    }
    let runs = Snapshot::read(reader)?.stats()?.runs;
    house.check_ours()?;
    // The shards are ours, and nobody has to own one to ask.
    if let Some(request) = first_asked(house)? {
        return Err(HouseError::AskedMeanwhile { request });
    }
    writer.end(runs.into_iter().collect())
}

/// The first that was asked by SQL and has no answer.
fn first_asked(house: &House) -> Result<Option<RequestId>, HouseError> {
    let Some(mut intake) = house.store.intake()? else { return Ok(None) };
    Ok(intake.read(1)?.first().map(|asked| asked.request))
}

/// A key that is held for a run which nobody began would be free in the next store.
fn check_letter(item: &DeadLetterItem) -> Result<(), HouseError> {
    match &item.dead.envelope.message {
        Message::Begin { .. } => Err(HouseError::Unbegun { letter: item.id }),
        _ => Ok(()),
    }
}

/// The logs of all shards, read side by side in the order of time, so that attempts keep their places in line.
struct Logs {
    logs: Vec<Log>,
    /// The instant of the first row of each log that has one, and the log.
    first: BTreeSet<(Timestamp, usize)>,
    /// Where runs were compacted or purged whose rows may not be emptied yet.
    cut: BTreeMap<RunId, Seq>,
    /// Records that only hold a key: the next store makes its own.
    holders: BTreeSet<RunId>,
}

struct Log {
    shard: ShardId,
    after: Seq,
    page: VecDeque<Row>,
}

impl Logs {
    fn open(house: &mut House) -> Result<Self, HouseError> {
        let mut logs =
            Self { logs: Vec::new(), first: BTreeSet::new(), cut: BTreeMap::new(), holders: BTreeSet::new() };
        for (index, shard) in house.map.all().enumerate() {
            let watermark = house.opened[index].watermark;
            logs.look_at_tail(house, shard, watermark)?;
            logs.logs.push(Log { shard, after: Seq(0), page: VecDeque::new() });
        }
        for index in 0..logs.logs.len() {
            logs.line_up(house, index)?;
        }
        Ok(logs)
    }

    /// Rows after the watermark may cut off rows that still have their facts.
    fn look_at_tail(&mut self, house: &mut House, shard: ShardId, watermark: Seq) -> Result<(), HouseError> {
        let mut log = Log { shard, after: watermark, page: VecDeque::new() };
        while let Some(row) = log.next(house)? {
            if matches!(row.facts.first(), Some(Fact::Purged | Fact::Compacted(_))) {
                self.cut.insert(row.run, row.seq);
            }
        }
        Ok(())
    }

    fn line_up(&mut self, house: &mut House, index: usize) -> Result<(), HouseError> {
        if let Some(row) = self.logs[index].peek(house)? {
            self.first.insert((row.at, index));
        }
        Ok(())
    }

    /// The next row that says something anywhere.
    fn next(&mut self, house: &mut House) -> Result<Option<Row>, HouseError> {
        while let Some((_, index)) = self.first.pop_first() {
            let row = self.logs[index].next(house)?;
            self.line_up(house, index)?;
            if let Some(row) = row.filter(|row| self.counts(row)) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    fn counts(&mut self, row: &Row) -> bool {
        if moving::begins_holder(row) {
            self.holders.insert(row.run);
        }
        let gone = row.facts.is_empty() || matches!(row.facts.first(), Some(Fact::Purged));
        let cut = self.cut.get(&row.run).is_some_and(|cut| row.seq < *cut);
        !gone && !cut && !self.holders.contains(&row.run)
    }
}

impl Log {
    fn peek(&mut self, house: &mut House) -> Result<Option<&Row>, HouseError> {
        if self.page.is_empty() {
            house.stay()?;
            for row in house.store.scan(self.shard, self.after, PAGE_ROWS)? {
                // A row that is damaged would be missing for good.
                self.page.push_back(row?);
            }
            self.after = self.page.back().map_or(self.after, |row| row.seq);
        }
        Ok(self.page.front())
    }

    fn next(&mut self, house: &mut House) -> Result<Option<Row>, HouseError> {
        self.peek(house)?;
        Ok(self.page.pop_front())
    }
}
