//! Opening a file: checks before anything is written, the lock, the settings, the format.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{SLOTS, ShardMap};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::fault::fault;
use super::{Holder, Owned, SqliteReader, SqliteStore, checkpoint, import, lock, schema, setting};
use crate::{Durability, Fault, FaultKind};

/// How long to wait for others that use the file: readers that pin its log, foreign writers.
const PATIENCE: Duration = Duration::from_secs(5);
const STATEMENTS: usize = 64;
const MAGIC: &[u8] = b"SQLite format 3\0";

impl SqliteStore {
    /// Opens the store at `path`, or makes it with `shards` shards. `owner` names the holder to others.
    ///
    /// # Errors
    /// When another process holds it, it is of a newer format, no store, a directory, or cannot be written; and when it
    /// holds a part of what was to be imported.
    pub fn open(path: &Path, durability: Durability, shards: u16, owner: &str) -> Result<Self, Fault> {
        if shards == 0 || shards > SLOTS {
            let message = format!("a store has 1 to {SLOTS} shards, not {shards}");
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        check_path(path)?;
        let lock = lock::take(path, owner)?;
        let doing = |error| fault(&format!("opening {}", path.display()), error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = connect(path, flags).map_err(doing)?;
        // Closing would write and sync once more, also after a sync that failed, and nobody would hear of it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(doing)?;
        let frames = checkpoint::count_frames(&mut connection).map_err(doing)?;
        if connection.is_readonly("main").map_err(doing)? {
            let message = format!("{} cannot be written: give this user write permission", path.display());
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        // Before the settings: they would already change a file that is not ours.
        schema::check(&connection, path)?;
        configure(&connection, path, durability)?;
        schema::migrate(&mut connection, shards)?;
        settle(&connection, path)?;
        sync_folder(path)?;
        import::check(&connection, path)?;
        let map = ShardMap::new(setting::shards(&connection)?);
        Ok(Self {
            connection,
            path: path.to_owned(),
            map,
            shards: vec![Owned::default(); usize::from(map.count())],
            counts: Arc::default(),
            buffer: Vec::new(),
            stopped: None,
            frames,
            lock: Some(lock),
        })
    }

    /// Who holds the store at `path` now, if anybody does.
    #[must_use]
    pub fn holder(path: &Path) -> Option<Holder> {
        lock::holder(path)
    }

    /// Lets the file grow to so many pages and no further, as on a disk that is full then.
    ///
    /// # Errors
    /// When the file cannot be read.
    #[cfg(feature = "conformance")]
    pub fn limit_pages(&self, pages: u32) -> Result<(), Fault> {
        self.connection.pragma_update(None, "max_page_count", pages).map_err(|error| fault("limiting the file", error))
    }
}

/// A view of the store at `path` that never writes, also beside a running engine.
///
/// # Errors
/// When there is no store at `path`, or it is of a newer format.
pub fn open_read_only(path: &Path) -> Result<SqliteReader, Fault> {
    check_path(path)?;
    if !path.exists() {
        let message =
            format!("there is no store at {}; give the path of one, or start an engine on it", path.display());
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    SqliteReader::open(path, Arc::default())
}

/// A connection with this store's settings and an empty journal table, for measuring what the file alone can do.
///
/// # Errors
/// When the file cannot be made.
pub fn raw_journal(path: &Path, durability: Durability) -> Result<Connection, Fault> {
    let doing = |error| fault("opening a raw journal", error);
    let mut connection = Connection::open(path).map_err(doing)?;
    configure(&connection, path, durability)?;
    schema::migrate(&mut connection, 1)?;
    Ok(connection)
}

pub(super) fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(PATIENCE)?;
    // A page that counts more on it than there is would bring back what was there before, under a checksum that was right once.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// What can be seen without a lock and without SQLite, so that nothing is left beside a file that is not ours.
fn check_path(path: &Path) -> Result<(), Fault> {
    let unusable = |message: String| Err(Fault::new(FaultKind::Unusable, message));
    if path.is_dir() {
        return unusable(format!("{} is a directory; expected the path of a file", path.display()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return unusable(format!("the directory {} does not exist; make it first", parent.display()));
    }
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    if read.is_ok() && !start.is_empty() && start != MAGIC {
        return unusable(format!(
            "{} is not an Abide store, nor any SQLite database; give a path of its own",
            path.display()
        ));
    }
    Ok(())
}

fn configure(connection: &Connection, path: &Path, durability: Durability) -> Result<(), Fault> {
    let doing = |error| fault(&format!("setting {} up", path.display()), error);
    connection.pragma_update(None, "page_size", 8_192).map_err(doing)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(doing)?;
    // It answers before it commits, and a commit that fails then is not seen. What has become of it is known when the
    // file was looked at again.
    schema::format(connection).map_err(doing)?;
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(doing)?;
    if mode != "wal" {
        let message = format!(
            "{} could not be given a write-ahead log (its mode is {mode:?}): its disk fails, or cannot do that; nothing was acknowledged",
            path.display()
        );
        return Err(Fault::new(FaultKind::Unusable, message));
    }
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    let settings = || {
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.pragma_update(None, "cache_size", -32_768)?;
        connection.pragma_update(None, "foreign_keys", false)
    };
    settings().map_err(doing)
}

/// Frames of a process that was killed may look durable in the page cache and not be: bring them into the file,
/// synced, before anything is built on them.
fn settle(connection: &Connection, path: &Path) -> Result<(), Fault> {
    let busy: bool = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        .map_err(|error| fault(&format!("bringing {} in order", path.display()), error))?;
    if busy {
        let message = format!(
            "another program has been reading {} in one transaction for {} seconds, so that its log cannot be brought in order; end that and try again",
            path.display(),
            PATIENCE.as_secs()
        );
        return Err(Fault::new(FaultKind::Refused, message));
    }
    Ok(())
}

/// SQLite does without word from the folder when it makes the file and its log. Without it both may be gone with the
/// power, and everything in them.
fn sync_folder(path: &Path) -> Result<(), Fault> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| {
        let message =
            format!("the folder of {} could not be synced: {error}; nothing was acknowledged", path.display());
        Fault::because(FaultKind::Unusable, message, error)
    })
}
