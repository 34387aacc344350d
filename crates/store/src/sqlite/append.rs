//! Append: a group of batches in one transaction, made durable by its commit.

use std::sync::atomic::Ordering;

use abide_kernel::Row;
use abide_kernel::shard::Batch;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ToSql, params};

use super::{Owned, SqliteStore, fault, position};
use crate::row;
use crate::{Fault, FaultKind, Verdict};

/// Rows per statement: one statement for sixteen rows costs less than sixteen statements; more gains nothing.
const ROWS_PER_INSERT: usize = 16;
const COLUMNS: usize = 7;

impl SqliteStore {
    pub(super) fn append_group(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        let doing = |error| fault("appending to the journal", error);
        let verdicts: Vec<Verdict> = group.iter().map(|batch| self.fence(batch)).collect();
        let accepted = || {
            group
                .iter()
                .zip(&verdicts)
                .filter(|(_, verdict)| **verdict == Verdict::Durable)
                .map(|(batch, _)| batch)
        };
        if accepted().next().is_none() {
            return Ok(verdicts);
        }
        self.counts.write();
        // Encoding comes first: the write lock is held for no longer than it must be.
        self.buffer.clear();
        let mut encoded = Vec::with_capacity(accepted().map(|batch| batch.rows.len()).sum());
        for batch in accepted() {
            for row in &batch.rows {
                let start = self.buffer.len();
                let checksum = row::encode(row, &mut self.buffer);
                encoded.push(Encoded {
                    position: position(batch.shard, row.seq),
                    row,
                    start,
                    end: self.buffer.len(),
                    checksum,
                });
            }
        }
        let transaction = self.connection.transaction().map_err(doing)?;
        insert_rows(&transaction, &encoded, &self.buffer).map_err(doing)?;
        for batch in accepted() {
            insert_rest(&transaction, batch).map_err(doing)?;
        }
        transaction.commit().map_err(|error| commit_fault(error))?;
        let rows = encoded.len() as u64;
        for batch in accepted() {
            if let Some(last) = batch.rows.last() {
                self.shards[usize::from(batch.shard.0)].head = last.seq.0;
            }
        }
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.counts.rows.fetch_add(rows, Ordering::Relaxed);
        self.counts
            .fact_bytes
            .fetch_add(self.buffer.len() as u64, Ordering::Relaxed);
        Ok(verdicts)
    }

    /// The fence: the owner's epoch, and the next free position. The file's own key refuses a taken one as well.
    fn fence(&self, batch: &Batch) -> Verdict {
        let Some(Owned { epoch, head }) = self.shards.get(usize::from(batch.shard.0)).copied() else {
            return Verdict::Stale;
        };
        let next = batch.rows.first().is_none_or(|first| first.seq.0 == head + 1);
        if batch.epoch.0 == epoch && epoch > 0 && next {
            Verdict::Durable
        } else {
            Verdict::Stale
        }
    }
}

struct Encoded<'a> {
    position: i64,
    row: &'a Row,
    start: usize,
    end: usize,
    checksum: i64,
}

/// Facts as text that is known to be UTF-8: they were just written by the JSON encoder.
struct Text<'a>(&'a [u8]);

impl ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

fn insert_rows(connection: &Connection, rows: &[Encoded<'_>], buffer: &[u8]) -> rusqlite::Result<()> {
    let (groups, rest) = rows.as_chunks::<ROWS_PER_INSERT>();
    if !groups.is_empty() {
        let mut many = connection.prepare_cached(&insert_sql(ROWS_PER_INSERT))?;
        for group in groups {
            for (index, row) in group.iter().enumerate() {
                bind(&mut many, index * COLUMNS, row, buffer)?;
            }
            many.raw_execute()?;
        }
    }
    if !rest.is_empty() {
        let mut one = connection.prepare_cached(&insert_sql(1))?;
        for row in rest {
            bind(&mut one, 0, row, buffer)?;
            one.raw_execute()?;
        }
    }
    Ok(())
}

fn insert_sql(rows: usize) -> String {
    let values = vec!["(?,?,?,?,?,?,?)"; rows].join(",");
    format!("INSERT INTO journal (position, run, rev, prior, at, facts, checksum) VALUES {values}")
}

fn bind(
    statement: &mut CachedStatement<'_>,
    from: usize,
    encoded: &Encoded<'_>,
    buffer: &[u8],
) -> rusqlite::Result<()> {
    let row = encoded.row;
    statement.raw_bind_parameter(from + 1, encoded.position)?;
    statement.raw_bind_parameter(from + 2, row.run.0.to_be_bytes().as_slice())?;
    statement.raw_bind_parameter(from + 3, row.rev.0 as i64)?;
    statement.raw_bind_parameter(from + 4, row.prior.0 as i64)?;
    statement.raw_bind_parameter(from + 5, row.at.0)?;
    statement.raw_bind_parameter(from + 6, Text(&buffer[encoded.start..encoded.end]))?;
    statement.raw_bind_parameter(from + 7, encoded.checksum)
}

/// Envelopes, cursors and dead letters: rare beside rows, so one statement each.
fn insert_rest(connection: &Connection, batch: &Batch) -> rusqlite::Result<()> {
    for envelope in &batch.envelopes {
        let body = serde_json::to_string(envelope).expect("envelopes have a JSON form");
        connection
            .prepare_cached("INSERT INTO envelope (receiver, sender, number, body) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                envelope.to.0,
                envelope.from.0,
                envelope.number as i64,
                body
            ])?;
    }
    for (sender, number) in &batch.consumed {
        connection
            .prepare_cached(
                "INSERT INTO envelope_cursor (receiver, sender, number) VALUES (?1, ?2, ?3)
                 ON CONFLICT (receiver, sender) DO UPDATE SET number = excluded.number WHERE excluded.number > number",
            )?
            .execute(params![batch.shard.0, sender.0, *number as i64])?;
    }
    for dead in &batch.dead {
        let body = serde_json::to_string(&dead.envelope).expect("envelopes have a JSON form");
        let at = batch.rows.last().map_or(0, |row| row.at.0);
        connection
            .prepare_cached("INSERT INTO dead_letter (at, node, reason, body) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![at, "", &*dead.reason, body])?;
    }
    Ok(())
}

/// A commit that failed: only when SQLite says that it rolled back is it known that nothing was written.
fn commit_fault(error: rusqlite::Error) -> Fault {
    let refused = matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::DatabaseBusy)
    );
    let kind = if refused {
        FaultKind::Refused
    } else {
        FaultKind::Fatal
    };
    Fault::because(kind, format!("committing to the journal: {error}"), error)
}
