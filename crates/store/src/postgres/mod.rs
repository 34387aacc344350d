//! The store for many nodes: tables in one schema of a PostgreSQL database, readable with any SQL tool.
//!
//! Everything that a node's shards have gathered is appended by one statement. It locks their rows in `shard`, which
//! change only with their owners, and what is not owned any more simply does not join. On that path nothing is updated
//! or deleted, so that another's long transaction, which keeps dead rows from being cleared away, slows nothing down.

mod schema;

mod connect;
mod fault;
mod link;
mod open;

mod append;
mod cluster;
mod column;
mod flush;
mod import;
mod intake;
mod kept;
mod letter;
mod owner;
mod shard;
mod token;
mod transaction;

mod list;
#[cfg(test)]
mod plans;
mod read;
mod reader;

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_kernel::{Seq, ShardEpoch, ShardMap, Timestamp};

pub use connect::raw_client;
pub use open::{is_made, open_read_only};
pub use reader::PostgresReader;
pub use tokio_postgres;
pub use transaction::{Ended, Transaction, TransactionError, Transactions};

use crate::counts::Counts;
use connect::Settings;
use link::Link;

/// A store in a schema of a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    link: Link,
    settings: Arc<Settings>,
    map: ShardMap,
    shards: Vec<Owned>,
    lease: Lease,
    counts: Arc<Counts>,
    buffer: Vec<u8>,
    transactions: Arc<Transactions>,
}

/// What the owner of a shard knows of it.
#[derive(Clone, Debug, Default)]
struct Owned {
    /// The name of the node that took it, or of its process.
    node: String,
    epoch: ShardEpoch,
    head: Seq,
    /// The checksum of the row there.
    last: i64,
    last_at: Timestamp,
    /// What is noted of its progress: under which number, and how far index rows are complete.
    noted: i64,
    watermark: Seq,
    /// By sender: envelopes that were consumed, from the first to the last that may still be in the table.
    consumed: BTreeMap<u16, (i64, i64)>,
}

/// The lease that was renewed through this store last.
#[derive(Clone, Debug, Default)]
struct Lease {
    process: String,
    /// When it ends, by the database's clock.
    until: i64,
}

/// A number of rows as PostgreSQL counts them.
fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}
