//! The limit: the same rows written raw by one thread, with the same settings into the same table.

use std::path::Path;
use std::time::Instant;

use abide_store::Durability;
use abide_store::sqlite::raw_journal;
use hdrhistogram::Histogram;
use rusqlite::Connection;

/// A raw journal in a file of its own.
pub(crate) struct Limit {
    connection: Connection,
    next: i64,
    facts: String,
}

impl Limit {
    /// Rows will carry `row_bytes` bytes of facts.
    pub(crate) fn open(path: &Path, row_bytes: usize) -> anyhow::Result<Self> {
        let connection = raw_journal(path, Durability::Full)?;
        Ok(Self { connection, next: 1, facts: "x".repeat(row_bytes) })
    }

    /// Writes `rows` rows in one durable commit.
    pub(crate) fn commit(&mut self, rows: usize) -> anyhow::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut left = rows;
        while left > 0 {
            let now = if left >= 16 { 16 } else { 1 };
            let values = vec!["(?,?,?,?,?,?,?)"; now].join(",");
            let sql = format!("INSERT INTO journal (position, run, rev, prior, at, facts, checksum) VALUES {values}");
            let mut statement = transaction.prepare_cached(&sql)?;
            for row in 0..now {
                let from = row * 7;
                statement.raw_bind_parameter(from + 1, self.next)?;
                statement.raw_bind_parameter(from + 2, (self.next as u128).to_be_bytes().as_slice())?;
                statement.raw_bind_parameter(from + 3, 3)?;
                statement.raw_bind_parameter(from + 4, self.next)?;
                statement.raw_bind_parameter(from + 5, 1_700_000_000_000_i64)?;
                statement.raw_bind_parameter(from + 6, self.facts.as_str())?;
                statement.raw_bind_parameter(from + 7, self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64))?;
                self.next += 1;
            }
            statement.raw_execute()?;
            left -= now;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Rows per second for `rows` rows in batches of `batch`.
    pub(crate) fn rows_per_s(&mut self, rows: usize, batch: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut left = rows;
        while left > 0 {
            let now = batch.min(left);
            self.commit(now)?;
            left -= now;
        }
        Ok(rows as f64 / began.elapsed().as_secs_f64())
    }

    /// The time of `commits` commits of one row, one after the other, in microseconds, `times` times.
    pub(crate) fn commits_in_a_row(&mut self, times: usize, commits: usize) -> anyhow::Result<Histogram<u64>> {
        let mut raw = Histogram::new(3)?;
        for _ in 0..times {
            let began = Instant::now();
            for _ in 0..commits {
                self.commit(1)?;
            }
            raw.record(began.elapsed().as_micros() as u64)?;
        }
        Ok(raw)
    }
}
