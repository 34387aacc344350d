//! Recovery: shards are opened from their index rows and the log after them. Without index rows the log alone is
//! enough, and takes longer.

use abide_kernel::shard::{Config as ShardConfig, Worker};
use abide_kernel::{Claimant, Row, RunId, Seq, Shard, ShardId, Timestamp, limits};
use abide_store::{Fault, FaultKind, Filter, Page, Store};

use crate::core::{Core, PoolState};
use crate::driver::Shared;
use crate::points;

/// Rows read at a time, and runs folded before their index rows are written, so that memory stays bounded.
const PAGE_ROWS: usize = 10_000;
const FOLDED_RUNS_MAX: usize = 50_000;

impl Shared {
    /// Opens every shard, dropping what was in memory. Whoever waited for an answer is told to retry.
    pub(crate) fn open_shards(&self, store: &mut dyn Store, core: &mut Core) -> Result<(), Fault> {
        for shard in core.shards.drain(..) {
            for ticket in shard.abandon() {
                if let Some(waiter) = core.waiters.remove(&ticket) {
                    let _ = waiter.send(abide_kernel::shard::Answer::Refused(abide_kernel::Refusal::Unknown));
                }
            }
        }
        core.throttle.forget_running();
        core.pools = self
            .pools
            .iter()
            .enumerate()
            .map(|(pool, config)| {
                let running = core.executing.values().filter(|executing| executing.pool == pool).count();
                PoolState { capacity: config.concurrency.max(running), running, workers: Vec::new() }
            })
            .collect();
        // Ids are made by clients, whose clocks may be ahead of ours: one up to the newest known may have been used.
        let newest = match self.reader.lock().list(&Filter::default(), &Page { most: 1, before: None }) {
            Err(fault) if !matches!(fault.kind, FaultKind::Corrupt { .. }) => return Err(fault),
            listed => listed.unwrap_or_default(),
        };
        for id in core.map.all() {
            let mut shard = self.open_shard(store, id)?;
            newest.iter().for_each(|newest| shard.newest_run(newest.run));
            for (pool, config) in self.pools.iter().enumerate() {
                let worker = shard.join(self.worker(&config.queue));
                core.pools[pool].workers.push(worker);
            }
            core.shards.push(shard);
        }
        for id in core.map.all() {
            for envelope in store.read_envelopes(id, usize::MAX / 2)? {
                core.shards[usize::from(id.0)].receive(self.now(), envelope);
            }
        }
        core.fill(self.now());
        points::reach("opened");
        self.bell.ring();
        Ok(())
    }

    fn worker(&self, queue: &str) -> Worker {
        let claimant = Claimant {
            owner: self.node.clone(),
            token: self.token,
            lease_ms: self.lease.as_millis() as u64,
            process: Some(self.process.clone()),
        };
        Worker::new(claimant, vec![queue.into()], self.programs.definitions.clone())
    }

    fn open_shard(&self, store: &mut dyn Store, id: ShardId) -> Result<Shard, Fault> {
        let opened = store.open_shard(id, &self.node)?;
        points::reach("shard-opened");
        let now = self.now().max(opened.last_at);
        let config = ShardConfig {
            id,
            map: store.map(),
            epoch: opened.epoch,
            node: self.node.clone(),
            process: self.process.clone(),
            head: opened.head,
            sent: opened.sent,
            consumed: opened.consumed,
            notify: self.notifier.is_some(),
            rules: self.limits.clone(),
            definition_wait_ms: u64::try_from(self.definition_wait.as_millis()).unwrap_or(u64::MAX),
        };
        let mut shard = Shard::new(config, now);
        self.fold_tail(store, &mut shard, opened.watermark)?;
        for run in store.read_claimed(id)? {
            self.adopt(store, &mut shard, run)?;
        }
        // All of them: the picker must not pass a run that waits outside memory.
        for run in store.read_ready(id, now, usize::MAX)?.runs {
            self.adopt(store, &mut shard, run)?;
        }
        let due = store.read_due(id, Timestamp(i64::MIN), limits::DUE_WINDOW_MAX)?;
        shard.loaded_due(now, &due.entries, due.more_from);
        shard.replayed(now);
        for run in shard.claimed_runs() {
            shard.end_lost_claims(run);
        }
        Ok(shard)
    }

    /// Folds the log after the watermark. A row that is damaged sets its run aside; the others go on.
    fn fold_tail(&self, store: &mut dyn Store, shard: &mut Shard, watermark: Seq) -> Result<(), Fault> {
        let mut after = watermark;
        loop {
            let rows = store.scan(shard.id(), after, PAGE_ROWS)?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                after = match row {
                    Ok(row) => self.fold_row(store, shard, &row)?,
                    Err(fault) => self.fold_damage(shard, fault)?,
                };
            }
            if shard.behind() >= FOLDED_RUNS_MAX
                && let Some(mut flush) = shard.flush()
            {
                flush.through = after;
                store.flush(&flush)?;
                shard.flushed();
            }
        }
    }

    /// Folds one row into its run, and gives the row's position.
    fn fold_row(&self, store: &mut dyn Store, shard: &mut Shard, row: &Row) -> Result<Seq, Fault> {
        // A row without facts was emptied when its run was purged.
        if row.facts.is_empty() || self.is_damaged(row.run) {
            return Ok(row.seq);
        }
        if row.rev.0 > 1 && !shard.is_resident(row.run) {
            self.adopt(store, shard, row.run)?;
        }
        if let Err(found) = shard.replay(row) {
            shard.set_aside(row.run);
            self.set_aside(row.run, found);
        }
        Ok(row.seq)
    }

    /// Sets the run of a damaged row aside, and gives the row's position. A row that is missing, or whose run cannot be
    /// read, names no run: the run it belonged to is noticed at its next row, by its revision.
    fn fold_damage(&self, shard: &mut Shard, fault: Fault) -> Result<Seq, Fault> {
        match fault.kind {
            FaultKind::Corrupt { run, position: Some((_, seq)) } => {
                match run {
                    Some(run) => {
                        shard.set_aside(run);
                        self.set_aside(run, fault.message);
                    }
                    None => tracing::error!(%fault, "the journal is damaged; run `abide store check`"),
                }
                Ok(seq)
            }
            _ => Err(fault),
        }
    }

    fn adopt(&self, store: &mut dyn Store, shard: &mut Shard, run: RunId) -> Result<(), Fault> {
        // Its index row may be older than what is damaged: it must not go on from there.
        if self.is_damaged(run) {
            return Ok(());
        }
        match store.read_run(run) {
            Ok(Some(stored)) => shard.adopt(stored.run, stored.head),
            Ok(None) => {}
            Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => self.set_aside(run, fault.message),
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    /// Remembers that a run's record is damaged: commands for it are refused, with what was found.
    fn set_aside(&self, run: RunId, found: String) {
        tracing::error!(%run, %found, "the record of a run is damaged; the run is set aside");
        self.damaged.lock().entry(run).or_insert(found);
    }

    pub(crate) fn is_damaged(&self, run: RunId) -> bool {
        self.damaged.lock().contains_key(&run)
    }

    pub(crate) fn damage(&self, run: RunId) -> String {
        self.damaged.lock().get(&run).cloned().unwrap_or_default()
    }
}
