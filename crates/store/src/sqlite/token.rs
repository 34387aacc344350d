//! Tokens by which clients of a server are known.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::{commit_fault, fault};
use crate::{Fault, StoredToken};

/// Each statement is a transaction of its own, so that its failure is one of the commit.
pub(super) fn write(connection: &Connection, token: &StoredToken) -> Result<(), Fault> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO token (id, body, checksum) VALUES (?1, ?2, ?3)")
        .and_then(|mut statement| statement.execute(params![token.id, token.body, token.sum()]))
        .map(drop)
        .map_err(|error| commit_fault("keeping a token", error))
}

pub(super) fn remove(connection: &Connection, id: &str) -> Result<bool, Fault> {
    connection
        .prepare_cached("DELETE FROM token WHERE id = ?1")
        .and_then(|mut statement| statement.execute([id]))
        .map(|removed| removed > 0)
        .map_err(|error| commit_fault("forgetting a token", error))
}

pub(super) fn read_all(connection: &Connection) -> Result<Vec<StoredToken>, Fault> {
    let doing = |error| fault("reading tokens", error);
    let mut statement = connection.prepare_cached("SELECT id, body, checksum FROM token ORDER BY id").map_err(doing)?;
    let rows = statement.query_map([], token).map_err(doing)?;
    rows.map(|row| row.map_err(doing)?).collect()
}

pub(super) fn read_one(connection: &Connection, id: &str) -> Result<Option<StoredToken>, Fault> {
    connection
        .prepare_cached("SELECT id, body, checksum FROM token WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id], token).optional())
        .map_err(|error| fault("reading a token", error))?
        .transpose()
}

fn token(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<StoredToken, Fault>> {
    Ok(StoredToken { id: row.get(0)?, body: row.get(1)? }.check(row.get(2)?))
}
