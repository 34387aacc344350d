//! The file between two stores: JSON lines, a head first, then rows and dead letters, and at the end what they add up to.
//! A file without its end, or whose lines are not those that were written, is refused before anything is done with it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Read, Write};

use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::{Fact, Facts, LetterId, Rev, Row, RunId, Seq, ShardMap, Str, Timestamp, moving};
use abide_store::DeadLetterItem;
use abide_store::transaction::Outcome;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HouseError;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// The longest line: a compacted run with everything it may hold has room in it.
const LINE_BYTES_MAX: u64 = 1 << 30;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Export(Head),
    Row(Packed),
    Outcome(Outcome),
    DeadLetter(Box<Letter>),
    End(Contents),
}

/// How a file begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the file's format.
    pub format: u32,
    /// When it was made.
    pub made_at: Timestamp,
    /// How many shards the store had. The one it goes to keeps its own.
    pub shards: u16,
}

/// A journal row without its place.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Packed {
    pub(super) run: RunId,
    pub(super) rev: Rev,
    pub(super) at: Timestamp,
    pub(super) facts: Facts,
}

impl Packed {
    pub(super) fn of(mut row: Row) -> Self {
        moving::pack(&mut row);
        Self { run: row.run, rev: row.rev, at: row.at, facts: row.facts }
    }

    /// The row at its place among those of a shard and of its run.
    pub(super) fn at(self, seq: Seq, prior: Seq) -> Row {
        Row { seq, run: self.run, rev: self.rev, prior, at: self.at, facts: self.facts }
    }

    /// Whether a journal may begin with it.
    fn begins(&self) -> bool {
        let started = matches!(self.facts.first(), Some(Fact::Started(_))) && self.rev == Rev(1);
        started || matches!(self.facts.first(), Some(Fact::Compacted(_)))
    }
}

/// A dead letter without its number and without the shards it went between.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Letter {
    at: Timestamp,
    node: String,
    reason: Str,
    message: Message,
}

impl Letter {
    pub(super) fn of(item: DeadLetterItem) -> Self {
        let DeadLetterItem { at, node, dead, .. } = item;
        Self { at, node, reason: dead.reason, message: dead.envelope.message }
    }

    /// The letter as a store has it that shares out its runs like this.
    pub(super) fn unpack(self, map: ShardMap) -> DeadLetterItem {
        let to = map.home(self.message.slot());
        let envelope = Envelope { from: to, to, number: 0, message: self.message };
        let dead = DeadEnvelope { envelope, reason: self.reason };
        DeadLetterItem { id: LetterId(0), at: self.at, node: self.node, dead }
    }
}

/// What a store holds, in numbers, and in one that is the same wherever and in whatever order it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Journal rows.
    pub rows: u64,
    /// Runs by status.
    pub runs: BTreeMap<String, u64>,
    /// Facts by kind.
    pub facts: BTreeMap<String, u64>,
    /// What transactions of the users' own came to.
    pub outcomes: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// The sum of the hashes of all of them, and of how many runs there are of each status.
    pub hash: String,
}

impl fmt::Display for Contents {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, runs, outcomes, dead_letters, hash, .. } = self;
        write!(out, "{rows} rows, runs {runs:?}, {outcomes} outcomes, {dead_letters} dead letters, hash {hash}")
    }
}

/// What lines add up to.
#[derive(Default)]
pub(super) struct Tally {
    rows: u64,
    facts: BTreeMap<&'static str, u64>,
    outcomes: u64,
    letters: u64,
    sum: u128,
}

impl Tally {
    /// Counts a line, which is hashed as it is written.
    pub(super) fn add(&mut self, line: &Line, text: &[u8]) {
        match line {
            Line::Row(row) => {
                self.rows += 1;
                row.facts.iter().for_each(|fact| *self.facts.entry(fact.kind()).or_default() += 1);
            }
            Line::Outcome(_) => self.outcomes += 1,
            Line::DeadLetter(_) => self.letters += 1,
            Line::Export(_) | Line::End(_) => return,
        }
        self.sum = self.sum.wrapping_add(hash(text));
    }

    /// Counts what a store holds.
    pub(super) fn count(&mut self, line: &Line) {
        self.add(line, &text(line));
    }

    pub(super) fn contents(&self, runs: BTreeMap<String, u64>) -> Contents {
        let facts = self.facts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
        let statuses = hash(&serde_json::to_vec(&runs).expect("counts have a JSON form"));
        let hash = format!("{:032x}", self.sum.wrapping_add(statuses));
        Contents { rows: self.rows, runs, facts, outcomes: self.outcomes, dead_letters: self.letters, hash }
    }
}

fn hash(text: &[u8]) -> u128 {
    let hash = Sha256::digest(text);
    u128::from_be_bytes(hash[..16].try_into().expect("a digest has 32 bytes"))
}

fn text(line: &Line) -> Vec<u8> {
    serde_json::to_vec(line).expect("a line has a JSON form")
}

/// Writes lines.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    tally: Tally,
}

impl<'a> Writer<'a> {
    pub(super) fn begin(out: &'a mut dyn Write, made_at: Timestamp, shards: u16) -> Result<Self, HouseError> {
        let mut writer = Self { out, tally: Tally::default() };
        writer.write(&Line::Export(Head { format: FORMAT, made_at, shards }))?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, line: &Line) -> Result<(), HouseError> {
        let mut text = text(line);
        self.tally.add(line, &text);
        text.push(b'\n');
        Ok(self.out.write_all(&text)?)
    }

    pub(super) fn end(mut self, runs: BTreeMap<String, u64>) -> Result<Contents, HouseError> {
        let contents = self.tally.contents(runs);
        self.write(&Line::End(contents.clone()))?;
        self.out.flush()?;
        Ok(contents)
    }
}

/// Reads lines, of which the first was looked at.
pub(super) struct Lines<'a> {
    from: &'a mut dyn BufRead,
    number: u64,
    text: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(super) fn begin(from: &'a mut dyn BufRead) -> Result<(Self, Head), HouseError> {
        let mut lines = Self { from, number: 0, text: Vec::new() };
        let expected = "expected the head of a file that `abide store export` made";
        match lines.next()? {
            Some(Line::Export(head)) if head.format == FORMAT => Ok((lines, head)),
            Some(Line::Export(head)) => {
                Err(lines
                    .bad(format!("expected format {FORMAT}, found {}: use the release that wrote it", head.format)))
            }
            Some(_) | None => Err(lines.bad(expected.into())),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<Line>, HouseError> {
        self.number += 1;
        self.text.clear();
        let read = Read::take(&mut *self.from, LINE_BYTES_MAX).read_until(b'\n', &mut self.text)?;
        if read == 0 {
            return Ok(None);
        }
        if self.text.pop() != Some(b'\n') {
            return Err(self.bad("it is cut off".into()));
        }
        let line = serde_json::from_slice(&self.text).map_err(|error| self.bad(error.to_string()))?;
        Ok(Some(line))
    }

    /// How many bytes the last line has.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn bad(&self, problem: String) -> HouseError {
        HouseError::BadFile { line: self.number, problem }
    }
}

/// Reads a file to its end and holds it against what it says of itself. Memory grows by a few words per run.
pub(super) fn verify(from: &mut dyn BufRead) -> Result<Contents, HouseError> {
    let (mut lines, _) = Lines::begin(from)?;
    let mut tally = Tally::default();
    let mut revs: BTreeMap<RunId, Rev> = BTreeMap::new();
    loop {
        let Some(line) = lines.next()? else {
            return Err(lines.bad("the file ends before its last line: it is not whole; export again".into()));
        };
        match &line {
            Line::Row(row) => follow(&mut revs, row).map_err(|problem| lines.bad(problem))?,
            Line::Outcome(_) | Line::DeadLetter(_) => {}
            Line::Export(_) => return Err(lines.bad("expected one head, found another".into())),
            Line::End(said) => {
                let found = tally.contents(said.runs.clone());
                let runs: u64 = said.runs.values().sum();
                if *said != found || runs != revs.len() as u64 {
                    return Err(lines.bad(format!("expected what adds up to {found}, found {said}: it was changed")));
                }
                return match lines.next()? {
                    None => Ok(found),
                    Some(_) => Err(lines.bad("expected nothing after the end".into())),
                };
            }
        }
        tally.add(&line, &lines.text);
    }
}

/// Whether a row follows its run's row before it.
fn follow(revs: &mut BTreeMap<RunId, Rev>, row: &Packed) -> Result<(), String> {
    let known = revs.insert(row.run, row.rev);
    let follows = match known {
        Some(before) => before.0.checked_add(1) == Some(row.rev.0) && !row.facts.is_empty(),
        None => row.begins(),
    };
    if follows {
        return Ok(());
    }
    let before = known.map_or("no row".into(), |before| format!("rev {}", before.0));
    Err(format!("expected the next row of {}, of which {before} came before, found rev {}", row.run, row.rev.0))
}
