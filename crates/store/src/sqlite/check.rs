//! Looking a file over: what SQLite itself finds wrong, what stands beside the journal against its checksums, and tables
//! that are not as this release makes them. Nothing is written.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use abide_kernel::ShardMap;
use rusqlite::Connection;

use super::fault::fault;
use super::shard::{ShardRow, end_of_log};
use super::{kept, letter, read, schema, setting, token, transact};
use crate::{Fault, FaultKind};

/// What is wrong with the file below its rows, with its tables, with shards, settings, outcomes of transactions, and messages that
/// wait in it.
pub(super) fn integrity(connection: &Connection, map: ShardMap) -> Result<Vec<String>, Fault> {
    let mut found = Vec::new();
    add(&mut found, said(connection).map(|said| said.into_iter().filter(|line| line != "ok").collect()))?;
    add(&mut found, drift(connection))?;
    add(&mut found, setting::read(connection, setting::LETTERS).map(|_| Vec::new()))?;
    add(&mut found, token::read_all(connection).map(|_| Vec::new()))?;
    add(&mut found, kept::check(connection).map(|()| Vec::new()))?;
    add(&mut found, transact::check(connection).map(|()| Vec::new()))?;
    let rows = connection.query_row("SELECT count(*) FROM shard", [], |row| row.get::<_, i64>(0));
    let expected = i64::from(map.count());
    let counted = rows.map_err(|error| fault("counting the shards", error)).map(|rows| match rows == expected {
        true => Vec::new(),
        false => vec![format!("expected rows of {expected} shards, found {rows}")],
    });
    add(&mut found, counted)?;
    for shard in map.all() {
        let end = ShardRow::read(connection, shard)
            .and_then(|kept| kept.check_log(connection, end_of_log(connection, shard)?.0));
        add(&mut found, end.map(|()| Vec::new()))?;
        add(&mut found, letter::cursors(connection, shard).map(|_| Vec::new()))?;
        add(&mut found, read::read_envelopes(connection, shard, usize::MAX).map(|_| Vec::new()))?;
    }
    Ok(found)
}

/// Damage is what is looked for; anything else is a fault.
fn add(found: &mut Vec<String>, looked: Result<Vec<String>, Fault>) -> Result<(), Fault> {
    match looked {
        Ok(more) => found.extend(more),
        Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => found.push(fault.message),
        Err(fault) => return Err(fault),
    }
    Ok(())
}

/// What SQLite says of the file: of every page, and of every index against its table.
fn said(connection: &Connection) -> Result<Vec<String>, Fault> {
    let doing = |error| fault("checking the file", error);
    let mut statement = connection.prepare("PRAGMA integrity_check").map_err(doing)?;
    let said = statement.query_map([], |row| row.get::<_, String>(0)).map_err(doing)?;
    said.collect::<rusqlite::Result<Vec<_>>>().map_err(doing)
}

/// Tables, indexes and views that are missing, changed, or not ours.
pub(super) fn drift(connection: &Connection) -> Result<Vec<String>, Fault> {
    let doing = |error| fault("comparing the tables", error);
    let expected = expected()?;
    let all = parts(connection).map_err(doing)?;
    let found: BTreeMap<&String, &String> = all.iter().map(|part| (&part.name, &part.sql)).collect();
    let mut drifted = Vec::new();
    for (name, sql) in expected {
        match found.get(name) {
            None => drifted.push(format!("{name} is missing")),
            Some(other) if *other != sql => drifted.push(format!("{name} was changed")),
            Some(_) => {}
        }
    }
    let ours = tables()?;
    let on_ours = |part: &&Part| !expected.contains_key(&part.name) && ours.contains(&part.table);
    drifted.extend(all.iter().filter(on_ours).map(|part| format!("{} is not ours", part.name)));
    Ok(drifted)
}

/// The names of our tables and views. Others in the file are the users' own.
pub(super) fn tables() -> Result<&'static [String], Fault> {
    static TABLES: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(tables) = TABLES.get() {
        return Ok(tables);
    }
    let names = expected()?.keys().filter_map(|name| name.strip_prefix("table ").or(name.strip_prefix("view ")));
    let names: Vec<String> = names.map(str::to_owned).collect();
    Ok(TABLES.get_or_init(|| names))
}

/// What a file of this release is made of.
fn expected() -> Result<&'static BTreeMap<String, String>, Fault> {
    static EXPECTED: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    if let Some(expected) = EXPECTED.get() {
        return Ok(expected);
    }
    let doing = |error| fault("making the tables anew to compare with", error);
    let mut fresh = Connection::open_in_memory().map_err(doing)?;
    schema::migrate(&mut fresh, 1)?;
    let expected = parts(&fresh).map_err(doing)?.into_iter().map(|part| (part.name, part.sql)).collect();
    Ok(EXPECTED.get_or_init(|| expected))
}

/// A part of a file: its kind and name, the table it belongs to, and how it was made.
struct Part {
    name: String,
    table: String,
    sql: String,
}

/// What the file is made of.
fn parts(connection: &Connection) -> rusqlite::Result<Vec<Part>> {
    let mut statement = connection.prepare(
        "SELECT type || ' ' || name, tbl_name, coalesce(sql, '') FROM sqlite_schema
         WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let rows = statement.query_map([], |row| Ok(Part { name: row.get(0)?, table: row.get(1)?, sql: row.get(2)? }))?;
    rows.collect()
}
