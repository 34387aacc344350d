//! Inspection of a store in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use abide_kernel::{Row, RunId, Seq, ShardId, ShardMap, Status, Timestamp};

use super::lock;
use super::state::State;
use crate::counts::Counts;
use crate::listing::prefix_range;
use crate::{
    DeadLetterItem, Depth, Fault, Filter, Kept, Listed, Membership, Opener, Page, Reader, Scanned, Stats, StoredRun,
    StoredToken,
};

/// A view of a store in memory that never writes.
#[derive(Debug)]
pub struct MemoryReader {
    map: ShardMap,
    state: Arc<Mutex<State>>,
    counts: Arc<Counts>,
    /// The store's own clock, if nodes share the store.
    clock: Option<Arc<AtomicI64>>,
}

impl MemoryReader {
    pub(super) fn new(
        map: ShardMap,
        state: Arc<Mutex<State>>,
        counts: Arc<Counts>,
        clock: Option<Arc<AtomicI64>>,
    ) -> Self {
        Self { map, state, counts, clock }
    }

    fn read(&self) -> MutexGuard<'_, State> {
        self.counts.read();
        lock(&self.state)
    }
}

impl Reader for MemoryReader {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn opener(&self) -> Opener {
        let (map, state, counts, clock) = (self.map, self.state.clone(), self.counts.clone(), self.clock.clone());
        Arc::new(move || Ok(Box::new(Self::new(map, state.clone(), counts.clone(), clock.clone()))))
    }

    fn watermarks(&mut self) -> Result<Vec<(ShardId, Seq)>, Fault> {
        let state = self.read();
        Ok(self.map.all().zip(state.shards.iter().map(|shard| shard.watermark)).collect())
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        self.read().scan(shard, after, most)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        self.read().read_run(run)
    }

    fn journal(&mut self, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        self.read().journal(shard, run, head, from)
    }

    fn trail(&mut self, run: RunId, head: Seq, from: u64, most: usize) -> Result<Vec<Seq>, Fault> {
        let shard = self.map.home(run.slot());
        self.read().trail(shard, run, head, from, most)
    }

    fn rows(&mut self, run: RunId, places: &[Seq], bytes: usize) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        self.read().rows(shard, run, places, bytes)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        let state = self.read();
        let newest_first = state.runs.values().rev().map(|found| &found.record);
        Ok(newest_first
            .filter(|record| !record.reservation && page.before.is_none_or(|before| record.run < before))
            .map(Listed::from)
            .filter(|listed| filter.matches(listed))
            .take(page.most)
            .collect())
    }

    fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault> {
        Ok(self.read().dead.clone())
    }

    fn stats(&mut self) -> Result<Stats, Fault> {
        let state = self.read();
        let rows = || state.shards.iter().flat_map(|shard| &shard.rows);
        let records = || state.runs.values().map(|found| &found.record);
        let mut runs: BTreeMap<&str, u64> = BTreeMap::new();
        for record in records().filter(|record| !record.reservation) {
            *runs.entry(record.status.name()).or_default() += 1;
        }
        let facts: usize = rows().map(|row| row.facts.len()).sum();
        let checkpoints: usize = records().map(|record| record.checkpoint.len()).sum();
        Ok(Stats {
            journal_rows: rows().count() as u64,
            runs: runs.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            envelopes: self.map.all().map(|to| state.unconsumed(to).count() as u64).sum(),
            bytes: (facts + checkpoints) as u64,
            format: 0,
        })
    }

    fn kept(&mut self, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault> {
        let state = self.read();
        let found =
            state.kept.iter().rev().filter(|((of, id), _)| of == kind && before.is_none_or(|before| **id < *before));
        let kept = |((kind, id), body): (&(String, String), &String)| Kept {
            kind: kind.clone(),
            id: id.clone(),
            body: body.clone(),
        };
        Ok(found.map(kept).take(most).collect())
    }

    fn kept_as(&mut self, kind: &str, id: &str) -> Result<Option<Kept>, Fault> {
        let (kind, id) = (kind.to_owned(), id.to_owned());
        let place = (kind.clone(), id.clone());
        let found = self.read().kept.get(&place).cloned();
        Ok(found.map(|body| Kept { kind, id, body }))
    }

    fn bytes(&mut self) -> Result<u64, Fault> {
        Ok(self.stats()?.bytes)
    }

    fn depths(&mut self, namespace: Option<&str>) -> Result<Vec<Depth>, Fault> {
        let state = self.read();
        let mut depths: BTreeMap<String, Depth> = BTreeMap::new();
        let open = [Status::Runnable, Status::Executing];
        let records = state.runs.values().map(|found| &found.record).filter(|record| !record.reservation);
        let theirs = |of: &str| namespace.is_none_or(|namespace| of == namespace);
        for record in records.filter(|record| theirs(&record.namespace) && open.contains(&record.status)) {
            let queue = record.queue.to_string();
            let none = || Depth { queue: queue.clone(), waiting: 0, oldest: None, running: 0 };
            let depth = depths.entry(queue.clone()).or_insert_with(none);
            depth.running += u64::from(record.status == Status::Executing);
            if let Some((_, place)) = &record.ready {
                depth.waiting += 1;
                depth.oldest = depth.oldest.into_iter().chain([place.eligible_at]).min();
            }
        }
        Ok(depths.into_values().collect())
    }

    fn tokens(&mut self) -> Result<Vec<StoredToken>, Fault> {
        let token = |(id, body): (&String, &String)| StoredToken { id: id.clone(), body: body.clone() };
        Ok(self.read().tokens.iter().map(token).collect())
    }

    fn token(&mut self, id: &str) -> Result<Option<StoredToken>, Fault> {
        let found = self.read().tokens.get(id).cloned();
        Ok(found.map(|body| StoredToken { id: id.to_owned(), body }))
    }

    fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault> {
        let Some(range) = prefix_range(prefix) else {
            return Ok(Vec::new());
        };
        let state = self.read();
        let found = state.runs.range(range).map(|(_, found)| &found.record);
        Ok(found.filter(|record| !record.reservation).map(|record| record.run).take(most).collect())
    }

    fn membership(&mut self) -> Result<Option<Membership>, Fault> {
        let now = self.clock.as_ref().map(|clock| Timestamp(clock.load(Ordering::Acquire)));
        Ok(now.map(|now| self.read().membership(now)))
    }
}
