//! Opening a file: checks before anything is written, the lock, the settings, the format.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::ShardMap;
use rusqlite::{Connection, OpenFlags};

use super::{Counts, Holder, Owned, SqliteReader, SqliteStore, fault, lock, schema};
use crate::{Durability, Fault, FaultKind};

impl SqliteStore {
    /// Opens the store at `path`, or makes it with `shards` shards. `owner` names the holder to others.
    ///
    /// # Errors
    /// When another process holds it, it is of a newer format, no store, a directory, or cannot be written.
    pub fn open(path: &Path, durability: Durability, shards: u16, owner: &str) -> Result<Self, Fault> {
        check_path(path)?;
        let lock = lock::take(path, owner)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let doing = |error| fault(&format!("opening {}", path.display()), error);
        let mut connection = Connection::open_with_flags(path, flags).map_err(doing)?;
        connection.busy_timeout(Duration::from_secs(10)).map_err(doing)?;
        if connection.is_readonly("main").map_err(doing)? {
            let message = format!(
                "{} cannot be written: give this user write permission",
                path.display()
            );
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        let format = schema::format(&connection)?;
        if format > schema::FORMAT {
            return Err(schema::newer(format));
        }
        configure(&connection, durability).map_err(doing)?;
        schema::migrate(&mut connection, shards)?;
        // Frames of a process that was killed may look durable in the page cache and not be: bring them into the
        // file, synced, before anything is built on them.
        connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(doing)?;
        let map = ShardMap::new(schema::shards(&connection)?);
        let shards = vec![Owned::default(); usize::from(map.count())];
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self {
            connection,
            path: path.to_owned(),
            map,
            shards,
            counts: Arc::new(Counts::default()),
            buffer: Vec::new(),
            _lock: lock,
        })
    }

    /// Who holds the store at `path` now, if anybody does.
    #[must_use]
    pub fn holder(path: &Path) -> Option<Holder> {
        lock::holder(path)
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

/// A view of the store at `path` that never writes, also beside a running engine.
///
/// # Errors
/// When there is no store at `path`, or it is of a newer format.
pub fn open_read_only(path: &Path) -> Result<SqliteReader, Fault> {
    check_path(path)?;
    if !path.exists() {
        let message = format!(
            "there is no store at {}; give the path of one, or start an engine on it",
            path.display()
        );
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    SqliteReader::open(path, Arc::new(Counts::default()))
}

/// A connection with this store's settings and an empty journal table, for measuring what the file alone can do.
///
/// # Errors
/// When the file cannot be made.
pub fn raw_journal(path: &Path, durability: Durability) -> Result<Connection, Fault> {
    let doing = |error| fault("opening a raw journal", error);
    let mut connection = Connection::open(path).map_err(doing)?;
    configure(&connection, durability).map_err(doing)?;
    schema::migrate(&mut connection, 1)?;
    Ok(connection)
}

fn check_path(path: &Path) -> Result<(), Fault> {
    if path.is_dir() {
        let message = format!("{} is a directory; expected the path of a file", path.display());
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        let message = format!("the directory {} does not exist; make it first", parent.display());
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    Ok(())
}

fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    connection.pragma_update(None, "page_size", 8_192)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "cache_size", -32_768)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    Ok(())
}
