//! The tables, and how a file of an earlier release becomes one of this release.

use rusqlite::Connection;

use super::fault;
use crate::{Fault, FaultKind};

/// The format of a file written by this release.
pub(super) const FORMAT: u32 = 1;

/// The steps from one format to the next; the first makes an empty file a store.
const MIGRATIONS: [&str; FORMAT as usize] = [r"
-- What became true: one row per transition of a run, in the order it was recorded.
CREATE TABLE journal (
    position INTEGER PRIMARY KEY, -- shard * 2^44 + position in the shard's log
    run      BLOB    NOT NULL,    -- 'run_' || lower(hex(run)) is its text form
    rev      INTEGER NOT NULL,    -- the run's revision after this row
    prior    INTEGER NOT NULL,    -- position of the run's row before this one, 0 for the first
    at       INTEGER NOT NULL,    -- milliseconds since 1970, UTC
    facts    TEXT    NOT NULL,    -- JSON list of facts
    checksum INTEGER NOT NULL
) STRICT;

-- One row per run, written behind: it can be deleted and is rebuilt from the journal.
CREATE TABLE run (
    id         BLOB    NOT NULL PRIMARY KEY,
    shard      INTEGER NOT NULL,
    head       INTEGER NOT NULL,  -- position of the run's last journal row
    rev        INTEGER NOT NULL,
    namespace  TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    queue      TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    step       TEXT,
    key        TEXT,
    occupies   TEXT,              -- the business key it holds now
    parent     BLOB,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    due        INTEGER,           -- when something happens to it by itself
    priority   INTEGER,           -- its place among attempts that can be claimed
    eligible_at INTEGER,
    arrival    INTEGER,
    reservation INTEGER NOT NULL, -- 1: holds a key for a run in another shard
    checkpoint TEXT    NOT NULL,  -- the run folded up to rev, JSON
    checksum   INTEGER NOT NULL
) STRICT;
CREATE INDEX run_by_occupies ON run (occupies) WHERE occupies IS NOT NULL;
CREATE INDEX run_by_due ON run (shard, due) WHERE due IS NOT NULL;
CREATE INDEX run_by_ready ON run (shard, priority, eligible_at, arrival) WHERE eligible_at IS NOT NULL;
CREATE INDEX run_by_status ON run (status, id) WHERE status <> 'done';
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_by_key ON run (key) WHERE key IS NOT NULL;

-- One row per shard; epoch changes only with the owner, watermark with the index rows.
CREATE TABLE shard (
    id        INTEGER PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    watermark INTEGER NOT NULL
) STRICT;

-- Messages between shards, and how far each was consumed.
CREATE TABLE envelope (
    receiver INTEGER NOT NULL,
    sender   INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    body     TEXT    NOT NULL,
    PRIMARY KEY (receiver, sender, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE envelope_cursor (
    receiver INTEGER NOT NULL,
    sender   INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    PRIMARY KEY (receiver, sender)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_letter (
    id     INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    node   TEXT    NOT NULL,
    reason TEXT    NOT NULL,
    body   TEXT    NOT NULL
) STRICT;

-- For people: ids and times as text.
CREATE VIEW runs AS
    SELECT 'run_' || lower(hex(id)) AS run, workflow, version, status, step, key, queue,
           strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created,
           strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch') AS updated,
           strftime('%Y-%m-%dT%H:%M:%fZ', due / 1000.0, 'unixepoch') AS due,
           rev, 'run_' || lower(hex(parent)) AS parent
    FROM run WHERE reservation = 0;
CREATE VIEW history AS
    SELECT 'run_' || lower(hex(run)) AS run, rev,
           strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch') AS at, facts, position
    FROM journal;

CREATE TABLE setting (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"];

/// The format of the file: 0 for an empty one.
pub(super) fn format(connection: &Connection) -> Result<u32, Fault> {
    connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|error| fault("reading the store's format", error))
}

/// Brings the file to this release's format. `shards` counts only for a file that is new.
pub(super) fn migrate(connection: &mut Connection, shards: u16) -> Result<u32, Fault> {
    let found = format(connection)?;
    if found > FORMAT {
        return Err(newer(found));
    }
    if found == 0 && has_tables(connection)? {
        return Err(Fault::new(
            FaultKind::Unusable,
            "the file is a SQLite database but not an Abide store; give a path of its own",
        ));
    }
    for (format, step) in (1u32..).zip(MIGRATIONS).skip(found as usize) {
        let doing = |error| fault("migrating the store", error);
        let transaction = connection.transaction().map_err(doing)?;
        transaction.execute_batch(step).map_err(doing)?;
        if format == 1 {
            transaction
                .execute(
                    "INSERT INTO setting (name, value) VALUES ('shards', ?1)",
                    [shards.to_string()],
                )
                .map_err(doing)?;
        }
        transaction
            .pragma_update(None, "user_version", format)
            .map_err(doing)?;
        transaction.commit().map_err(doing)?;
    }
    Ok(found)
}

/// A file of a newer release must not be touched.
pub(super) fn newer(found: u32) -> Fault {
    let message = format!(
        "the store has format {found}, and this release knows formats up to {FORMAT}: use the newer release that wrote it"
    );
    Fault::new(FaultKind::Unusable, message)
}

fn has_tables(connection: &Connection) -> Result<bool, Fault> {
    connection
        .query_row("SELECT count(*) > 0 FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| fault("looking at the file", error))
}

/// How many shards the store was made with.
pub(super) fn shards(connection: &Connection) -> Result<u16, Fault> {
    let text: String = connection
        .query_row("SELECT value FROM setting WHERE name = 'shards'", [], |row| {
            row.get(0)
        })
        .map_err(|error| fault("reading the number of shards", error))?;
    text.parse().map_err(|_| {
        let message = format!("setting shards: expected a number, found {text:?}");
        Fault::new(
            FaultKind::Corrupt {
                run: None,
                position: None,
            },
            message,
        )
    })
}
