//! Settings of a store: a few names and values, each under a checksum.

use abide_kernel::SLOTS;
use rusqlite::{Connection, params};

use super::fault::fault;
use crate::Fault;
use crate::sum::Sum;

/// How many shards the store was made with.
pub(super) const SHARDS: &str = "shards";
/// The number of the last dead letter, so that none is used again.
pub(super) const LETTERS: &str = "letters";

pub(super) fn write(connection: &Connection, name: &str, value: u64) -> rusqlite::Result<()> {
    let value = value.to_string();
    let sum = sum(name, &value);
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
    let damaged = |what: &str| Fault::corrupt(None, None, format!("setting {name}: {what}, found {value:?}"));
    let number = value.parse().map_err(|_| damaged("expected a number"))?;
    if sum(name, &value) != checksum {
        return Err(damaged("its checksum does not match"));
    }
    Ok(number)
}

/// How many shards the store was made with.
pub(super) fn shards(connection: &Connection) -> Result<u16, Fault> {
    let count = read(connection, SHARDS)?;
    let fits = u16::try_from(count).ok().filter(|count| (1..=SLOTS).contains(count));
    fits.ok_or_else(|| {
        let message = format!("setting {SHARDS}: expected a number from 1 to {SLOTS}, found {count}");
        Fault::corrupt(None, None, message)
    })
}

fn sum(name: &str, value: &str) -> i64 {
    Sum::of("setting").text(Some(name)).text(Some(value)).end()
}
