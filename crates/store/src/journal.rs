//! What every store knows of a journal: when a batch may follow, what a gap is, and how a run's rows are followed.

use std::collections::VecDeque;

use abide_kernel::shard::Batch;
use abide_kernel::{Fact, LetterId, Rev, Row, RunId, Seq, ShardEpoch, ShardId};

use crate::row::{self, RawRow};
use crate::sum::Sum;
use crate::{Fault, FaultKind, Scanned, Verdict};

/// The fence: the batch is the owner's, and its rows take the next positions, all of them.
pub(crate) fn fence(batch: &Batch, epoch: ShardEpoch, head: Seq) -> Verdict {
    let dense = (head.0 + 1..).zip(&batch.rows).all(|(seq, row)| row.seq.0 == seq);
    if batch.epoch == epoch && epoch.0 > 0 && dense { Verdict::Durable } else { Verdict::Stale }
}

/// Rows of a log in order of position, each checked. A fault stands where a row is damaged or missing.
///
/// # Errors
/// When a row comes that lies before where the reading began: the table's own order is broken, and whoever reads on would
/// be given the same rows again and again.
pub(crate) fn in_order(
    shard: ShardId,
    after: Seq,
    rows: impl Iterator<Item = (Seq, Scanned)>,
) -> Result<Vec<Scanned>, Fault> {
    let mut found = Vec::new();
    let mut expected = after.next();
    for (seq, row) in rows {
        if seq <= after {
            let message = format!(
                "the journal of shard {} is out of order: expected a position after {}, found {}",
                shard.0, after.0, seq.0
            );
            return Err(Fault::corrupt(None, Some((shard, after.next())), message));
        }
        if seq < expected {
            // It takes the place of the row that should be here: whoever reads on from it gets on.
            let message = format!(
                "the journal of shard {} is out of order: expected position {}, found {}",
                shard.0, expected.0, seq.0
            );
            found.push(Err(Fault::corrupt(None, Some((shard, expected)), message)));
            expected = expected.next();
            continue;
        }
        if seq != expected {
            let message = format!(
                "the journal of shard {} has a gap: expected position {}, found {}",
                shard.0, expected.0, seq.0
            );
            found.push(Err(Fault::corrupt(None, Some((shard, expected)), message)));
        }
        expected = seq.next();
        found.push(row);
    }
    Ok(found)
}

/// A run's rows from `head` back to the one its journal begins with, without those whose revision is below `from`, in
/// order. What lies before a compacted row is no part of the journal, emptied or not.
pub(crate) fn follow(
    shard: ShardId,
    run: RunId,
    head: Seq,
    from: u64,
    mut read: impl FnMut(Seq) -> Result<Option<RawRow>, Fault>,
) -> Result<Vec<Row>, Fault> {
    let mut rows: Vec<Row> = Vec::new();
    let mut next = head;
    while next.0 != 0 {
        let damaged = |what: &str| row::damaged(shard, next, Some(run), what);
        let raw = read(next)?.ok_or_else(|| damaged("it is missing"))?;
        if raw.run != run {
            return Err(damaged(&format!("it belongs to {}", raw.run)));
        }
        let row = raw.decode()?;
        if row.prior >= next || rows.last().is_some_and(|later| row.rev >= later.rev) {
            return Err(damaged("it does not follow the run's row before it"));
        }
        let begins = matches!(row.facts.first(), Some(Fact::Compacted(_)));
        next = if begins || row.rev.0 <= from { Seq(0) } else { row.prior };
        if row.rev.0 >= from {
            rows.push(row);
        }
    }
    rows.reverse();
    Ok(rows)
}

/// What a row says of its place in a run's journal.
pub(crate) struct Mark {
    pub(crate) run: RunId,
    pub(crate) rev: Rev,
    pub(crate) prior: Seq,
    /// Whether the journal begins with it.
    pub(crate) begins: bool,
}

/// What the facts of a row begin with that a journal begins with.
pub(crate) const COMPACTED: &str = "[{\"compacted\"";

/// The way back through a run's journal, which keeps positions and no rows: checksums are looked at when rows are read.
pub(crate) struct Walk {
    shard: ShardId,
    run: RunId,
    from: u64,
    most: usize,
    next: Seq,
    later: Option<Rev>,
    places: VecDeque<Seq>,
}

impl Walk {
    pub(crate) fn new(shard: ShardId, run: RunId, head: Seq, from: u64, most: usize) -> Self {
        Self { shard, run, from, most, next: head, later: None, places: VecDeque::new() }
    }

    /// The position to look at next.
    pub(crate) fn next(&self) -> Option<Seq> {
        Some(self.next).filter(|next| next.0 != 0)
    }

    /// Goes on by the row that lies there.
    pub(crate) fn take(&mut self, mark: Option<Mark>) -> Result<(), Fault> {
        let here = self.next;
        let damaged = |what: &str| row::damaged(self.shard, here, Some(self.run), what);
        let mark = mark.ok_or_else(|| damaged("it is missing"))?;
        if mark.run != self.run {
            return Err(damaged(&format!("it belongs to {}", mark.run)));
        }
        // Revisions have no gap: a row that leads past another is not as it was written.
        if mark.prior >= here || self.later.is_some_and(|later| mark.rev.0 + 1 != later.0) {
            return Err(damaged("it does not follow the run's row before it"));
        }
        self.later = Some(mark.rev);
        self.next = if mark.begins || mark.rev.0 <= self.from { Seq(0) } else { mark.prior };
        if mark.rev.0 >= self.from {
            self.places.push_front(here);
            self.places.truncate(self.most);
        }
        Ok(())
    }

    pub(crate) fn end(self) -> Vec<Seq> {
        self.places.into()
    }
}

/// Rows of a run that are read one by one, until they are enough.
pub(crate) struct Gathering {
    shard: ShardId,
    run: RunId,
    left: usize,
    rows: Vec<Row>,
}

impl Gathering {
    pub(crate) fn new(shard: ShardId, run: RunId, bytes: usize) -> Self {
        Self { shard, run, left: bytes, rows: Vec::new() }
    }

    /// Takes the row of a position. Whether more may come.
    pub(crate) fn take(&mut self, seq: Seq, raw: Option<RawRow>) -> Result<bool, Fault> {
        let damaged = |what: &str| row::damaged(self.shard, seq, Some(self.run), what);
        let raw = raw.ok_or_else(|| damaged("it is missing"))?;
        if raw.run != self.run {
            return Err(damaged(&format!("it belongs to {}", raw.run)));
        }
        let row = raw.decode()?;
        if self.rows.last().is_some_and(|before| before.rev.0 + 1 != row.rev.0) {
            return Err(damaged("it does not follow the run's row before it"));
        }
        self.left = self.left.saturating_sub(raw.facts.len());
        self.rows.push(row);
        Ok(self.left > 0)
    }

    pub(crate) fn end(self) -> Vec<Row> {
        self.rows
    }
}

/// A dead letter that was settled before. It fences its batch as a taken position does.
pub(crate) fn no_letter(letter: LetterId) -> Fault {
    let message = format!("dead letter {letter} is not there any more: nothing was written");
    Fault::new(FaultKind::Refused, message)
}

/// A watermark beyond the end of the log: rows that index rows were built from are gone.
pub(crate) fn check_end(shard: ShardId, head: Seq, watermark: Seq) -> Result<(), Fault> {
    if watermark <= head {
        return Ok(());
    }
    let message = format!(
        "the journal of shard {} ends at position {}, but index rows cover it up to {}: its end is lost; restore the store from a backup",
        shard.0, head.0, watermark.0
    );
    Err(Fault::corrupt(None, Some((shard, head.next())), message))
}

/// Whether the row that was last when the end of the log was noted is the one that stands there.
pub(crate) fn check_last(shard: ShardId, head: Seq, same: bool) -> Result<(), Fault> {
    if same {
        return Ok(());
    }
    let message =
        format!("journal row {} of shard {} is not the one that was last when the store was left", head.0, shard.0);
    Err(Fault::corrupt(None, Some((shard, head)), message))
}

/// The checksum of a watermark. Nought is believed without one: nothing is taken from index rows then.
pub(crate) fn mark(shard: ShardId, watermark: Seq) -> i64 {
    Sum::of("watermark").number(i64::from(shard.0)).number(watermark.0 as i64).end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader who goes on after the last position of a page came back to where it had been, for ever, when one bit of
    /// a position made rows stand out of order. `cargo xtask crash --bit-flips` did not end.
    #[test]
    fn positions_only_ever_go_forward() {
        let row = |seq: u64| {
            let damaged = || Err(row::damaged(ShardId(0), Seq(seq), None, "it is not read"));
            (Seq(seq), damaged())
        };
        let found = in_order(ShardId(0), Seq(0), [row(1), row(2), row(1), row(5)].into_iter()).unwrap();
        let positions: Vec<u64> = found.iter().map(|row| row.as_ref().unwrap_err().position().unwrap().0).collect();
        assert_eq!(positions, [1, 2, 3, 4, 5]);
    }

    /// One bit of a key between two pages sent whoever looked for later rows to earlier ones: each time the reader got on
    /// by as many positions as there are rows, which is nothing.
    #[test]
    fn rows_from_before_end_the_reading() {
        let row = |seq: u64| (Seq(seq), Err(row::damaged(ShardId(1), Seq(seq), None, "it is not read")));
        assert_eq!(in_order(ShardId(1), Seq(7), [row(8)].into_iter()).unwrap().len(), 1);
        for before in [1, 6, 7] {
            let fault = in_order(ShardId(1), Seq(7), [row(before), row(8)].into_iter()).unwrap_err();
            assert_eq!(fault.position(), Some(Seq(8)));
            assert!(matches!(fault.kind, FaultKind::Corrupt { run: None, .. }), "{fault}");
        }
    }
}
