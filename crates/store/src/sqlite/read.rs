//! Reading rows and index rows back, each against its checksum.

use abide_kernel::{Facts, Rev, Row, Run, RunId, Seq, ShardId, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::flush::record_checksum;
use super::{fault, position, seq_of, shard_of};
use crate::row::{checksum, decode_facts};
use crate::{Due, Fault, FaultKind, ReadyPage, Scanned, StoredRun};

pub(super) const ROW_COLUMNS: &str = "position, run, rev, prior, at, facts, checksum";

/// A journal row as the file has it.
pub(super) struct RawRow {
    position: i64,
    run: Vec<u8>,
    rev: i64,
    prior: i64,
    at: i64,
    facts: Vec<u8>,
    checksum: i64,
}

impl RawRow {
    pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            position: row.get(0)?,
            run: row.get(1)?,
            rev: row.get(2)?,
            prior: row.get(3)?,
            at: row.get(4)?,
            facts: row.get_ref(5)?.as_bytes()?.to_owned(),
            checksum: row.get(6)?,
        })
    }

    /// The row's facts, if the row is as it was written. A row that was erased by a purge has none.
    pub(super) fn decode(self) -> Result<Row, Fault> {
        let place = (shard_of(self.position), seq_of(self.position));
        let run = run_id(&self.run);
        let corrupt = |what: String| {
            let message = format!(
                "journal row {} of shard {} is damaged: {what}",
                place.1.0, place.0.0
            );
            Fault::new(
                FaultKind::Corrupt {
                    run,
                    position: Some(place),
                },
                message,
            )
        };
        let Some(id) = run else {
            return Err(corrupt(format!(
                "its run id has {} bytes, not 16",
                self.run.len()
            )));
        };
        let (rev, prior, at) = (Rev(self.rev as u64), Seq(self.prior as u64), Timestamp(self.at));
        let erased = self.facts == b"[]" && self.checksum == 0;
        if !erased && checksum(id, rev, prior, at, &self.facts) != self.checksum {
            return Err(corrupt("its checksum does not match".into()));
        }
        let facts: Facts = decode_facts(&self.facts)
            .map_err(|error| corrupt(format!("its facts do not decode: {error}")))?;
        Ok(Row {
            seq: place.1,
            run: id,
            rev,
            prior,
            at,
            facts,
        })
    }
}

pub(super) fn run_id(bytes: &[u8]) -> Option<RunId> {
    bytes
        .try_into()
        .ok()
        .map(|bytes| RunId(u128::from_be_bytes(bytes)))
}

pub(super) fn scan(
    connection: &Connection,
    shard: ShardId,
    after: Seq,
    most: usize,
) -> Result<Vec<Scanned>, Fault> {
    let doing = |error| fault("reading the journal", error);
    let sql = format!(
        "SELECT {ROW_COLUMNS} FROM journal WHERE position > ?1 AND position < ?2 ORDER BY position LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    let (from, to) = (position(shard, after), position(ShardId(shard.0 + 1), Seq(0)));
    let rows = statement
        .query_map(params![from, to, most as i64], RawRow::read)
        .map_err(doing)?;
    let mut found = Vec::new();
    let mut expected = after.next();
    for row in rows {
        let row = row.map_err(doing)?;
        let seq = seq_of(row.position);
        if seq != expected {
            let message = format!(
                "the journal of shard {} has a gap: expected {}, found {}",
                shard.0, expected.0, seq.0
            );
            found.push(Err(Fault::corrupt(None, Some((shard, expected)), message)));
        }
        expected = seq.next();
        found.push(row.decode());
    }
    Ok(found)
}

pub(super) fn read_run(connection: &Connection, run: RunId) -> Result<Option<StoredRun>, Fault> {
    let doing = |error| fault("reading a run", error);
    let id = run.0.to_be_bytes();
    let found = connection
        .prepare_cached("SELECT head, rev, checkpoint, checksum FROM run WHERE id = ?1")
        .map_err(doing)?
        .query_row([id.as_slice()], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, i64>(1)?,
                row.get_ref(2)?.as_bytes()?.to_owned(),
                row.get::<_, i64>(3)?,
            ))
        })
        .optional()
        .map_err(doing)?;
    let Some((head, rev, checkpoint, stored)) = found else {
        return Ok(None);
    };
    let corrupt = |what: String| {
        Fault::new(
            FaultKind::Corrupt {
                run: Some(run),
                position: None,
            },
            format!("the index row of {run} is damaged: {what}"),
        )
    };
    if record_checksum(&id, head, rev, &checkpoint) != stored {
        return Err(corrupt("its checksum does not match".into()));
    }
    let folded: Run = serde_json::from_slice(&checkpoint).map_err(|error| corrupt(error.to_string()))?;
    Ok(Some(StoredRun {
        run: folded,
        head: Seq(head as u64),
    }))
}

pub(super) fn read_key(connection: &Connection, identity: &str) -> Result<Option<RunId>, Fault> {
    let doing = |error| fault("looking up a key", error);
    let found: Option<Vec<u8>> = connection
        .prepare_cached("SELECT id FROM run WHERE occupies = ?1 LIMIT 1")
        .map_err(doing)?
        .query_row([identity], |row| row.get(0))
        .optional()
        .map_err(doing)?;
    Ok(found.as_deref().and_then(run_id))
}

pub(super) fn read_due(
    connection: &Connection,
    shard: ShardId,
    from: Timestamp,
    most: usize,
) -> Result<Due, Fault> {
    let doing = |error| fault("reading deadlines", error);
    let mut statement = connection
        .prepare_cached("SELECT due, id FROM run WHERE shard = ?1 AND due >= ?2 ORDER BY due LIMIT ?3")
        .map_err(doing)?;
    let mut entries = entries(&mut statement, params![shard.0, from.0, most as i64]).map_err(doing)?;
    let Some((last, _)) = entries.last().copied().filter(|_| entries.len() >= most) else {
        return Ok(Due {
            entries,
            more_from: None,
        });
    };
    // The page ends between two instants: all runs of its last instant belong to it, however many.
    entries.retain(|(at, _)| *at < last);
    let mut rest = connection
        .prepare_cached("SELECT due, id FROM run WHERE shard = ?1 AND due = ?2")
        .map_err(doing)?;
    entries.extend(self::entries(&mut rest, params![shard.0, last.0]).map_err(doing)?);
    let next: Option<i64> = connection
        .prepare_cached("SELECT min(due) FROM run WHERE shard = ?1 AND due > ?2")
        .map_err(doing)?
        .query_row(params![shard.0, last.0], |row| row.get(0))
        .map_err(doing)?;
    Ok(Due {
        entries,
        more_from: next.map(Timestamp),
    })
}

fn entries(
    statement: &mut rusqlite::CachedStatement<'_>,
    with: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<Vec<(Timestamp, RunId)>> {
    let rows = statement.query_map(with, |row| {
        Ok((Timestamp(row.get(0)?), row.get::<_, Vec<u8>>(1)?))
    })?;
    let mut entries = Vec::new();
    for row in rows {
        let (at, id) = row?;
        entries.extend(run_id(&id).map(|id| (at, id)));
    }
    Ok(entries)
}

pub(super) fn read_ids(
    connection: &Connection,
    sql: &str,
    with: &[&dyn rusqlite::ToSql],
) -> Result<Vec<RunId>, Fault> {
    let doing = |error| fault("reading the index", error);
    let mut statement = connection.prepare_cached(sql).map_err(doing)?;
    let rows = statement
        .query_map(with, |row| row.get::<_, Vec<u8>>(0))
        .map_err(doing)?;
    let mut ids = Vec::new();
    for row in rows {
        ids.extend(run_id(&row.map_err(doing)?));
    }
    Ok(ids)
}

pub(super) fn read_ready(
    connection: &Connection,
    shard: ShardId,
    now: Timestamp,
    most: usize,
) -> Result<ReadyPage, Fault> {
    let sql = "SELECT id FROM run WHERE shard = ?1 AND eligible_at <= ?2 ORDER BY priority, eligible_at, arrival LIMIT ?3";
    let runs = read_ids(connection, sql, params![shard.0, now.0, most as i64 + 1])?;
    let more = runs.len() > most;
    Ok(ReadyPage {
        runs: runs.into_iter().take(most).collect(),
        more,
    })
}
