//! The store, as small as its promises: a log under a fence of epoch and position, and index rows behind it.

use std::sync::Arc;

use abide_kernel::shard::{Batch, Flush, Record};
use abide_kernel::{Row, Run, Seq, Timestamp};
use abide_store::Verdict;

use super::laws::Ledger;
use crate::Violation;

/// What is durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// Whose appends are taken.
    pub(super) epoch: u64,
    /// The log. Rows never change.
    pub(super) rows: Vec<Arc<Row>>,
    /// The index row of the run.
    pub(super) index: Option<Arc<Record>>,
    /// Index rows cover the log up to here.
    pub(super) through: Seq,
    /// What the laws know of the log.
    pub(super) ledger: Ledger,
}

impl Disk {
    /// The last position.
    pub(super) fn head(&self) -> Seq {
        Seq(self.rows.len() as u64)
    }

    /// Whether there are rows that the index row does not cover. Whoever opens the shard folds those; without any, the run
    /// may stay outside memory.
    pub(super) fn is_behind(&self) -> bool {
        self.head() > self.through
    }

    /// The instant of the last row.
    pub(super) fn last_at(&self) -> Timestamp {
        self.rows.last().map_or(Timestamp(0), |row| row.at)
    }

    /// The run as the log has it.
    pub(super) fn run(&self) -> Option<&Run> {
        self.ledger.run.as_deref()
    }

    /// Takes the batch whole, or refuses it whole.
    pub(super) fn append(&mut self, batch: &Batch) -> Result<Verdict, Violation> {
        let taken = batch.rows.first().is_some_and(|row| row.seq != self.head().next());
        if batch.epoch.0 != self.epoch || taken {
            return Ok(Verdict::Stale);
        }
        for row in &batch.rows {
            self.ledger.enter(self.rows.last().map(|last| &**last), row)?;
            self.rows.push(Arc::new(row.clone()));
        }
        Ok(Verdict::Durable)
    }

    /// Writes the index row, unless its writer is stale.
    pub(super) fn flush(&mut self, flush: Flush) -> Result<Verdict, Violation> {
        if flush.epoch.0 != self.epoch {
            return Ok(Verdict::Stale);
        }
        for record in flush.records {
            self.ledger.compare(&record)?;
            self.index = Some(Arc::new(record));
        }
        self.through = self.through.max(flush.through);
        Ok(Verdict::Durable)
    }

    /// The run as its index row has it.
    pub(super) fn indexed(&self) -> Result<Option<(Run, Seq)>, Violation> {
        let Some(record) = &self.index else { return Ok(None) };
        if record.checkpoint.is_empty() {
            return Ok(Some((super::laws::fold(&self.rows[..record.head.0 as usize])?, record.head)));
        }
        let run = serde_json::from_slice(&record.checkpoint).map_err(|bad| format!("a checkpoint: {bad}"))?;
        Ok(Some((run, record.head)))
    }
}
