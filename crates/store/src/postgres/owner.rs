//! The owner's view: taking shards, writing behind the fence, and reading what a shard needs to go on.

use std::any::Any;
use std::sync::Arc;

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Batch, Flush, LinePlace};
use abide_kernel::{RunId, Seq, ShardId, ShardMap, Timestamp};

use super::fault::Trouble;
use super::intake::PostgresIntake;
use super::link::{Live, Work};
use super::{Owned, PostgresReader, PostgresStore, import, kept, read, shard, token};
use crate::{
    Cluster, Counters, Due, Fault, FaultKind, Import, Intake, Kept, Opened, Reader, ReadyPage, Scanned, Store,
    StoredRun, StoredToken, Verdict,
};

impl PostgresStore {
    fn read<T: Send>(
        &mut self,
        doing: &str,
        what: impl AsyncFn(&mut Live) -> Result<T, Trouble> + Send + Sync,
    ) -> Result<T, Fault> {
        self.counts.read();
        self.link.run(doing, Work::Read, what)
    }
}

impl Store for PostgresStore {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        let count = self.map.count();
        if shard.0 >= count {
            let message = format!("the store has {count} shards, counted from 0; found shard {}", shard.0);
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        self.counts.write();
        let schema = self.settings.schema.clone();
        let taken = self.link.run("taking ownership of a shard", Work::Repeatable, async |live: &mut Live| {
            live.transaction("BEGIN", async |live| {
                import::check(live, &schema).await?;
                shard::take(live, shard, count, owner).await
            })
            .await
        })?;
        let shard::Taken { opened, node, last, noted } = taken;
        let consumed = (0u16..).zip(&opened.consumed).filter(|(_, number)| **number > 0);
        self.shards[usize::from(shard.0)] = Owned {
            node,
            epoch: opened.epoch,
            head: opened.head,
            last,
            last_at: opened.last_at,
            noted,
            watermark: opened.watermark,
            // What the owner before did not clear away is cleared away with the first flush.
            consumed: consumed.map(|(sender, number)| (sender, (0, *number as i64))).collect(),
        };
        Ok(opened)
    }

    fn cluster(&mut self) -> Option<&mut dyn Cluster> {
        Some(self)
    }

    fn intake(&self) -> Result<Option<Box<dyn Intake>>, Fault> {
        Ok(Some(Box::new(PostgresIntake::new(self.settings.clone())?)))
    }

    fn pool(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.transactions.clone())
    }

    fn append(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        self.append_group(group)
    }

    fn flush(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault> {
        self.flush_index(group)
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        self.read("reading the journal", async |live: &mut Live| read::scan(live, shard, after, most).await)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        let map = self.map;
        self.read("reading a run", async |live: &mut Live| read::read_run(live, map, run).await)
    }

    fn read_key(&mut self, identity: &str) -> Result<Option<RunId>, Fault> {
        self.read("looking up a key", async |live: &mut Live| read::read_key(live, identity).await)
    }

    fn read_due(&mut self, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Fault> {
        self.read("reading deadlines", async |live: &mut Live| read::read_due(live, shard, from, most).await)
    }

    fn read_claimed(&mut self, shard: ShardId) -> Result<Vec<RunId>, Fault> {
        self.read("reading held runs", async |live: &mut Live| read::read_claimed(live, shard).await)
    }

    fn read_lines(&mut self, shard: ShardId) -> Result<Vec<String>, Fault> {
        let doing = "reading the lines of waiting attempts";
        self.read(doing, async |live: &mut Live| read::read_lines(live, shard).await)
    }

    fn read_ready(
        &mut self,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        most: usize,
    ) -> Result<ReadyPage, Fault> {
        self.read("reading waiting attempts", async |live: &mut Live| {
            read::read_ready(live, shard, line, after, now, most).await
        })
    }

    fn read_envelopes(&mut self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
        self.read("reading envelopes", async |live: &mut Live| read::read_envelopes(live, to, most).await)
    }

    fn import(&mut self) -> &mut dyn Import {
        self
    }

    fn write_token(&mut self, token: &StoredToken) -> Result<(), Fault> {
        self.counts.write();
        let doing = "keeping a token";
        self.link.run(doing, Work::Repeatable, async |live: &mut Live| token::write(live, token).await)
    }

    fn remove_token(&mut self, id: &str) -> Result<bool, Fault> {
        self.counts.write();
        self.link.run("forgetting a token", Work::Once, async |live: &mut Live| token::remove(live, id).await)
    }

    fn keep(&mut self, all: &[Kept]) -> Result<(), Fault> {
        self.counts.write();
        let doing = "keeping what a server wrote down";
        self.link.run(doing, Work::Repeatable, async |live: &mut Live| kept::write(live, all).await)
    }

    fn forget(&mut self, kind: &str, id: &str) -> Result<bool, Fault> {
        self.counts.write();
        let doing = "forgetting what a server wrote down";
        self.link.run(doing, Work::Once, async |live: &mut Live| kept::remove(live, kind, id).await)
    }

    fn forget_below(&mut self, kind: &str, id: &str, most: usize) -> Result<u64, Fault> {
        self.counts.write();
        let doing = "forgetting what a server wrote down";
        self.link.run(doing, Work::Once, async |live: &mut Live| kept::remove_below(live, kind, id, most).await)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, Fault> {
        Ok(Box::new(PostgresReader::open(self.settings.clone(), self.counts.clone())?))
    }

    fn counters(&self) -> Counters {
        self.counts.snapshot()
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.shards.fill(Owned::default());
        self.link.close();
        Ok(())
    }
}
