//! Rows into SQLite, without an engine.

use std::path::Path;

use abide_store::Durability;
use abide_store::sqlite::raw_journal;
use rusqlite::Connection;

use super::Raw;

pub(super) struct Rows {
    connection: Connection,
    next: i64,
    facts: String,
}

impl Rows {
    pub(super) fn open(path: &Path, row_bytes: usize) -> anyhow::Result<Self> {
        let connection = raw_journal(path, Durability::Full)?;
        let last: i64 = connection.query_row("SELECT coalesce(max(position), 0) FROM journal", [], |row| row.get(0))?;
        Ok(Self { connection, next: last + 1, facts: "x".repeat(row_bytes) })
    }
}

impl Raw for Rows {
    fn commit(&mut self, rows: usize) -> anyhow::Result<()> {
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
}
