//! The tables, and how a file of an earlier release becomes one of this release.

use std::path::Path;

use abide_kernel::ShardMap;
use rusqlite::Connection;

use super::fault::fault;
use super::setting;
use super::shard::ShardRow;
use crate::{Fault, FaultKind};

/// What SQLite files of ours say they are: "Abid".
const APPLICATION: u32 = 0x4162_6964;

/// The format of a file written by this release.
pub(super) const FORMAT: u32 = 1;

/// The steps from one format to the next; the first makes an empty file a store.
const MIGRATIONS: [&str; FORMAT as usize] = [r"
-- What became true: one row per transition of a run, in the order it was recorded.
CREATE TABLE journal (
    position INTEGER PRIMARY KEY, -- shard * 2^44 + position in the shard's log
    run      BLOB    NOT NULL,    -- 'run_' || lower(hex(run)) is its text form
    rev      INTEGER NOT NULL,    -- the run's revision after this row
    prior    INTEGER NOT NULL,    -- position in the log of the run's row before this one, 0 for the first
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
    labels     TEXT,              -- name=value, each on a line of its own, with a line break before and behind
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    due        INTEGER,           -- when something happens to it by itself
    line       TEXT,              -- where it waits to be claimed: its concurrency key, or queue, workflow and version
    priority   INTEGER,           -- its place in that line
    eligible_at INTEGER,
    arrival    INTEGER,
    reservation INTEGER NOT NULL, -- 1: holds a key for a run in another shard
    checkpoint TEXT    NOT NULL,  -- the run folded up to rev, JSON
    checksum   INTEGER NOT NULL
) STRICT;
CREATE INDEX run_by_occupies ON run (occupies) WHERE occupies IS NOT NULL;
CREATE INDEX run_by_due ON run (shard, due) WHERE due IS NOT NULL;
CREATE INDEX run_by_line ON run (shard, line, priority, eligible_at, arrival, id) WHERE line IS NOT NULL;
CREATE INDEX run_by_status ON run (status, id) WHERE status <> 'done';
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_by_key ON run (key) WHERE key IS NOT NULL;

-- One row per shard; epoch changes only with the owner, the rest with the index rows and when the store is closed.
CREATE TABLE shard (
    id        INTEGER PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    head      INTEGER NOT NULL, -- the last position of its log
    last      INTEGER NOT NULL, -- the checksum of the row there
    checksum  INTEGER NOT NULL, -- of the columns before it
    watermark INTEGER NOT NULL, -- index rows are complete up to here; nought is always safe
    mark      INTEGER NOT NULL  -- the checksum of the watermark
) STRICT;

-- Messages between shards, and how far each was consumed.
CREATE TABLE envelope (
    receiver INTEGER NOT NULL,
    sender   INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    body     TEXT    NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (receiver, sender, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE envelope_cursor (
    receiver INTEGER NOT NULL,
    sender   INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (receiver, sender)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_letter (
    id       INTEGER PRIMARY KEY, -- never used again: the last one is among the settings
    at       INTEGER NOT NULL,
    node     TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    body     TEXT    NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;

-- What came of the users' own transactions, written by them: whoever tries again finds what was done.
CREATE TABLE transaction_outcome (
    run      BLOB    NOT NULL,
    key      TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    outcome  TEXT    NOT NULL, -- JSON
    checksum INTEGER NOT NULL,
    PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;

-- Tokens by which clients of a server are known: who, what and where, and a hash of the secret.
CREATE TABLE token (
    id       TEXT    NOT NULL PRIMARY KEY,
    body     TEXT    NOT NULL, -- JSON
    checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a server keeps beside the runs: limits and pauses of queues, and what was changed by whom.
CREATE TABLE kept (
    kind     TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    body     TEXT    NOT NULL, -- JSON
    checksum INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- For people: ids and times as text.
CREATE VIEW runs AS
    SELECT 'run_' || lower(hex(id)) AS run, workflow, version, status, step, key, queue,
           strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created,
           strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch') AS updated,
           strftime('%Y-%m-%dT%H:%M:%fZ', due / 1000.0, 'unixepoch') AS due,
           rev, 'run_' || lower(hex(parent)) AS parent, trim(labels, char(10)) AS labels
    FROM run WHERE reservation = 0;
CREATE VIEW history AS
    SELECT 'run_' || lower(hex(run)) AS run, rev,
           strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch') AS at, facts, position
    FROM journal;

CREATE TABLE setting (
    name     TEXT    NOT NULL PRIMARY KEY,
    value    TEXT    NOT NULL,
    checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"];

/// The format of the file: 0 for an empty one.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// The format of the file, if it is ours to read, or empty. Nothing is written.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<u32, Fault> {
    let doing = |error| fault(&format!("looking at {}", path.display()), error);
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0)).map_err(doing);
    let format = format(connection).map_err(doing)?;
    let ours = number("PRAGMA application_id")? == APPLICATION;
    if !ours && (format > 0 || number("SELECT count(*) FROM sqlite_schema")? > 0) {
        let message = format!("{} is a SQLite database but not an Abide store; give a path of its own", path.display());
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    if format > FORMAT {
        let message = format!(
            "the store {} has format {format}, and this release knows formats up to {FORMAT}: use the newer release that wrote it",
            path.display()
        );
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    Ok(format)
}

/// Brings a file that was checked to this release's format. `shards` counts only for a file that is new.
pub(super) fn migrate(connection: &mut Connection, shards: u16) -> Result<(), Fault> {
    let doing = |error| fault("migrating the store", error);
    let found = format(connection).map_err(doing)?;
    for (format, step) in (1u32..).zip(MIGRATIONS).skip(found as usize) {
        let transaction = connection.transaction().map_err(doing)?;
        transaction.execute_batch(step).map_err(doing)?;
        if format == 1 {
            transaction.pragma_update(None, "application_id", APPLICATION).map_err(doing)?;
            setting::write(&transaction, setting::SHARDS, u64::from(shards)).map_err(doing)?;
            setting::write(&transaction, setting::LETTERS, 0).map_err(doing)?;
            for shard in ShardMap::new(shards).all() {
                ShardRow::new(shard).write(&transaction).map_err(doing)?;
            }
        }
        transaction.pragma_update(None, "user_version", format).map_err(doing)?;
        transaction.commit().map_err(doing)?;
    }
    Ok(())
}
