//! The written form of an index row: every column of it is under one checksum, which is checked wherever it is read.

use abide_kernel::shard::{LinePlace, Record};
use abide_kernel::{Row, Run, RunId, Seq, Status, Timestamp};

use crate::sum::Sum;
use crate::{Fault, Listed, StoredRun, label};

/// An index row as a store has it: not yet checked.
#[derive(Clone, Debug)]
pub(crate) struct RawRecord {
    pub(crate) run: RunId,
    pub(crate) shard: u16,
    pub(crate) head: u64,
    pub(crate) rev: u64,
    pub(crate) namespace: String,
    pub(crate) workflow: String,
    pub(crate) version: u32,
    pub(crate) queue: String,
    pub(crate) status: String,
    pub(crate) step: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) occupies: Option<String>,
    pub(crate) parent: Option<RunId>,
    /// As [`label`] writes them.
    pub(crate) labels: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) due: Option<i64>,
    pub(crate) line: Option<String>,
    pub(crate) place: Place,
    pub(crate) reservation: bool,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) checksum: i64,
}

/// A place in a line: priority, eligible since, arrival.
pub(crate) type Place = [Option<i64>; 3];

impl RawRecord {
    /// The run, if its index row is as it was written. One without a checkpoint is folded from its journal.
    pub(crate) fn decode(&self, journal: impl FnOnce(Seq) -> Result<Vec<Row>, Fault>) -> Result<StoredRun, Fault> {
        self.check()?;
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

    /// What a listing shows of it, if it is as it was written.
    pub(crate) fn listed(self) -> Result<Listed, Fault> {
        self.check()?;
        let Ok(status) = self.status.parse::<Status>() else {
            return Err(self.damaged(&format!("{:?} is no status", self.status)));
        };
        Ok(Listed {
            run: self.run,
            namespace: self.namespace.into(),
            workflow: self.workflow.into(),
            version: self.version,
            queue: self.queue.into(),
            status,
            step: self.step.map(Into::into),
            key: self.key.map(Into::into),
            parent: self.parent,
            labels: self.labels.as_deref().map_or_else(Vec::new, label::read),
            created_at: Timestamp(self.created_at),
            updated_at: Timestamp(self.updated_at),
            due: self.due.map(Timestamp),
            rev: self.rev,
        })
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

    /// Whether it is as it was written.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.sum() == self.checksum { Ok(()) } else { Err(self.damaged("its checksum does not match")) }
    }

    fn sum(&self) -> i64 {
        Summed {
            run: self.run,
            shard: self.shard,
            head: self.head,
            rev: self.rev,
            texts: [&self.namespace, &self.workflow, &self.queue, &self.status],
            version: self.version,
            maybe_texts: [&self.step, &self.key, &self.occupies, &self.line].map(Option::as_deref),
            parent: self.parent,
            labels: self.labels.as_deref(),
            times: [self.created_at, self.updated_at],
            due: self.due,
            place: self.place,
            reservation: self.reservation,
            checkpoint: &self.checkpoint,
        }
        .sum()
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

/// A place in a line as it is written.
pub(crate) fn place(place: Option<&LinePlace>) -> Place {
    let columns = place.map(|place| [i64::from(place.priority), place.eligible_at.0, place.arrival.0 as i64]);
    columns.map_or([None; 3], |columns| columns.map(Some))
}

/// The checksum of an index row: over every column, so that none can change unseen.
pub(crate) fn checksum(shard: u16, record: &Record) -> i64 {
    let (line, place_in) = record.ready.as_ref().map(|(line, place)| (line.as_str(), place)).unzip();
    let labels = label::written(&record.labels);
    Summed {
        run: record.run,
        shard,
        head: record.head.0,
        rev: record.rev.0,
        texts: [&record.namespace, &record.workflow, &record.queue, record.status.name()],
        version: record.version,
        maybe_texts: [record.step.as_deref(), record.key.as_deref(), record.occupies.as_deref(), line],
        parent: record.parent,
        labels: labels.as_deref(),
        times: [record.created_at.0, record.updated_at.0],
        due: record.due.map(|due| due.0),
        place: place(place_in),
        reservation: record.reservation,
        checkpoint: &record.checkpoint,
    }
    .sum()
}

/// The columns of an index row, from wherever they come.
struct Summed<'a> {
    run: RunId,
    shard: u16,
    head: u64,
    rev: u64,
    /// Namespace, workflow, queue, status.
    texts: [&'a str; 4],
    version: u32,
    /// Step, key, occupied key, line.
    maybe_texts: [Option<&'a str>; 4],
    parent: Option<RunId>,
    labels: Option<&'a str>,
    times: [i64; 2],
    due: Option<i64>,
    place: Place,
    reservation: bool,
    checkpoint: &'a [u8],
}

impl Summed<'_> {
    fn sum(&self) -> i64 {
        let parent = self.parent.map(|parent| parent.0.to_be_bytes());
        let mut sum = Sum::of("run")
            .bytes(Some(&self.run.0.to_be_bytes()))
            .bytes(parent.as_ref().map(<[u8; 16]>::as_slice))
            .number(i64::from(self.shard))
            .number(self.head as i64)
            .number(self.rev as i64)
            .number(i64::from(self.version))
            .number(i64::from(self.reservation))
            .maybe(self.due);
        for text in self.texts {
            sum = sum.text(Some(text));
        }
        for text in self.maybe_texts {
            sum = sum.text(text);
        }
        sum = sum.text(self.labels);
        for time in self.times {
            sum = sum.number(time);
        }
        for part in self.place {
            sum = sum.maybe(part);
        }
        sum.bytes(Some(self.checkpoint)).end()
    }
}
