//! Append: a group of batches in one transaction, made durable by its commit.

use std::time::Instant;

use abide_kernel::shard::Batch;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ToSql, TransactionBehavior, params};

use super::fault::{commit_fault, fault};
use super::{Owned, SqliteStore, position};
use crate::group::{self, Encoded, accepted, encode};
use crate::{Fault, Verdict, journal, letter};

/// Rows per statement: one statement for sixteen rows costs less than sixteen statements; more gains nothing.
const ROWS_PER_INSERT: usize = 16;
const COLUMNS: usize = 7;
/// A buffer that had to grow beyond this for one batch is given back.
const BUFFER_BYTES_KEPT: usize = 16 * 1024 * 1024;

impl SqliteStore {
    pub(super) fn append_group(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        let doing = |error| fault("appending to the journal", error);
        let mut verdicts =
            group::fence(group, |shard| self.shards.get(usize::from(shard.0)).map(|owned| (owned.epoch, owned.head)));
        if !verdicts.contains(&Verdict::Durable) {
            return Ok(verdicts);
        }
        self.counts.write();
        // Encoding comes first: the write lock is held for no longer than it must be.
        let mut encoded = encode(group, &verdicts, &mut self.buffer);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing)?;
        if !still_owned(&transaction, group, &mut verdicts).map_err(doing)? {
            encoded = encode(group, &verdicts, &mut self.buffer);
        }
        insert_rows(&transaction, &encoded, &self.buffer).map_err(doing)?;
        for batch in accepted(group, &verdicts) {
            let owned = &self.shards[usize::from(batch.shard.0)];
            remove_letters(&transaction, batch)?;
            insert_rest(&transaction, batch).map_err(doing)?;
            set_aside(&transaction, batch, owned)?;
        }
        let committing = Instant::now();
        transaction.commit().map_err(|error| commit_fault("appending to the journal", error))?;
        self.counts.synced(committing.elapsed());
        self.counts.commit(encoded.len(), self.buffer.len());
        for Encoded { shard, row, checksum, .. } in encoded {
            let owned = &mut self.shards[usize::from(shard.0)];
            (owned.head, owned.last, owned.last_at) = (row.seq, checksum, row.at);
        }
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        Ok(verdicts)
    }
}

/// Whether every accepted batch is still the owner's by the file itself; those that are not become stale. What
/// this process remembers is not enough: someone may have removed the lock and opened the file.
fn still_owned(connection: &Connection, group: &[Batch], verdicts: &mut [Verdict]) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached("SELECT epoch FROM shard WHERE id = ?1")?;
    let mut all = true;
    for (batch, verdict) in group.iter().zip(verdicts) {
        if *verdict == Verdict::Durable {
            let epoch: i64 = statement.query_row([batch.shard.0], |row| row.get(0))?;
            if epoch as u64 != batch.epoch.0 {
                *verdict = Verdict::Stale;
                all = false;
            }
        }
    }
    Ok(all)
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
    statement.raw_bind_parameter(from + 1, position(encoded.shard, row.seq))?;
    statement.raw_bind_parameter(from + 2, row.run.0.to_be_bytes().as_slice())?;
    statement.raw_bind_parameter(from + 3, row.rev.0 as i64)?;
    statement.raw_bind_parameter(from + 4, row.prior.0 as i64)?;
    statement.raw_bind_parameter(from + 5, row.at.0)?;
    statement.raw_bind_parameter(from + 6, Text(&buffer[encoded.start..encoded.end]))?;
    statement.raw_bind_parameter(from + 7, encoded.checksum)
}

/// Envelopes and cursors: rare beside rows, so one statement each.
fn insert_rest(connection: &Connection, batch: &Batch) -> rusqlite::Result<()> {
    for envelope in &batch.envelopes {
        let body = letter::body(envelope);
        connection
            .prepare_cached(
                "INSERT INTO envelope (receiver, sender, number, body, checksum) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                envelope.to.0,
                envelope.from.0,
                envelope.number as i64,
                body,
                letter::envelope_sum(envelope.to.0, envelope.from.0, envelope.number as i64, &body)
            ])?;
    }
    for (sender, number) in &batch.consumed {
        super::letter::consume(connection, batch.shard.0, sender.0, *number as i64)?;
    }
    Ok(())
}

fn set_aside(connection: &Connection, batch: &Batch, owned: &Owned) -> Result<(), Fault> {
    let at = batch.rows.last().map_or(owned.last_at, |row| row.at);
    batch.dead.iter().try_for_each(|dead| super::letter::set_aside(connection, at, &owned.owner, dead))
}

/// Takes dead letters out that were put back or discarded. One that is not there was settled before.
fn remove_letters(connection: &Connection, batch: &Batch) -> Result<(), Fault> {
    for letter in &batch.settled {
        let removed = connection
            .prepare_cached("DELETE FROM dead_letter WHERE id = ?1")
            .and_then(|mut delete| delete.execute([letter.0 as i64]))
            .map_err(|error| fault("removing a dead letter", error))?;
        if removed == 0 {
            return Err(journal::no_letter(*letter));
        }
    }
    Ok(())
}
