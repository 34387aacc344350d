//! Looking a file over: what SQLite itself finds wrong, envelopes against their checksums, and tables that are not
//! as this release makes them. Nothing is written.

use std::collections::BTreeMap;

use abide_kernel::ShardMap;
use rusqlite::Connection;

use super::fault::fault;
use super::{read, schema};
use crate::{Fault, FaultKind};

/// What is wrong with the file below its rows, and with messages that wait in it.
pub(super) fn integrity(connection: &Connection, map: ShardMap) -> Result<Vec<String>, Fault> {
    let doing = |error| fault("checking the file", error);
    let mut statement = connection.prepare("PRAGMA quick_check").map_err(doing)?;
    let said = statement
        .query_map([], |row| row.get::<_, String>(0))
        .map_err(doing)?
        .collect::<rusqlite::Result<Vec<_>>>()
        .map_err(doing)?;
    let mut found: Vec<String> = said.into_iter().filter(|line| line != "ok").collect();
    for shard in map.all() {
        match read::read_envelopes(connection, shard, usize::MAX) {
            Ok(_) => {}
            Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => found.push(fault.message),
            Err(fault) => return Err(fault),
        }
    }
    Ok(found)
}

/// Tables, indexes and views that are missing, changed, or not ours.
pub(super) fn drift(connection: &Connection) -> Result<Vec<String>, Fault> {
    let doing = |error| fault("comparing the tables", error);
    let mut fresh = Connection::open_in_memory().map_err(doing)?;
    schema::migrate(&mut fresh, 1)?;
    let expected = parts(&fresh).map_err(doing)?;
    let found = parts(connection).map_err(doing)?;
    let mut drifted = Vec::new();
    for (name, sql) in &expected {
        match found.get(name) {
            None => drifted.push(format!("{name} is missing")),
            Some(other) if other != sql => drifted.push(format!("{name} was changed")),
            Some(_) => {}
        }
    }
    let foreign = found.keys().filter(|name| !expected.contains_key(*name));
    drifted.extend(foreign.map(|name| format!("{name} is not ours")));
    Ok(drifted)
}

/// What the file is made of, by kind and name.
fn parts(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    let mut statement = connection.prepare(
        "SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}
