//! The embedded store: one SQLite file, readable with any SQL tool, also while the engine runs.
//!
//! A journal row's key is its shard and position in one integer, so that appending is sequential and a taken
//! position is refused by the file itself. A row points back at the run's row before it; with the run's last
//! position in its index row, a run's journal is followed without an index that every append would pay for.

mod append;
mod flush;
mod lock;
mod open;
mod read;
mod reader;
mod schema;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_kernel::{Seq, ShardId, ShardMap};
use rusqlite::Connection;

pub use lock::Holder;
pub use open::{open_read_only, raw_journal};
pub use reader::SqliteReader;

use crate::store::Counters;
use crate::{Fault, FaultKind};

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    map: ShardMap,
    shards: Vec<Owned>,
    counts: Arc<Counts>,
    buffer: Vec<u8>,
    /// Held for as long as the store is open; names the holder for those who come later.
    _lock: lock::Lock,
}

/// What the owner of a shard knows of it.
#[derive(Clone, Copy, Debug, Default)]
struct Owned {
    epoch: u64,
    head: u64,
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    commits: AtomicU64,
    rows: AtomicU64,
    fact_bytes: AtomicU64,
}

impl Counts {
    fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Counters {
        Counters {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            fact_bytes: self.fact_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Bits of a journal key that hold the position; the shard stands above them.
const SEQ_BITS: u32 = 44;

fn position(shard: ShardId, seq: Seq) -> i64 {
    (i64::from(shard.0) << SEQ_BITS) | seq.0 as i64
}

fn seq_of(position: i64) -> Seq {
    Seq((position & ((1 << SEQ_BITS) - 1)) as u64)
}

fn shard_of(position: i64) -> ShardId {
    ShardId((position >> SEQ_BITS) as u16)
}

/// An error of SQLite as a fault: whether something may have been written depends on what failed.
fn fault(doing: &str, error: rusqlite::Error) -> Fault {
    use rusqlite::ErrorCode;
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FaultKind::Refused,
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::PermissionDenied,
        ) => FaultKind::Unusable,
        Some(ErrorCode::DatabaseCorrupt) => FaultKind::Corrupt {
            run: None,
            position: None,
        },
        // After a failed sync nobody knows what is on the disk; the file must be reopened and recovered.
        Some(ErrorCode::SystemIoFailure) => FaultKind::Fatal,
        _ => FaultKind::Unknown,
    };
    Fault::because(kind, format!("{doing}: {error}"), error)
}
