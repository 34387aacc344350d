//! The read-only view, and the store's own reads.

use std::path::Path;
use std::sync::Arc;

use abide_kernel::envelope::{DeadEnvelope, Envelope};
use abide_kernel::shard::{Batch, Flush};
use abide_kernel::{Row, RunId, Seq, ShardEpoch, ShardId, ShardMap, Status, Timestamp};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::read::{self, RawRow};
use super::{Counts, Owned, SqliteStore, fault, position, schema, seq_of};
use crate::{
    Counters, DeadLetterItem, Due, Fault, FaultKind, Filter, Listed, Opened, Page, Reader, ReadyPage,
    Scanned, Stats, Store, StoredRun, Verdict,
};

/// A view of a SQLite store that never writes.
#[derive(Debug)]
pub struct SqliteReader {
    connection: Connection,
    map: ShardMap,
    counts: Arc<Counts>,
}

impl SqliteReader {
    pub(super) fn open(path: &Path, counts: Arc<Counts>) -> Result<Self, Fault> {
        let doing = |error| fault(&format!("opening {} to read", path.display()), error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(doing)?;
        connection
            .busy_timeout(std::time::Duration::from_secs(10))
            .map_err(doing)?;
        let format = schema::format(&connection)?;
        if format > schema::FORMAT {
            return Err(schema::newer(format));
        }
        if format == 0 {
            let message = format!("{} is not an Abide store, or an empty one", path.display());
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        let map = ShardMap::new(schema::shards(&connection)?);
        Ok(Self {
            connection,
            map,
            counts,
        })
    }

    fn read(&self) -> &Connection {
        self.counts.read();
        &self.connection
    }
}

impl Reader for SqliteReader {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn watermarks(&mut self) -> Result<Vec<(ShardId, Seq)>, Fault> {
        let doing = |error| fault("reading the shards", error);
        let mut statement = self
            .read()
            .prepare_cached("SELECT id, watermark FROM shard ORDER BY id")
            .map_err(doing)?;
        let rows = statement
            .query_map([], |row| {
                Ok((ShardId(row.get(0)?), Seq(row.get::<_, i64>(1)? as u64)))
            })
            .map_err(doing)?;
        rows.collect::<rusqlite::Result<_>>().map_err(doing)
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        read::scan(self.read(), shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        read::read_run(self.read(), run)
    }

    fn journal(&mut self, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault> {
        let doing = |error| fault("reading a run's journal", error);
        let shard = self.map.home(run.slot());
        let sql = format!("SELECT {} FROM journal WHERE position = ?1", read::ROW_COLUMNS);
        let mut statement = self.read().prepare_cached(&sql).map_err(doing)?;
        let mut rows = Vec::new();
        let mut next = head;
        while next.0 != 0 {
            let found = statement
                .query_row([position(shard, next)], RawRow::read)
                .optional()
                .map_err(doing)?;
            let missing = || {
                let kind = FaultKind::Corrupt {
                    run: Some(run),
                    position: Some((shard, next)),
                };
                Fault::new(
                    kind,
                    format!(
                        "journal row {} of shard {}, which belongs to {run}, is missing",
                        next.0, shard.0
                    ),
                )
            };
            let row = found.ok_or_else(missing)?.decode()?;
            next = if row.rev.0 <= from { Seq(0) } else { row.prior };
            if row.rev.0 >= from {
                rows.push(row);
            }
        }
        rows.reverse();
        Ok(rows)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        list(self.read(), filter, page)
    }

    fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault> {
        let doing = |error| fault("reading dead letters", error);
        let mut statement = self
            .read()
            .prepare_cached("SELECT id, at, node, reason, body FROM dead_letter ORDER BY id")
            .map_err(doing)?;
        let rows = statement
            .query_map([], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, String>(2)?,
                    row.get::<_, String>(3)?,
                    row.get::<_, String>(4)?,
                ))
            })
            .map_err(doing)?;
        let mut items = Vec::new();
        for row in rows {
            let (id, at, node, reason, body) = row.map_err(doing)?;
            let envelope: Envelope = serde_json::from_str(&body).map_err(|error| {
                Fault::new(
                    FaultKind::Corrupt {
                        run: None,
                        position: None,
                    },
                    format!("dead letter {id} does not decode: {error}"),
                )
            })?;
            items.push(DeadLetterItem {
                id: id as u64,
                at: Timestamp(at),
                node,
                dead: DeadEnvelope {
                    envelope,
                    reason: reason.into(),
                },
            });
        }
        Ok(items)
    }

    fn stats(&mut self) -> Result<Stats, Fault> {
        let doing = |error| fault("counting", error);
        let connection = self.read();
        let count = |sql: &str| {
            connection
                .query_row(sql, [], |row| row.get::<_, i64>(0))
                .map(|count| count as u64)
        };
        let mut statement = connection
            .prepare_cached(
                "SELECT status, count(*) FROM run WHERE reservation = 0 GROUP BY status ORDER BY status",
            )
            .map_err(doing)?;
        let runs = statement
            .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
            .map_err(doing)?;
        Ok(Stats {
            runs: runs.collect::<rusqlite::Result<_>>().map_err(doing)?,
            journal_rows: count("SELECT count(*) FROM journal").map_err(doing)?,
            envelopes: count("SELECT count(*) FROM envelope").map_err(doing)?,
            bytes: count("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
                .map_err(doing)?,
            format: schema::format(connection)?,
        })
    }

    fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault> {
        let digits: String = prefix.chars().take(32).collect();
        let low = u128::from_str_radix(&format!("{digits:0<32}"), 16);
        let high = u128::from_str_radix(&format!("{digits:f<32}"), 16);
        let (Ok(low), Ok(high)) = (low, high) else {
            return Ok(Vec::new());
        };
        let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
        let sql = "SELECT id FROM run WHERE id BETWEEN ?1 AND ?2 AND reservation = 0 ORDER BY id LIMIT ?3";
        read::read_ids(
            self.read(),
            sql,
            params![low.as_slice(), high.as_slice(), most as i64],
        )
    }
}

fn list(connection: &Connection, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
    let doing = |error| fault("listing runs", error);
    let mut sql = String::from(
        "SELECT id, namespace, workflow, version, queue, status, step, key, parent, created_at, updated_at, due, rev
         FROM run WHERE reservation = 0",
    );
    let mut with: Vec<Box<dyn rusqlite::ToSql>> = Vec::new();
    let texts = [
        ("namespace", &filter.namespace),
        ("workflow", &filter.workflow),
        ("queue", &filter.queue),
        ("key", &filter.key),
    ];
    for (column, value) in texts {
        if let Some(value) = value {
            with.push(Box::new(value.to_string()));
            sql.push_str(&format!(" AND {column} = ?{}", with.len()));
        }
    }
    for (condition, id) in [("parent = ", filter.parent), ("id < ", page.before)] {
        if let Some(id) = id {
            with.push(Box::new(id.0.to_be_bytes().to_vec()));
            sql.push_str(&format!(" AND {condition}?{}", with.len()));
        }
    }
    if !filter.statuses.is_empty() {
        let words: Vec<String> = filter
            .statuses
            .iter()
            .map(|status| format!("'{}'", status.name()))
            .collect();
        sql.push_str(&format!(" AND status IN ({})", words.join(",")));
    }
    with.push(Box::new(page.most as i64));
    sql.push_str(&format!(" ORDER BY id DESC LIMIT ?{}", with.len()));
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    let rows = statement
        .query_map(rusqlite::params_from_iter(with.iter()), listed)
        .map_err(doing)?;
    rows.collect::<rusqlite::Result<_>>().map_err(doing)
}

fn listed(row: &rusqlite::Row<'_>) -> rusqlite::Result<Listed> {
    let id = |bytes: Option<Vec<u8>>| bytes.as_deref().and_then(read::run_id);
    let status: String = row.get(5)?;
    Ok(Listed {
        run: id(row.get(0)?).unwrap_or(RunId(0)),
        namespace: row.get::<_, String>(1)?.into(),
        workflow: row.get::<_, String>(2)?.into(),
        version: row.get(3)?,
        queue: row.get::<_, String>(4)?.into(),
        status: status.parse().unwrap_or(Status::Runnable),
        step: row.get::<_, Option<String>>(6)?.map(Into::into),
        key: row.get::<_, Option<String>>(7)?.map(Into::into),
        parent: id(row.get(8)?),
        created_at: Timestamp(row.get(9)?),
        updated_at: Timestamp(row.get(10)?),
        due: row.get::<_, Option<i64>>(11)?.map(Timestamp),
        rev: row.get::<_, i64>(12)? as u64,
    })
}

impl SqliteStore {
    fn read(&self) -> &Connection {
        self.counts().read();
        &self.connection
    }

    fn numbers(&self, sql: &str, shard: ShardId) -> Result<Vec<u64>, Fault> {
        let doing = |error| fault("reading envelope numbers", error);
        let mut numbers = vec![0; usize::from(self.map.count())];
        let mut statement = self.connection.prepare_cached(sql).map_err(doing)?;
        let rows = statement
            .query_map([shard.0], |row| {
                Ok((row.get::<_, u16>(0)?, row.get::<_, i64>(1)?))
            })
            .map_err(doing)?;
        for row in rows {
            let (other, number) = row.map_err(doing)?;
            if let Some(slot) = numbers.get_mut(usize::from(other)) {
                *slot = number as u64;
            }
        }
        Ok(numbers)
    }
}

impl Store for SqliteStore {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        let doing = |error| fault("taking ownership of a shard", error);
        self.counts.write();
        let (epoch, watermark): (i64, i64) = self
            .connection
            .query_row(
                "INSERT INTO shard (id, epoch, owner, watermark) VALUES (?1, 1, ?2, 0)
                 ON CONFLICT (id) DO UPDATE SET epoch = epoch + 1, owner = excluded.owner RETURNING epoch, watermark",
                params![shard.0, owner],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(doing)?;
        let (from, to) = (position(shard, Seq(0)), position(ShardId(shard.0 + 1), Seq(0)));
        let last: Option<(i64, i64)> = self
            .connection
            .query_row(
                "SELECT position, at FROM journal WHERE position > ?1 AND position < ?2 ORDER BY position DESC LIMIT 1",
                params![from, to],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .map_err(doing)?;
        let head = last.map_or(Seq(0), |(position, _)| seq_of(position));
        let sent = self.numbers(
            "SELECT receiver, max(number) FROM (
                 SELECT receiver, number FROM envelope WHERE sender = ?1
                 UNION ALL SELECT receiver, number FROM envelope_cursor WHERE sender = ?1) GROUP BY receiver",
            shard,
        )?;
        let consumed = self.numbers(
            "SELECT sender, number FROM envelope_cursor WHERE receiver = ?1",
            shard,
        )?;
        self.shards[usize::from(shard.0)] = Owned {
            epoch: epoch as u64,
            head: head.0,
        };
        let last_at = Timestamp(last.map_or(0, |(_, at)| at));
        Ok(Opened {
            epoch: ShardEpoch(epoch as u64),
            head,
            watermark: Seq(watermark as u64).min(head),
            sent,
            consumed,
            last_at,
        })
    }

    fn append(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        self.append_group(group)
    }

    fn flush(&mut self, flush: &Flush) -> Result<Verdict, Fault> {
        self.flush_index(flush)
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        read::scan(self.read(), shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        read::read_run(self.read(), run)
    }

    fn read_key(&mut self, identity: &str) -> Result<Option<RunId>, Fault> {
        read::read_key(self.read(), identity)
    }

    fn read_due(&mut self, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault> {
        read::read_due(self.read(), shard, from, most)
    }

    fn read_claimed(&mut self, shard: ShardId) -> Result<Vec<RunId>, Fault> {
        let sql = "SELECT id FROM run WHERE status = 'executing' AND shard = ?1 ORDER BY id";
        read::read_ids(self.read(), sql, params![shard.0])
    }

    fn read_ready(&mut self, shard: ShardId, now: Timestamp, most: usize) -> Result<ReadyPage, Fault> {
        read::read_ready(self.read(), shard, now, most)
    }

    fn read_envelopes(&mut self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
        let doing = |error| fault("reading envelopes", error);
        let mut statement = self
            .read()
            .prepare_cached(
                "SELECT body FROM envelope e WHERE receiver = ?1 AND number > coalesce(
                     (SELECT c.number FROM envelope_cursor c WHERE c.receiver = e.receiver AND c.sender = e.sender), 0)
                 ORDER BY sender, number LIMIT ?2",
            )
            .map_err(doing)?;
        let rows = statement
            .query_map(params![to.0, most as i64], |row| row.get::<_, String>(0))
            .map_err(doing)?;
        let mut envelopes = Vec::new();
        for row in rows {
            let body = row.map_err(doing)?;
            let envelope = serde_json::from_str(&body).map_err(|error| {
                Fault::new(
                    FaultKind::Corrupt {
                        run: None,
                        position: None,
                    },
                    format!("an envelope does not decode: {error}"),
                )
            })?;
            envelopes.push(envelope);
        }
        Ok(envelopes)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, Fault> {
        Ok(Box::new(SqliteReader::open(&self.path, self.counts.clone())?))
    }

    fn counters(&self) -> Counters {
        self.counts.snapshot()
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(|error| fault("closing the store", error))
    }
}
