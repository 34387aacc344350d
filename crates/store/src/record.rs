//! The written form of an index row: what is checked when a run is read by it.

use abide_kernel::shard::{LinePlace, Record};
use abide_kernel::{Row, Run, RunId, Seq};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{Fault, StoredRun};

/// A line, and the place in it: priority, eligible since, arrival.
pub(crate) type Ready = (String, (i32, i64, u64));

/// The parts of an index row by which something is decided, and its checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct RawRecord {
    pub(crate) run: RunId,
    pub(crate) head: u64,
    pub(crate) rev: u64,
    pub(crate) status: String,
    pub(crate) occupies: Option<String>,
    pub(crate) due: Option<i64>,
    pub(crate) ready: Option<Ready>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) checksum: i64,
}

impl RawRecord {
    /// The run, if its index row is as it was written. One without a checkpoint is folded from its journal.
    pub(crate) fn decode(&self, journal: impl FnOnce(Seq) -> Result<Vec<Row>, Fault>) -> Result<StoredRun, Fault> {
        if self.sum() != self.checksum {
            return Err(self.damaged("its checksum does not match"));
        }
        if self.checkpoint.is_empty() {
            return self.fold(&journal(Seq(self.head))?);
        }
        let run: Run = serde_json::from_slice(&self.checkpoint)
            .map_err(|error| self.damaged(&format!("its checkpoint does not decode: {error}")))?;
        if run.id != self.run || run.rev.0 != self.rev {
            return Err(self.damaged("its checkpoint is of another run or revision"));
        }
        Ok(StoredRun { run, head: Seq(self.head) })
    }

    fn fold(&self, rows: &[Row]) -> Result<StoredRun, Fault> {
        let Some((first, rest)) = rows.split_first() else {
            return Err(self.damaged("it has neither a checkpoint nor a journal"));
        };
        let mut run = Run::begin(first).map_err(|bad| self.damaged(&bad.to_string()))?;
        for row in rest {
            run.apply_row(row);
        }
        if run.rev.0 != self.rev {
            return Err(self.damaged("its journal ends at another revision"));
        }
        Ok(StoredRun { run, head: Seq(self.head) })
    }

    fn sum(&self) -> i64 {
        sum(
            self.run,
            (self.head, self.rev),
            &self.status,
            self.occupies.as_deref(),
            self.due,
            self.ready.as_ref(),
            &self.checkpoint,
        )
    }

    fn damaged(&self, what: &str) -> Fault {
        damaged(self.run, what)
    }
}

/// An index row that is not as it was written.
pub(crate) fn damaged(run: RunId, what: &str) -> Fault {
    let message = format!("the index row of {run} is damaged: {what}");
    Fault::corrupt(Some(run), None, message)
}

pub(crate) fn ready((line, place): &(String, LinePlace)) -> Ready {
    (line.clone(), (place.priority, place.eligible_at.0, place.arrival.0))
}

/// The checksum of an index row.
pub(crate) fn checksum(record: &Record) -> i64 {
    sum(
        record.run,
        (record.head.0, record.rev.0),
        record.status.name(),
        record.occupies.as_deref(),
        record.due.map(|due| due.0),
        record.ready.as_ref().map(ready).as_ref(),
        &record.checkpoint,
    )
}

fn sum(
    run: RunId,
    (head, rev): (u64, u64),
    status: &str,
    occupies: Option<&str>,
    due: Option<i64>,
    ready: Option<&Ready>,
    checkpoint: &[u8],
) -> i64 {
    let mut hash = Xxh3Default::new();
    hash.update(&run.0.to_be_bytes());
    hash.update(&head.to_be_bytes());
    hash.update(&rev.to_be_bytes());
    for text in [Some(status), occupies, ready.map(|(line, _)| line.as_str())] {
        // With its length in front, so that no two pairs of texts look the same; one more for one that is there.
        hash.update(&text.map_or(0, |text| text.len() as u64 + 1).to_be_bytes());
        hash.update(text.unwrap_or_default().as_bytes());
    }
    let (priority, eligible, arrival) = ready.map(|(_, place)| *place).unwrap_or_default();
    hash.update(&[u8::from(due.is_some()), u8::from(ready.is_some())]);
    hash.update(&due.unwrap_or_default().to_be_bytes());
    hash.update(&priority.to_be_bytes());
    hash.update(&eligible.to_be_bytes());
    hash.update(&arrival.to_be_bytes());
    hash.update(checkpoint);
    hash.digest() as i64
}
