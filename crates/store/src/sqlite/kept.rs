//! What a server keeps beside the runs, and how much waits in queues.

use abide_kernel::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::{commit_fault, fault};
use super::limit;
use crate::{Depth, Fault, Kept};

/// All of it, in one transaction.
pub(super) fn write(connection: &mut Connection, all: &[Kept]) -> Result<(), Fault> {
    insert(connection, all).map_err(|error| commit_fault("keeping what a server wrote down", error))
}

fn insert(connection: &mut Connection, all: &[Kept]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for kept in all {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO kept (kind, id, body, checksum) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![kept.kind, kept.id, kept.body, kept.sum()])?;
    }
    transaction.commit()
}

pub(super) fn remove(connection: &Connection, kind: &str, id: &str) -> Result<bool, Fault> {
    connection
        .prepare_cached("DELETE FROM kept WHERE kind = ?1 AND id = ?2")
        .and_then(|mut statement| statement.execute([kind, id]))
        .map(|removed| removed > 0)
        .map_err(|error| commit_fault("forgetting what a server wrote down", error))
}

/// Those of a kind below an id, the lowest first.
pub(super) fn remove_below(connection: &Connection, kind: &str, id: &str, most: usize) -> Result<u64, Fault> {
    let sql = "DELETE FROM kept WHERE kind = ?1
               AND id IN (SELECT id FROM kept WHERE kind = ?1 AND id < ?2 ORDER BY id LIMIT ?3)";
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params![kind, id, limit(most)]))
        .map(|removed| removed as u64)
        .map_err(|error| commit_fault("forgetting what a server wrote down", error))
}

/// Those of a kind, the largest ids first.
pub(super) fn read(connection: &Connection, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault> {
    let doing = |error| fault("reading what a server wrote down", error);
    let sql = "SELECT kind, id, body, checksum FROM kept WHERE kind = ?1 AND (?2 IS NULL OR id < ?2)
               ORDER BY id DESC LIMIT ?3";
    let mut statement = connection.prepare_cached(sql).map_err(doing)?;
    let rows = statement.query_map(params![kind, before, limit(most)], kept).map_err(doing)?;
    rows.map(|row| row.map_err(doing)?).collect()
}

pub(super) fn read_one(connection: &Connection, kind: &str, id: &str) -> Result<Option<Kept>, Fault> {
    connection
        .prepare_cached("SELECT kind, id, body, checksum FROM kept WHERE kind = ?1 AND id = ?2")
        .and_then(|mut statement| statement.query_row([kind, id], kept).optional())
        .map_err(|error| fault("reading what a server wrote down", error))?
        .transpose()
}

/// Looks all of it over.
pub(super) fn check(connection: &Connection) -> Result<(), Fault> {
    let doing = |error| fault("reading what a server wrote down", error);
    let mut statement = connection.prepare("SELECT kind, id, body, checksum FROM kept").map_err(doing)?;
    let mut rows = statement.query_map([], kept).map_err(doing)?;
    rows.try_for_each(|row| row.map_err(doing)?.map(drop))
}

fn kept(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<Kept, Fault>> {
    Ok(Kept { kind: row.get(0)?, id: row.get(1)?, body: row.get(2)? }.check(row.get(3)?))
}

/// How much waits in the queues of a namespace, or of all of them.
pub(super) fn depths(connection: &Connection, namespace: Option<&str>) -> Result<Vec<Depth>, Fault> {
    let doing = |error| fault("counting what waits", error);
    // In the words of the index on open runs: SQLite uses it only if it finds them in the query.
    let of = namespace.map_or("", |_| "namespace = ?1 AND");
    let sql = format!(
        "SELECT queue, count(line), min(CASE WHEN line IS NOT NULL THEN eligible_at END), total(status = 'executing')
               FROM run WHERE {of} reservation = 0 AND status <> 'done'
               AND status IN ('runnable', 'executing') GROUP BY queue ORDER BY queue"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    let depth = |row: &rusqlite::Row<'_>| {
        Ok(Depth {
            queue: row.get(0)?,
            waiting: row.get::<_, i64>(1)? as u64,
            oldest: row.get::<_, Option<i64>>(2)?.map(Timestamp),
            running: row.get::<_, f64>(3)? as u64,
        })
    };
    let rows = statement.query_map(rusqlite::params_from_iter(namespace), depth).map_err(doing)?;
    rows.collect::<rusqlite::Result<Vec<Depth>>>().map_err(doing)
}
