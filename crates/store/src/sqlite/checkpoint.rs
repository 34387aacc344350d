//! Checkpoints: the log is brought into the file now and then, between commits, where a failure is heard of. SQLite does
//! it by itself after a commit, and says nothing when a sync fails there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::Connection;

use super::SqliteStore;
use super::fault::fault;
use crate::{Fault, FaultKind};

/// Frames in the log from which on it is brought into the file.
const FRAMES: u32 = 1_000;

/// Counts the frames in the log, commit by commit. This takes the place of SQLite's own checkpoints.
pub(super) fn count_frames(connection: &mut Connection) -> rusqlite::Result<Arc<AtomicU32>> {
    let frames = Arc::new(AtomicU32::new(0));
    let counted = frames.clone();
    connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, frames| {
        counted.store(u32::try_from(frames).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(frames)
}

impl SqliteStore {
    /// Brings a log that has grown into the file, as far as readers let it. Only a failed write or sync is a fault: a
    /// disk without room leaves the log as it is, for another time.
    pub(super) fn checkpoint(&self) -> Result<(), Fault> {
        if self.frames.load(Ordering::Relaxed) < FRAMES {
            return Ok(());
        }
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        match done.map_err(|error| fault("bringing the log into the file", error)) {
            Err(fault) if fault.kind == FaultKind::Fatal => Err(fault),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
