//! Flush: index rows and checkpoints, written behind in one transaction with the watermark.

use abide_kernel::Seq;
use abide_kernel::ShardId;
use abide_kernel::shard::{Flush, Record};
use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior, params};

use super::fault::{commit_fault, fault};
use super::read::{ROW_COLUMNS, raw_row};
use super::shard::ShardRow;
use super::{Owned, SqliteStore, position};
use crate::{Fault, Verdict, label, record};

/// An index row only ever moves its revision forward, and is written whole: its checksum is over all of it.
const UPSERT: &str = "
INSERT INTO run (id, shard, head, rev, namespace, workflow, version, queue, status, step, key, occupies, parent,
                 created_at, updated_at, due, priority, eligible_at, arrival, reservation, checkpoint, checksum, line,
                 labels)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
        ?24)
ON CONFLICT (id) DO UPDATE SET
    shard = excluded.shard, head = excluded.head, rev = excluded.rev, namespace = excluded.namespace,
    workflow = excluded.workflow, version = excluded.version, queue = excluded.queue, created_at = excluded.created_at,
    reservation = excluded.reservation, key = excluded.key, status = excluded.status, step = excluded.step,
    occupies = excluded.occupies, parent = excluded.parent, updated_at = excluded.updated_at, due = excluded.due,
    priority = excluded.priority, eligible_at = excluded.eligible_at, arrival = excluded.arrival,
    checkpoint = excluded.checkpoint, checksum = excluded.checksum, line = excluded.line,
    labels = excluded.labels
WHERE excluded.rev >= run.rev";

impl SqliteStore {
    pub(super) fn flush_index(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault> {
        let doing = |error| fault("writing index rows", error);
        let ours = |flush: &Flush| {
            let owned = self.shards.get(usize::from(flush.shard.0));
            owned.filter(|owned| owned.epoch == flush.epoch && flush.epoch.0 > 0)
        };
        if !group.iter().any(|flush| ours(flush).is_some()) {
            return Ok(vec![Verdict::Stale; group.len()]);
        }
        self.counts.write();
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing)?;
        let mut verdicts = vec![Verdict::Stale; group.len()];
        for (flush, verdict) in group.iter().zip(&mut verdicts) {
            let Some(owned) = ours(flush) else { continue };
            let kept = ShardRow::read(&transaction, flush.shard)?;
            if kept.epoch == flush.epoch {
                write(&transaction, flush, kept, owned).map_err(doing)?;
                *verdict = Verdict::Durable;
            }
        }
        transaction.commit().map_err(|error| commit_fault("writing index rows", error))?;
        Ok(verdicts)
    }
}

/// Writes what came with one shard.
fn write(connection: &Connection, flush: &Flush, mut kept: ShardRow, owned: &Owned) -> rusqlite::Result<()> {
    let shard = flush.shard.0;
    kept.watermark = kept.watermark.max(flush.through);
    (kept.head, kept.last) = (owned.head, owned.last);
    kept.write(connection)?;
    upsert(connection, shard, &flush.records)?;
    for (run, _) in &flush.purged {
        for gone in ["DELETE FROM run WHERE id = ?1", "DELETE FROM transaction_outcome WHERE run = ?1"] {
            connection.prepare_cached(gone)?.execute([run.0.to_be_bytes().as_slice()])?;
        }
    }
    for (_, head) in flush.compacted.iter().chain(&flush.purged) {
        erase(connection, flush.shard, *head)?;
    }
    // Envelopes that were consumed are of no use: their effects are in rows that are durable.
    connection
        .prepare_cached(
            "DELETE FROM envelope WHERE receiver = ?1 AND number <=
             (SELECT c.number FROM envelope_cursor c WHERE c.receiver = envelope.receiver AND c.sender = envelope.sender)",
        )?
        .execute([shard])?;
    Ok(())
}

fn upsert(connection: &Connection, shard: u16, records: &[Record]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(UPSERT)?;
    records.iter().try_for_each(|record| upsert_one(&mut statement, shard, record))
}

fn upsert_one(statement: &mut CachedStatement<'_>, shard: u16, record: &Record) -> rusqlite::Result<()> {
    let id = record.run.0.to_be_bytes();
    let checkpoint = std::str::from_utf8(&record.checkpoint).expect("a checkpoint is JSON, and so UTF-8");
    let parent = record.parent.map(|parent| parent.0.to_be_bytes());
    let (line, place) = record.ready.as_ref().map(|(line, place)| (line, place)).unzip();
    let [priority, eligible_at, arrival] = record::place(place);
    statement.execute(params![
        id.as_slice(),
        shard,
        record.head.0 as i64,
        record.rev.0 as i64,
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
        priority,
        eligible_at,
        arrival,
        record.reservation,
        checkpoint,
        record::checksum(shard, record),
        line,
        label::written(&record.labels),
    ])?;
    Ok(())
}

/// Empties a run's journal rows before the one that purges or compacts it, back to the first that says something. The
/// rows themselves stay, so that positions have no gap. A chain that is broken ends there: what is damaged is for a
/// person.
fn erase(connection: &Connection, shard: ShardId, head: Seq) -> rusqlite::Result<()> {
    let mut read = connection.prepare_cached(&format!("SELECT {ROW_COLUMNS} FROM journal WHERE position = ?1"))?;
    let mut write = connection.prepare_cached("UPDATE journal SET facts = ?2, checksum = ?3 WHERE position = ?1")?;
    let mut next = head;
    while next.0 != 0 {
        let key = position(shard, next);
        let found = read.query_row([key], |row| Ok(raw_row(row))).optional()?;
        let Some(Ok(mut row)) = found.filter(|row| row.as_ref().is_ok_and(|row| row.prior < next)) else {
            break;
        };
        if next != head {
            if row.is_emptied() {
                break;
            }
            row.empty();
            let facts = std::str::from_utf8(&row.facts).unwrap_or_default();
            write.execute(params![key, facts, row.checksum])?;
        }
        next = row.prior;
    }
    Ok(())
}
