//! Reading rows and index rows back, each against its checksum.

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::LinePlace;
use abide_kernel::{Rev, Row, RunId, Seq, ShardId, ShardMap, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::fault;
use super::{end_of, limit, position, seq_of, shard_of};
use crate::journal::{COMPACTED, Gathering, Mark, Walk};
use crate::letter::decode_envelope;
use crate::record::{self, RawRecord};
use crate::row::{self, RawRow};
use crate::{Due, Fault, FaultKind, ReadyPage, Scanned, StoredRun, journal};

/// In the words of the index on open runs: SQLite uses it only if it finds them in the query.
pub(super) const CLAIMED: &str =
    "SELECT id FROM run WHERE status = 'executing' AND status <> 'done' AND shard = ?1 ORDER BY id";
pub(super) const READY: &str = "SELECT priority, eligible_at, arrival, id FROM run
     WHERE shard = ?1 AND line = ?2 AND (priority, eligible_at, arrival, id) > (?3, ?4, ?5, ?6) AND eligible_at <= ?7
     ORDER BY priority, eligible_at, arrival, id LIMIT ?8";
/// From one line to the next by the index, however many wait in each.
pub(super) const LINES: &str = "WITH RECURSIVE found (line) AS (
         SELECT min(line) FROM run WHERE shard = ?1 AND line IS NOT NULL
         UNION ALL
         SELECT (SELECT min(line) FROM run WHERE shard = ?1 AND line > found.line) FROM found WHERE found.line IS NOT NULL)
     SELECT line FROM found WHERE line IS NOT NULL";
pub(super) const DUE: &str = "SELECT due, id FROM run WHERE shard = ?1 AND due >= ?2 ORDER BY due, id LIMIT ?3";
pub(super) const KEY: &str = "SELECT id FROM run WHERE occupies = ?1 ORDER BY id LIMIT 1";
pub(super) const ENVELOPES: &str = "SELECT sender, number, body, checksum FROM envelope e
     WHERE receiver = ?1 AND number > coalesce(
         (SELECT c.number FROM envelope_cursor c WHERE c.receiver = e.receiver AND c.sender = e.sender), 0)
     ORDER BY sender, number LIMIT ?2";
pub(super) const RECORD_COLUMNS: &str =
    "id, shard, head, rev, namespace, workflow, version, queue, status, step, key, occupies,
     parent, created_at, updated_at, due, line, priority, eligible_at, arrival, reservation, checkpoint, checksum,
     labels";
pub(super) const ROW_COLUMNS: &str = "position, run, rev, prior, at, facts, checksum";

/// A journal row as the file has it, from [`ROW_COLUMNS`]. A column that does not hold what is written there is
/// damage to this row, not to the table.
pub(super) fn raw_row(row: &rusqlite::Row<'_>) -> Result<RawRow, Fault> {
    let place: i64 = row.get(0).map_err(|error| fault("reading the journal", error))?;
    let (shard, seq) = (shard_of(place), seq_of(place));
    let run = row.get_ref(1).ok().and_then(|run| run.as_bytes().ok().and_then(run_id));
    let damaged = |what: &str| row::damaged(shard, seq, run, what);
    let wrong = |error: rusqlite::Error| damaged(&error.to_string());
    Ok(RawRow {
        shard,
        seq,
        run: run.ok_or_else(|| damaged("its run id has not 16 bytes"))?,
        rev: Rev(row.get::<_, i64>(2).map_err(wrong)? as u64),
        prior: Seq(row.get::<_, i64>(3).map_err(wrong)? as u64),
        at: Timestamp(row.get(4).map_err(wrong)?),
        facts: text(row, 5).map_err(wrong)?,
        checksum: row.get(6).map_err(wrong)?,
    })
}

/// The bytes of a text that may not be UTF-8 any more.
fn text(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    let value = row.get_ref(column)?;
    let bytes = value.as_bytes().or_else(|_| value.as_blob());
    bytes
        .map(<[u8]>::to_vec)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, value.data_type(), Box::new(error)))
}

pub(super) fn run_id(bytes: &[u8]) -> Option<RunId> {
    bytes.try_into().ok().map(|bytes| RunId(u128::from_be_bytes(bytes)))
}

/// A run id in a column of the index.
pub(super) struct Id(pub(super) RunId);

impl FromSql for Id {
    fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        run_id(bytes)
            .map(Self)
            .ok_or(rusqlite::types::FromSqlError::InvalidBlobSize { expected_size: 16, blob_size: bytes.len() })
    }
}

pub(super) fn scan(connection: &Connection, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
    let doing = |error| fault("reading the journal", error);
    let sql =
        format!("SELECT {ROW_COLUMNS} FROM journal WHERE position > ?1 AND position < ?2 ORDER BY position LIMIT ?3");
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    let with = params![position(shard, after), end_of(shard), limit(most.max(1))];
    let found = statement
        .query_map(with, |row| {
            let seq = seq_of(row.get(0)?);
            Ok((seq, raw_row(row).and_then(|raw| raw.decode())))
        })
        .map_err(doing)?;
    let mut rows = Vec::new();
    let mut last = after;
    for row in found {
        let row = row.map_err(|error| damaged_page(shard, last.next(), error))?;
        last = row.0;
        rows.push(row);
    }
    journal::in_order(shard, after, rows.into_iter())
}

/// A part of the file in which rows of a log are kept cannot be read, from a position on.
fn damaged_page(shard: ShardId, from: Seq, error: rusqlite::Error) -> Fault {
    let fault = fault("reading the journal", error);
    match fault.kind {
        FaultKind::Corrupt { run, .. } => {
            Fault { kind: FaultKind::Corrupt { run, position: Some((shard, from)) }, ..fault }
        }
        _ => fault,
    }
}

/// Where a run's rows lie, by the rows' own word.
pub(super) fn trail(connection: &Connection, shard: ShardId, mut walk: Walk) -> Result<Vec<Seq>, Fault> {
    let sql = "SELECT run, rev, prior, substr(facts, 1, length(?2)) = ?2 FROM journal WHERE position = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(|error| fault("reading a run's journal", error))?;
    while let Some(seq) = walk.next() {
        let mark = |row: &rusqlite::Row<'_>| {
            let (Id(run), rev, prior) = (row.get(0)?, row.get::<_, i64>(1)? as u64, row.get::<_, i64>(2)? as u64);
            Ok(Mark { run, rev: Rev(rev), prior: Seq(prior), begins: row.get(3)? })
        };
        let found = statement.query_row(params![position(shard, seq), COMPACTED], mark).optional();
        walk.take(found.map_err(|error| damaged_page(shard, seq, error))?)?;
    }
    Ok(walk.end())
}

pub(super) fn rows(
    connection: &Connection,
    shard: ShardId,
    run: RunId,
    places: &[Seq],
    bytes: usize,
) -> Result<Vec<Row>, Fault> {
    let sql = format!("SELECT {ROW_COLUMNS} FROM journal WHERE position = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(|error| fault("reading a run's journal", error))?;
    let mut gathering = Gathering::new(shard, run, bytes);
    for seq in places {
        let found = statement.query_row([position(shard, *seq)], |row| Ok(raw_row(row))).optional();
        let found = found.map_err(|error| damaged_page(shard, *seq, error))?.transpose()?;
        if !gathering.take(*seq, found)? {
            break;
        }
    }
    Ok(gathering.end())
}

/// A run's rows from `head` back to the one its journal begins with, without those below revision `from`, in order.
pub(super) fn journal(
    connection: &Connection,
    shard: ShardId,
    run: RunId,
    head: Seq,
    from: u64,
) -> Result<Vec<Row>, Fault> {
    let doing = |error| fault("reading a run's journal", error);
    let sql = format!("SELECT {ROW_COLUMNS} FROM journal WHERE position = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    journal::follow(shard, run, head, from, |seq| {
        let found = statement.query_row([position(shard, seq)], |row| Ok(raw_row(row)));
        found.optional().map_err(|error| damaged_page(shard, seq, error))?.transpose()
    })
}

pub(super) fn read_run(connection: &Connection, map: ShardMap, run: RunId) -> Result<Option<StoredRun>, Fault> {
    let doing = |error| fault("reading a run", error);
    let mut statement =
        connection.prepare_cached(&format!("SELECT {RECORD_COLUMNS} FROM run WHERE id = ?1")).map_err(doing)?;
    let found = statement
        .query_row([run.0.to_be_bytes().as_slice()], |row| Ok(raw_record(run, row)))
        .optional()
        .map_err(|error| damaged_run(run, error))?;
    found
        .map(|record| {
            record.and_then(|record| record.decode(|head| journal(connection, map.home(run.slot()), run, head, 0)))
        })
        .transpose()
}

/// What cannot be read of one run is damage to it, not to the table.
fn damaged_run(run: RunId, error: rusqlite::Error) -> Fault {
    let fault = fault(&format!("reading {run}"), error);
    match fault.kind {
        FaultKind::Corrupt { .. } => Fault { kind: FaultKind::Corrupt { run: Some(run), position: None }, ..fault },
        _ => fault,
    }
}

/// An index row as the file has it, from [`RECORD_COLUMNS`].
pub(super) fn raw_record(run: RunId, row: &rusqlite::Row<'_>) -> Result<RawRecord, Fault> {
    read_record(run, row).map_err(|error| record::damaged(run, &error.to_string()))
}

fn read_record(run: RunId, row: &rusqlite::Row<'_>) -> rusqlite::Result<RawRecord> {
    Ok(RawRecord {
        run,
        shard: row.get(1)?,
        head: row.get::<_, i64>(2)? as u64,
        rev: row.get::<_, i64>(3)? as u64,
        namespace: row.get(4)?,
        workflow: row.get(5)?,
        version: row.get(6)?,
        queue: row.get(7)?,
        status: row.get(8)?,
        step: row.get(9)?,
        key: row.get(10)?,
        occupies: row.get(11)?,
        parent: row.get::<_, Option<Id>>(12)?.map(|Id(parent)| parent),
        created_at: row.get(13)?,
        updated_at: row.get(14)?,
        due: row.get(15)?,
        line: row.get(16)?,
        place: [row.get(17)?, row.get(18)?, row.get(19)?],
        reservation: row.get(20)?,
        checkpoint: text(row, 21)?,
        checksum: row.get(22)?,
        labels: row.get(23)?,
    })
}

pub(super) fn read_key(connection: &Connection, identity: &str) -> Result<Option<RunId>, Fault> {
    let doing = |error| fault("looking up a key", error);
    let found = connection
        .prepare_cached(KEY)
        .map_err(doing)?
        .query_row([identity], |row| row.get(0))
        .optional()
        .map_err(doing)?;
    Ok(found.map(|Id(run)| run))
}

pub(super) fn read_due(connection: &Connection, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault> {
    let doing = |error| fault("reading deadlines", error);
    let mut statement = connection.prepare_cached(DUE).map_err(doing)?;
    let most = most.max(1);
    let mut entries = entries(&mut statement, params![shard.0, from.0, limit(most)]).map_err(doing)?;
    let Some((last, _)) = entries.last().copied().filter(|_| entries.len() >= most) else {
        return Ok(Due { entries, more_from: None });
    };
    // The page ends between two instants: all runs of its last instant belong to it, however many.
    entries.retain(|(at, _)| *at < last);
    let mut rest = connection
        .prepare_cached("SELECT due, id FROM run WHERE shard = ?1 AND due = ?2 ORDER BY id")
        .map_err(doing)?;
    entries.extend(self::entries(&mut rest, params![shard.0, last.0]).map_err(doing)?);
    let next: Option<i64> = connection
        .prepare_cached("SELECT min(due) FROM run WHERE shard = ?1 AND due > ?2")
        .map_err(doing)?
        .query_row(params![shard.0, last.0], |row| row.get(0))
        .map_err(doing)?;
    Ok(Due { entries, more_from: next.map(Timestamp) })
}

fn entries(
    statement: &mut rusqlite::CachedStatement<'_>,
    with: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<Vec<(Timestamp, RunId)>> {
    let rows = statement.query_map(with, |row| {
        let Id(run) = row.get(1)?;
        Ok((Timestamp(row.get(0)?), run))
    })?;
    rows.collect()
}

pub(super) fn read_ids(connection: &Connection, sql: &str, with: &[&dyn rusqlite::ToSql]) -> Result<Vec<RunId>, Fault> {
    let doing = |error| fault("reading the index", error);
    let mut statement = connection.prepare_cached(sql).map_err(doing)?;
    let rows = statement.query_map(with, |row| row.get(0).map(|Id(run)| run)).map_err(doing)?;
    rows.collect::<rusqlite::Result<_>>().map_err(doing)
}

pub(super) fn read_lines(connection: &Connection, shard: ShardId) -> Result<Vec<String>, Fault> {
    let doing = |error| fault("reading the lines of waiting attempts", error);
    let mut statement = connection.prepare_cached(LINES).map_err(doing)?;
    let rows = statement.query_map([shard.0], |row| row.get(0)).map_err(doing)?;
    rows.collect::<rusqlite::Result<_>>().map_err(doing)
}

pub(super) fn read_ready(
    connection: &Connection,
    shard: ShardId,
    line: &str,
    after: Option<LinePlace>,
    now: Timestamp,
    most: usize,
) -> Result<ReadyPage, Fault> {
    let doing = |error| fault("reading waiting attempts", error);
    let mut statement = connection.prepare_cached(READY).map_err(doing)?;
    let (priority, eligible_at, arrival, run) = match after {
        Some(LinePlace { priority, eligible_at, arrival, run }) => {
            (i64::from(priority), eligible_at.0, arrival.0 as i64, run.0.to_be_bytes())
        }
        // Before every place there can be.
        None => (i64::MIN, i64::MIN, 0, [0; 16]),
    };
    let with =
        params![shard.0, line, priority, eligible_at, arrival, run.as_slice(), now.0, limit(most).saturating_add(1)];
    let place = |row: &rusqlite::Row<'_>| {
        let (Id(run), arrival) = (row.get(3)?, row.get::<_, i64>(2)?);
        Ok(LinePlace { priority: row.get(0)?, eligible_at: Timestamp(row.get(1)?), arrival: Seq(arrival as u64), run })
    };
    let rows = statement.query_map(with, place).map_err(doing)?;
    let mut places: Vec<LinePlace> = rows.collect::<rusqlite::Result<_>>().map_err(doing)?;
    let more = places.len() > most;
    places.truncate(most);
    Ok(ReadyPage { places, more })
}

pub(super) fn read_envelopes(connection: &Connection, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
    let doing = |error| fault("reading envelopes", error);
    let mut statement = connection.prepare_cached(ENVELOPES).map_err(doing)?;
    let rows = statement
        .query_map(params![to.0, limit(most)], |row| {
            let sender: u16 = row.get(0)?;
            Ok((sender, row.get::<_, i64>(1)?, row.get::<_, String>(2)?, row.get::<_, i64>(3)?))
        })
        .map_err(doing)?;
    let mut envelopes = Vec::new();
    for row in rows {
        let (sender, number, body, checksum) = row.map_err(doing)?;
        envelopes.push(decode_envelope(to.0, sender, number, &body, checksum)?);
    }
    Ok(envelopes)
}
