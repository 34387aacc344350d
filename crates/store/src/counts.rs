//! Counting reads and writes, shared by an owner and its readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Counters;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    commits: AtomicU64,
    rows: AtomicU64,
    fact_bytes: AtomicU64,
    sync_ns: AtomicU64,
}

impl Counts {
    pub(crate) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commit(&self, rows: usize, fact_bytes: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.fact_bytes.fetch_add(fact_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn synced(&self, took: Duration) {
        self.sync_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            fact_bytes: self.fact_bytes.load(Ordering::Relaxed),
            sync_ns: self.sync_ns.load(Ordering::Relaxed),
        }
    }
}
