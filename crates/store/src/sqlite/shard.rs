//! A shard's own row: who owns it, how far index rows go, and where its log ended when that was last written, so that
//! rows that vanish from the end are missed.

use abide_kernel::{Seq, ShardEpoch, ShardId};
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::fault;
use super::position;
use crate::sum::Sum;
use crate::{Fault, journal};

/// What is kept of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardRow {
    pub(super) shard: ShardId,
    pub(super) epoch: ShardEpoch,
    pub(super) owner: String,
    /// The last position of the log when index rows were last written, or the store was closed.
    pub(super) head: Seq,
    /// The checksum of the row there.
    pub(super) last: i64,
    /// Index rows are complete up to here.
    pub(super) watermark: Seq,
}

impl ShardRow {
    /// A shard that nobody has owned.
    pub(super) fn new(shard: ShardId) -> Self {
        let (epoch, owner) = (ShardEpoch(0), String::new());
        Self { shard, epoch, owner, head: Seq(0), last: 0, watermark: Seq(0) }
    }

    pub(super) fn read(connection: &Connection, shard: ShardId) -> Result<Self, Fault> {
        let damaged =
            |what: &str| Fault::corrupt(None, None, format!("the row of shard {} is damaged: {what}", shard.0));
        let found = connection
            .prepare_cached("SELECT epoch, owner, head, last, checksum, watermark, mark FROM shard WHERE id = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([shard.0], |row| {
                        let number = |column: usize| row.get::<_, i64>(column);
                        let (epoch, head, watermark) = (number(0)? as u64, number(2)? as u64, number(5)? as u64);
                        let (epoch, head, watermark) = (ShardEpoch(epoch), Seq(head), Seq(watermark));
                        let kept = Self { shard, epoch, owner: row.get(1)?, head, last: number(3)?, watermark };
                        Ok((kept, number(4)?, number(6)?))
                    })
                    .optional()
            })
            .map_err(|error| fault(&format!("reading the row of shard {}", shard.0), error))?;
        let (kept, checksum, mark) = found.ok_or_else(|| damaged("it is missing"))?;
        if kept.sum() != checksum {
            return Err(damaged("its checksum does not match"));
        }
        // Nought is believed without a mark: nothing is taken from index rows then, and deleting them stays safe.
        if kept.watermark.0 != 0 && kept.mark() != mark {
            return Err(damaged("its watermark is not what was written"));
        }
        Ok(kept)
    }

    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO shard (id, epoch, owner, head, last, checksum, watermark, mark)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                self.shard.0,
                self.epoch.0 as i64,
                self.owner,
                self.head.0 as i64,
                self.last,
                self.sum(),
                self.watermark.0 as i64,
                self.mark(),
            ])?;
        Ok(())
    }

    /// Whether the log still goes as far as it once did, and has the row there that it had. `end` is where it ends.
    pub(super) fn check_log(&self, connection: &Connection, end: Seq) -> Result<(), Fault> {
        journal::check_end(self.shard, end, self.watermark)?;
        journal::check_end(self.shard, end, self.head)?;
        if self.head.0 == 0 {
            return Ok(());
        }
        let found: Option<i64> = connection
            .prepare_cached("SELECT checksum FROM journal WHERE position = ?1")
            .and_then(|mut statement| {
                statement.query_row([position(self.shard, self.head)], |row| row.get(0)).optional()
            })
            .map_err(|error| fault("reading the end of the journal", error))?;
        journal::check_last(self.shard, self.head, found == Some(self.last))
    }

    fn sum(&self) -> i64 {
        Sum::of("shard")
            .number(i64::from(self.shard.0))
            .number(self.epoch.0 as i64)
            .text(Some(&self.owner))
            .number(self.head.0 as i64)
            .number(self.last)
            .end()
    }

    fn mark(&self) -> i64 {
        journal::mark(self.shard, self.watermark)
    }
}

/// Where a shard's log ends: position, instant and checksum of its last row.
pub(super) fn end_of_log(connection: &Connection, shard: ShardId) -> Result<(Seq, i64, i64), Fault> {
    let last = connection
        .prepare_cached(
            "SELECT position, at, checksum FROM journal WHERE position > ?1 AND position < ?2 ORDER BY position DESC LIMIT 1",
        )
        .and_then(|mut statement| {
            let within = params![position(shard, Seq(0)), super::end_of(shard)];
            statement.query_row(within, |row| Ok((super::seq_of(row.get(0)?), row.get(1)?, row.get(2)?))).optional()
        })
        .map_err(|error| fault("reading the end of the journal", error))?;
    Ok(last.unwrap_or((Seq(0), 0, 0)))
}
