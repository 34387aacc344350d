//! The embedded store: one SQLite file, readable with any SQL tool, also while the engine runs.
//!
//! A journal row's key is its shard and position in one integer, so that appending is sequential and a taken
//! position is refused by the file itself. A row points back at the run's row before it; with the run's last
//! position in its index row, a run's journal is followed without an index that every append would pay for.

mod schema;
mod setting;

mod lock;
mod open;

mod append;
mod checkpoint;
mod fault;
mod flush;
mod import;
mod kept;
mod letter;
mod owner;
mod shard;
mod token;
mod transact;

mod check;
mod list;
#[cfg(test)]
mod plans;
mod read;
mod reader;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use abide_kernel::{Seq, ShardEpoch, ShardId, ShardMap, Timestamp};
use rusqlite::Connection;

pub use lock::Holder;
pub use open::{open_read_only, raw_journal};
pub use reader::SqliteReader;
pub use rusqlite;

use crate::counts::Counts;

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    map: ShardMap,
    shards: Vec<Owned>,
    counts: Arc<Counts>,
    buffer: Vec<u8>,
    /// Why nothing more is written: a write or a sync failed, and nobody knows what is on the disk.
    stopped: Option<String>,
    /// Frames in the write-ahead log after the last commit.
    frames: Arc<AtomicU32>,
    /// Held until the store is closed; names the holder for those who come later.
    lock: Option<lock::Lock>,
}

/// What the owner of a shard knows of it.
#[derive(Clone, Debug, Default)]
struct Owned {
    owner: String,
    epoch: ShardEpoch,
    head: Seq,
    /// The checksum of the row there.
    last: i64,
    last_at: Timestamp,
}

/// Bits of a journal key that hold the position; the shard stands above them.
const SEQ_BITS: u32 = 44;

fn position(shard: ShardId, seq: Seq) -> i64 {
    assert!(seq.0 < 1 << SEQ_BITS, "position {} does not fit a journal key", seq.0);
    (i64::from(shard.0) << SEQ_BITS) | seq.0 as i64
}

/// The first key after all keys of a shard.
fn end_of(shard: ShardId) -> i64 {
    (i64::from(shard.0) + 1) << SEQ_BITS
}

fn seq_of(position: i64) -> Seq {
    Seq((position & ((1 << SEQ_BITS) - 1)) as u64)
}

fn shard_of(position: i64) -> ShardId {
    ShardId((position >> SEQ_BITS) as u16)
}

/// A number of rows as SQLite counts them.
fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}
