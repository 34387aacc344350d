//! Flush: index rows and checkpoints, written behind in one transaction with the watermark.

use abide_kernel::shard::{Flush, Record};
use rusqlite::{Connection, params};
use xxhash_rust::xxh3::xxh3_64;

use super::{SqliteStore, fault, position};
use crate::{Fault, Verdict};

/// An index row only ever moves its revision forward.
const UPSERT: &str = "
INSERT INTO run (id, shard, head, rev, namespace, workflow, version, queue, status, step, key, occupies, parent,
                 created_at, updated_at, due, priority, eligible_at, arrival, reservation, checkpoint, checksum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
ON CONFLICT (id) DO UPDATE SET
    head = excluded.head, rev = excluded.rev, status = excluded.status, step = excluded.step,
    occupies = excluded.occupies, parent = excluded.parent, updated_at = excluded.updated_at, due = excluded.due,
    priority = excluded.priority, eligible_at = excluded.eligible_at, arrival = excluded.arrival,
    checkpoint = excluded.checkpoint, checksum = excluded.checksum
WHERE excluded.rev >= run.rev";

impl SqliteStore {
    pub(super) fn flush_index(&mut self, flush: &Flush) -> Result<Verdict, Fault> {
        let doing = |error| fault("writing index rows", error);
        if self
            .shards
            .get(usize::from(flush.shard.0))
            .map(|owned| owned.epoch)
            != Some(flush.epoch.0)
        {
            return Ok(Verdict::Stale);
        }
        self.counts.write();
        let shard = flush.shard.0;
        let transaction = self.connection.transaction().map_err(doing)?;
        for record in &flush.records {
            upsert(&transaction, shard, record).map_err(doing)?;
        }
        for (run, head) in &flush.purged {
            transaction
                .prepare_cached("DELETE FROM run WHERE id = ?1")
                .and_then(|mut delete| delete.execute([run.0.to_be_bytes().as_slice()]))
                .map_err(doing)?;
            erase(&transaction, position(flush.shard, *head)).map_err(doing)?;
        }
        // Envelopes that were consumed are only now of no use: their effects are in rows that are durable.
        transaction
            .prepare_cached(
                "DELETE FROM envelope WHERE receiver = ?1 AND number <=
                 (SELECT c.number FROM envelope_cursor c WHERE c.receiver = envelope.receiver AND c.sender = envelope.sender)",
            )
            .and_then(|mut delete| delete.execute([shard]))
            .map_err(doing)?;
        transaction
            .prepare_cached("UPDATE shard SET watermark = max(watermark, ?2) WHERE id = ?1")
            .and_then(|mut update| update.execute(params![shard, flush.through.0 as i64]))
            .map_err(doing)?;
        transaction.commit().map_err(doing)?;
        Ok(Verdict::Durable)
    }
}

/// The checksum of an index row: over what is decided by it.
pub(super) fn record_checksum(id: &[u8], head: i64, rev: i64, checkpoint: &[u8]) -> i64 {
    let mut bytes = Vec::with_capacity(checkpoint.len() + 32);
    bytes.extend_from_slice(id);
    bytes.extend_from_slice(&head.to_be_bytes());
    bytes.extend_from_slice(&rev.to_be_bytes());
    bytes.extend_from_slice(checkpoint);
    xxh3_64(&bytes) as i64
}

fn upsert(connection: &Connection, shard: u16, record: &Record) -> rusqlite::Result<()> {
    let id = record.run.0.to_be_bytes();
    let checkpoint = std::str::from_utf8(&record.checkpoint).unwrap_or("null");
    let (head, rev) = (record.head.0 as i64, record.rev.0 as i64);
    let checksum = record_checksum(&id, head, rev, &record.checkpoint);
    let parent = record.parent.map(|parent| parent.0.to_be_bytes());
    connection.prepare_cached(UPSERT)?.execute(params![
        id.as_slice(),
        shard,
        head,
        rev,
        &*record.namespace,
        &*record.workflow,
        record.version,
        &*record.queue,
        record.status.name(),
        record.step.as_deref(),
        record.key.as_deref(),
        record.occupies,
        parent.as_ref().map(|parent| parent.as_slice()),
        record.created_at.0,
        record.updated_at.0,
        record.due.map(|due| due.0),
        record.ready.map(|(priority, _, _)| priority),
        record.ready.map(|(_, eligible, _)| eligible.0),
        record.ready.map(|(_, _, arrival)| arrival.0 as i64),
        record.reservation,
        checkpoint,
        checksum,
    ])?;
    Ok(())
}

/// Empties the journal rows of a purged run, from its last row back to its first. The rows themselves stay, so
/// that positions have no gap.
fn erase(connection: &Connection, head: i64) -> rusqlite::Result<()> {
    let shard = head & !((1 << super::SEQ_BITS) - 1);
    let prior = |position: i64| {
        connection
            .prepare_cached("SELECT prior FROM journal WHERE position = ?1")?
            .query_row([position], |row| row.get::<_, i64>(0))
    };
    let mut next = prior(head)?;
    while next != 0 {
        let position = shard | next;
        next = prior(position)?;
        connection
            .prepare_cached("UPDATE journal SET facts = '[]', checksum = 0 WHERE position = ?1")?
            .execute([position])?;
    }
    Ok(())
}
