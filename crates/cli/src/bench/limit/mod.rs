//! The limit: the same rows written raw by one thread, with the same settings into the same table.

mod postgres;
mod sqlite;

use std::path::Path;
use std::time::Instant;

use abide_store::PostgresUrl;
use hdrhistogram::Histogram;

/// A raw journal of its own.
pub(crate) struct Limit(Box<dyn Raw>);

/// Rows without an engine.
trait Raw {
    /// Writes so many rows in one durable commit.
    fn commit(&mut self, rows: usize) -> anyhow::Result<()>;
}

impl Limit {
    /// In a file of its own. Rows will carry `row_bytes` bytes of facts.
    pub(crate) fn sqlite(path: &Path, row_bytes: usize) -> anyhow::Result<Self> {
        Ok(Self(Box::new(sqlite::Rows::open(path, row_bytes)?)))
    }

    /// In a table of its own beside those of the store at `url`.
    pub(crate) fn postgres(url: &PostgresUrl, row_bytes: usize) -> anyhow::Result<Self> {
        Ok(Self(Box::new(postgres::Rows::open(url, row_bytes)?)))
    }

    /// Rows per second for `rows` rows in batches of `batch`.
    pub(crate) fn rows_per_s(&mut self, rows: usize, batch: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut left = rows;
        while left > 0 {
            let now = batch.min(left);
            self.0.commit(now)?;
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
                self.0.commit(1)?;
            }
            raw.record(began.elapsed().as_micros() as u64)?;
        }
        Ok(raw)
    }
}
