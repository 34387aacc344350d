//! Settings of a store: a few names and values, each under a checksum.

use rusqlite::{Connection, params};

use super::fault::fault;
pub(super) use crate::setting::SHARDS;
use crate::{Fault, setting};

/// The number of the last dead letter, so that none is used again.
pub(super) const LETTERS: &str = "letters";

pub(super) fn write(connection: &Connection, name: &str, value: u64) -> rusqlite::Result<()> {
    let value = value.to_string();
    let sum = setting::sum(name, &value);
    connection
        .prepare_cached("INSERT OR REPLACE INTO setting (name, value, checksum) VALUES (?1, ?2, ?3)")?
        .execute(params![name, value, sum])?;
    Ok(())
}

pub(super) fn read(connection: &Connection, name: &str) -> Result<u64, Fault> {
    let (value, checksum): (String, i64) = connection
        .prepare_cached("SELECT value, checksum FROM setting WHERE name = ?1")
        .and_then(|mut statement| statement.query_row([name], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(|error| fault(&format!("reading the setting {name}"), error))?;
    setting::number(name, &value, checksum)
}

/// How many shards the store was made with.
pub(super) fn shards(connection: &Connection) -> Result<u16, Fault> {
    setting::shards(read(connection, SHARDS)?)
}
