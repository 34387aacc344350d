//! The owner's view: taking shards, writing behind the fence, and reading what a shard needs to go on.

use std::time::Duration;

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Batch, Flush, LinePlace};
use abide_kernel::{RunId, Seq, ShardEpoch, ShardId, ShardMap, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior, params};

use super::fault::{commit_fault, fault};
use super::shard::{ShardRow, end_of_log};
use super::{Owned, SqliteReader, SqliteStore, kept, letter, read, token};
use crate::transaction::{Place, Transacted, Work};
use crate::{
    Counters, Due, Fault, FaultKind, Import, Kept, Opened, Reader, ReadyPage, Scanned, Serving, Store, StoredRun,
    StoredToken, Verdict,
};

/// How long closing waits for readers: the next one to open the file can do what is left.
const CLOSING: Duration = Duration::from_secs(1);

impl SqliteStore {
    fn read(&self) -> &Connection {
        self.counts.read();
        &self.connection
    }

    pub(super) fn check_going(&self) -> Result<(), Fault> {
        if let Some(why) = &self.stopped {
            let message = format!(
                "a write to {} failed before, and what is on the disk is not known: it is not written to again; open it anew ({why})",
                self.path.display()
            );
            return Err(Fault::new(FaultKind::Fatal, message));
        }
        if self.lock.is_none() {
            let message = format!("{} was closed, and another may have it now; open it anew", self.path.display());
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        Ok(())
    }

    /// After a fatal fault nothing is written or synced through this connection, not even when it closes.
    pub(super) fn heed<T>(&mut self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &answer
            && fault.kind == FaultKind::Fatal
        {
            self.stopped = Some(fault.message.clone());
        }
        answer
    }

    /// What was committed is durable, and stays so when the log cannot be brought into the file: its caller hears that
    /// it is, and the next one that nothing is written any more.
    fn heed_commit<T>(&mut self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if answer.is_ok()
            && let Err(fault) = self.checkpoint()
        {
            let _ = self.heed::<()>(Err(fault));
        }
        self.heed(answer)
    }

    fn take_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        let doing = |error| fault("taking ownership of a shard", error);
        // A statement that returns rows commits when it is reset, where its failure would not be seen: so this is
        // a transaction of its own.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing)?;
        let mut kept = ShardRow::read(&transaction, shard)?;
        let (head, at, last) = end_of_log(&transaction, shard)?;
        kept.check_log(&transaction, head)?;
        kept.epoch = ShardEpoch(kept.epoch.0 + 1);
        owner.clone_into(&mut kept.owner);
        (kept.head, kept.last) = (head, last);
        kept.write(&transaction).map_err(doing)?;
        transaction.commit().map_err(|error| commit_fault("taking ownership of a shard", error))?;
        let (sent, consumed) = self.numbers(shard)?;
        let last_at = Timestamp(at);
        let opened = Opened { epoch: kept.epoch, head, watermark: kept.watermark, sent, consumed, last_at };
        self.shards[usize::from(shard.0)] = Owned { owner: owner.to_owned(), epoch: opened.epoch, head, last, last_at };
        Ok(opened)
    }

    /// The last envelope sent to each shard, and the last one consumed from each.
    fn numbers(&self, shard: ShardId) -> Result<(Vec<u64>, Vec<u64>), Fault> {
        let doing = |error| fault("reading envelope numbers", error);
        let mut sent = vec![0; usize::from(self.map.count())];
        let mut consumed = sent.clone();
        let raise = |numbers: &mut Vec<u64>, other: u16, number: i64| {
            if let Some(slot) = numbers.get_mut(usize::from(other)) {
                *slot = (*slot).max(number as u64);
            }
        };
        let mut statement = self
            .connection
            .prepare_cached("SELECT receiver, max(number) FROM envelope WHERE sender = ?1 GROUP BY receiver")
            .map_err(doing)?;
        let rows = statement.query_map([shard.0], |row| Ok((row.get(0)?, row.get(1)?))).map_err(doing)?;
        for row in rows {
            let (receiver, number) = row.map_err(doing)?;
            raise(&mut sent, receiver, number);
        }
        for (receiver, sender, number) in letter::cursors(&self.connection, shard)? {
            if sender == shard.0 {
                raise(&mut sent, receiver, number);
            }
            if receiver == shard.0 {
                raise(&mut consumed, sender, number);
            }
        }
        Ok((sent, consumed))
    }

    /// Notes where the logs end that this process has written to, so that rows which vanish are missed.
    fn note_ends(&mut self) -> Result<(), Fault> {
        let doing = |error| fault("noting where the journal ends", error);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing)?;
        let mut changed = false;
        for (shard, owned) in self.map.all().zip(&self.shards).filter(|(_, owned)| owned.epoch.0 > 0) {
            let mut kept = ShardRow::read(&transaction, shard)?;
            if kept.epoch == owned.epoch && kept.head != owned.head {
                (kept.head, kept.last) = (owned.head, owned.last);
                kept.write(&transaction).map_err(doing)?;
                changed = true;
            }
        }
        if changed {
            transaction.commit().map_err(|error| commit_fault("noting where the journal ends", error))?;
        }
        Ok(())
    }
}

impl Store for SqliteStore {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        self.check_going()?;
        self.counts.write();
        let owned = self.shards.get(usize::from(shard.0));
        if owned.is_none() {
            let count = self.map.count();
            let message = format!("the store has {count} shards, counted from 0; found shard {}", shard.0);
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        let opened = self.take_shard(shard, owner);
        self.heed(opened)
    }

    fn transact(&mut self, place: &Place, limit: Duration, work: Work<'_>) -> Result<Transacted, Fault> {
        self.check_going()?;
        let transacted = self.transact_here(place, limit, work);
        self.heed_commit(transacted)
    }

    fn append(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        self.check_going()?;
        let verdicts = self.append_group(group);
        self.heed_commit(verdicts)
    }

    fn flush(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault> {
        self.check_going()?;
        let verdicts = self.flush_index(group);
        self.heed_commit(verdicts)
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        read::scan(self.read(), shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        read::read_run(self.read(), self.map, run)
    }

    fn read_key(&mut self, identity: &str) -> Result<Option<RunId>, Fault> {
        read::read_key(self.read(), identity)
    }

    fn read_due(&mut self, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault> {
        read::read_due(self.read(), shard, from, most)
    }

    fn read_claimed(&mut self, shard: ShardId) -> Result<Vec<RunId>, Fault> {
        read::read_ids(self.read(), read::CLAIMED, params![shard.0])
    }

    fn read_lines(&mut self, shard: ShardId) -> Result<Vec<String>, Fault> {
        read::read_lines(self.read(), shard)
    }

    fn read_ready(
        &mut self,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        most: usize,
    ) -> Result<ReadyPage, Fault> {
        read::read_ready(self.read(), shard, line, after, now, most)
    }

    fn read_envelopes(&mut self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
        read::read_envelopes(self.read(), to, most)
    }

    fn write_token(&mut self, token: &StoredToken) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let written = token::write(&self.connection, token);
        self.heed_commit(written)
    }

    fn remove_token(&mut self, id: &str) -> Result<bool, Fault> {
        self.check_going()?;
        self.counts.write();
        let removed = token::remove(&self.connection, id);
        self.heed_commit(removed)
    }

    fn keep(&mut self, all: &[Kept]) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let written = kept::write(&mut self.connection, all);
        self.heed_commit(written)
    }

    fn forget(&mut self, kind: &str, id: &str) -> Result<bool, Fault> {
        self.check_going()?;
        self.counts.write();
        let removed = kept::remove(&self.connection, kind, id);
        self.heed_commit(removed)
    }

    fn forget_below(&mut self, kind: &str, id: &str, most: usize) -> Result<u64, Fault> {
        self.check_going()?;
        self.counts.write();
        let removed = kept::remove_below(&self.connection, kind, id, most);
        self.heed_commit(removed)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, Fault> {
        Ok(Box::new(SqliteReader::open(&self.path, self.counts.clone())?))
    }

    fn counters(&self) -> Counters {
        self.counts.snapshot()
    }

    fn import(&mut self) -> &mut dyn Import {
        self
    }

    fn announce(&mut self, serving: &Serving) -> Result<(), Fault> {
        self.lock.as_mut().map_or(Ok(()), |lock| lock.announce(serving))
    }

    fn close(&mut self) -> Result<(), Fault> {
        let settled = if self.stopped.is_some() || self.lock.is_none() {
            Ok(())
        } else {
            // Should it fail, the ends that were noted before stand, which are true as well.
            let noted = self.note_ends();
            let _ = self.heed(noted);
            // A reader that pins the log keeps it from being emptied; whoever opens the store next does it then. When
            // all is in order, the log may go as the connection does.
            let emptied = self
                .connection
                .busy_timeout(CLOSING)
                .and_then(|()| self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
                .and_then(|()| self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false))
                .map(drop)
                .map_err(|error| fault("closing the store", error));
            self.heed(emptied)
        };
        // Somebody may still hold on to this object; the file is free for others all the same.
        self.lock = None;
        settled
    }
}
