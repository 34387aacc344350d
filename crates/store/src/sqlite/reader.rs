//! Inspection of a SQLite store through a connection of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_kernel::{Row, RunId, Seq, ShardId, ShardMap};
use rusqlite::{Connection, OpenFlags, Transaction, params};

use super::fault::fault;
use super::list::list;
use super::shard::ShardRow;
use super::{check, kept, letter, limit, open, read, schema, setting, token, transact};
use crate::counts::Counts;
use crate::journal::Walk;
use crate::listing::prefix_range;
use crate::transaction::Outcome;
use crate::{
    DeadLetterItem, Depth, Fault, FaultKind, Filter, Kept, Listed, Opener, Page, Reader, Scanned, Stats, StoredRun,
    StoredToken,
};

const BYTES: &str = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";

/// A view of a SQLite store that never writes.
#[derive(Debug)]
pub struct SqliteReader {
    connection: Connection,
    path: PathBuf,
    map: ShardMap,
    counts: Arc<Counts>,
}

impl SqliteReader {
    pub(super) fn open(path: &Path, counts: Arc<Counts>) -> Result<Self, Fault> {
        let doing = |error| fault(&format!("opening {} to read", path.display()), error);
        let connection = open::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(doing)?;
        let format = schema::check(&connection, path)?;
        if format == 0 {
            let message = format!("{} is empty; start an engine on it first", path.display());
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        let map = ShardMap::new(setting::shards(&connection)?);
        Ok(Self { connection, path: path.to_owned(), map, counts })
    }

    /// What is wrong with the file below its rows, and with messages that wait in it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn integrity(&self) -> Result<Vec<String>, Fault> {
        check::integrity(self.read(), self.map)
    }

    /// Tables, indexes and views that are not as this release makes them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn drift(&self) -> Result<Vec<String>, Fault> {
        check::drift(self.read())
    }

    fn read(&self) -> &Connection {
        self.counts.read();
        &self.connection
    }

    /// Several statements that see one state of the file.
    fn snapshot(&mut self) -> Result<Transaction<'_>, Fault> {
        self.counts.read();
        self.connection.transaction().map_err(|error| fault("beginning to read", error))
    }
}

impl Reader for SqliteReader {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn opener(&self) -> Opener {
        let (path, counts) = (self.path.clone(), self.counts.clone());
        Arc::new(move || Ok(Box::new(Self::open(&path, counts.clone())?)))
    }

    fn watermarks(&mut self) -> Result<Vec<(ShardId, Seq)>, Fault> {
        let connection = self.read();
        self.map.all().map(|shard| Ok((shard, ShardRow::read(connection, shard)?.watermark))).collect()
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        read::scan(self.read(), shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        // One transaction: a run without a checkpoint is folded from the journal that its index row meant.
        let map = self.map;
        read::read_run(&*self.snapshot()?, map, run)
    }

    fn journal(&mut self, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        read::journal(&*self.snapshot()?, shard, run, head, from)
    }

    fn trail(&mut self, run: RunId, head: Seq, from: u64, most: usize) -> Result<Vec<Seq>, Fault> {
        let shard = self.map.home(run.slot());
        read::trail(&*self.snapshot()?, shard, Walk::new(shard, run, head, from, most))
    }

    fn rows(&mut self, run: RunId, places: &[Seq], bytes: usize) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        read::rows(&*self.snapshot()?, shard, run, places, bytes)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        list(self.read(), filter, page)
    }

    fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault> {
        letter::read_all(self.read())
    }

    fn stats(&mut self) -> Result<Stats, Fault> {
        let doing = |error| fault("counting", error);
        self.counts.read();
        // One transaction, so that all counts are of one instant.
        let connection = self.connection.transaction().map_err(doing)?;
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|count| count as u64);
        let mut statement = connection
            .prepare_cached("SELECT status, count(*) FROM run WHERE reservation = 0 GROUP BY status ORDER BY status")
            .map_err(doing)?;
        let runs = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).map_err(doing)?;
        Ok(Stats {
            runs: runs.collect::<rusqlite::Result<_>>().map_err(doing)?,
            journal_rows: count("SELECT count(*) FROM journal").map_err(doing)?,
            envelopes: count(
                "SELECT count(*) FROM envelope e LEFT JOIN envelope_cursor c USING (receiver, sender)
                 WHERE e.number > coalesce(c.number, 0)",
            )
            .map_err(doing)?,
            bytes: count(BYTES).map_err(doing)?,
            format: schema::format(&connection).map_err(doing)?,
        })
    }

    fn kept(&mut self, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault> {
        kept::read(self.read(), kind, before, most)
    }

    fn kept_as(&mut self, kind: &str, id: &str) -> Result<Option<Kept>, Fault> {
        kept::read_one(self.read(), kind, id)
    }

    fn bytes(&mut self) -> Result<u64, Fault> {
        self.read()
            .query_row(BYTES, [], |row| row.get::<_, i64>(0))
            .map(|bytes| bytes as u64)
            .map_err(|error| fault("measuring the file", error))
    }

    fn depths(&mut self, namespace: Option<&str>) -> Result<Vec<Depth>, Fault> {
        kept::depths(self.read(), namespace)
    }

    fn tokens(&mut self) -> Result<Vec<StoredToken>, Fault> {
        token::read_all(self.read())
    }

    fn token(&mut self, id: &str) -> Result<Option<StoredToken>, Fault> {
        token::read_one(self.read(), id)
    }

    fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault> {
        let Some(range) = prefix_range(prefix) else {
            return Ok(Vec::new());
        };
        let (low, high) = (range.start().0.to_be_bytes(), range.end().0.to_be_bytes());
        let sql = "SELECT id FROM run WHERE id BETWEEN ?1 AND ?2 AND reservation = 0 ORDER BY id LIMIT ?3";
        read::read_ids(self.read(), sql, params![low.as_slice(), high.as_slice(), limit(most)])
    }

    fn outcomes(&mut self, after: Option<&Outcome>, most: usize) -> Result<Vec<Outcome>, Fault> {
        transact::outcomes(self.read(), after, limit(most))
    }
}
