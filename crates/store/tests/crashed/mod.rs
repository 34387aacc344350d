//! A store in a file whose process dies: what is left is what the file system has while the engine still runs.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};

use abide_kernel::{Fact, Rev, Row, RunId, Seq, Slot, Timestamp};
use abide_store::Durability;
use abide_store::sqlite::SqliteStore;
use rusqlite::Connection;
use tempfile::TempDir;

pub struct File {
    folder: TempDir,
    shards: u16,
    deaths: u32,
}

impl File {
    pub fn new(shards: u16) -> Self {
        Self { folder: TempDir::new().expect("a temporary folder"), shards, deaths: 0 }
    }

    pub fn path(&self) -> PathBuf {
        self.place(self.deaths)
    }

    /// One file for each life, so that the dying process cannot touch what the next one opens.
    fn place(&self, life: u32) -> PathBuf {
        self.folder.path().join(format!("life-{life}.db"))
    }

    pub fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.place(self.deaths), Durability::Full, self.shards, "a test").expect("the store opens")
    }

    /// The process dies now: the file and its write-ahead log are kept as they are, nothing is closed.
    pub fn crash(&mut self) {
        let (old, new) = (self.place(self.deaths), self.place(self.deaths + 1));
        for suffix in ["", "-wal"] {
            let beside = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
            if beside(&old).exists() {
                std::fs::copy(beside(&old), beside(&new)).expect("the file is copied");
            }
        }
        self.deaths += 1;
    }
}

/// Changes a store behind its back; answers with the number of rows that the last statement changed.
pub fn edit(path: &Path, sql: &str) -> u64 {
    let connection = Connection::open(path).expect("the file opens");
    connection.execute_batch(sql).expect("the statements run");
    connection.changes()
}

/// The `seq`-th row of a shard, the first of a run of its own.
pub fn row(shard: u16, seq: u64) -> Row {
    let slot = Slot(shard * 2_048);
    Row {
        seq: Seq(seq),
        run: RunId::new(Timestamp(seq as i64), slot, u128::from(seq)),
        rev: Rev(1),
        prior: Seq(0),
        at: Timestamp(seq as i64),
        facts: [Fact::ParentPurged].into_iter().collect(),
    }
}
