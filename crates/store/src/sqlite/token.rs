//! Tokens by which clients of a server are known.

use rusqlite::{Connection, params};

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
    let mut rows = statement.query([]).map_err(doing)?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next().map_err(doing)? {
        let read = || Ok((StoredToken { id: row.get(0)?, body: row.get(1)? }, row.get(2)?));
        let (token, checksum) = read().map_err(doing)?;
        tokens.push(token.check(checksum)?);
    }
    Ok(tokens)
}
