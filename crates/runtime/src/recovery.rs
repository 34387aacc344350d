//! Recovery: shards are opened from their index rows and the log after them. Without index rows the log alone is
//! enough, and takes longer.

use abide_kernel::shard::{Answer, Command, Config as ShardConfig, LinePlace, Worker, WorkerId};
use abide_kernel::{Row, Run, RunId, Seq, Shard, ShardId, Timestamp};
use abide_store::{Fault, FaultKind, Filter, Page, Reader, Store, StoredRun};

use tokio::sync::oneshot;

use crate::config::{Pool, millis};
use crate::core::{Core, NOBODY, PoolState, Waiter};
use crate::driver::Shared;
use crate::points;

/// Rows read at a time, and runs folded before their index rows are written, so that memory stays bounded.
const PAGE_ROWS: usize = 10_000;
const FOLDED_RUNS_MAX: usize = 50_000;

/// A page of runs that wait in a line, with the positions of their last rows, and the last place of the page if there are
/// more behind it.
type WaitingPage = (Vec<(Run, Seq)>, Option<LinePlace>);

impl Shared {
    /// Opens every shard, dropping what was in memory. Whoever waited for an answer is to be told to retry, without the
    /// core's lock.
    pub(crate) fn open_shards(
        &self,
        store: &mut dyn Store,
        core: &mut Core,
        unanswered: &mut Vec<oneshot::Sender<Answer>>,
    ) -> Result<(), Fault> {
        for shard in core.shards.iter_mut().filter_map(Option::take) {
            let abandoned = shard.abandon().tickets.into_iter();
            let waiting = abandoned.filter_map(|ticket| core.waiters.remove(&ticket));
            unanswered.extend(waiting.filter_map(|waiting| match waiting.waiter {
                Waiter::Here(sender) | Waiter::Again(sender) => Some(sender),
                Waiter::There { .. } | Waiter::Beat(_) | Waiter::Nobody => None,
            }));
        }
        core.throttle.forget_running();
        core.desk.lost_all(&mut core.handed);
        core.pools = self.empty_pools(core);
        let newest = newest_run(store.reader()?.as_mut())?;
        for id in core.map.all() {
            let mut shard = self.open_shard(store, id)?;
            newest.iter().for_each(|newest| shard.newest_run(*newest));
            self.join_pools(&mut shard);
            core.desk.join(&mut shard);
            core.shards[usize::from(id.0)] = Some(shard);
        }
        self.tell_anew(core);
        for id in core.map.all() {
            self.give_back_undelivered(core, id);
        }
        for id in core.map.all() {
            for envelope in store.read_envelopes(id, usize::MAX / 2)? {
                if let Some(shard) = core.at(id) {
                    shard.receive(self.now(), envelope);
                }
            }
        }
        core.fill(self.now());
        points::reach("opened");
        self.bell.ring();
        Ok(())
    }

    /// Pools in which only those attempts run that execute.
    pub(crate) fn empty_pools(&self, core: &Core) -> Vec<PoolState> {
        let pool = |(pool, config): (usize, &Pool)| {
            let running = core.executing.values().filter(|executing| executing.pool == pool).count();
            PoolState { capacity: config.concurrency.max(running), running }
        };
        self.pools.iter().enumerate().map(pool).collect()
    }

    /// Makes the local workers known to a shard, in the order of their pools.
    pub(crate) fn join_pools(&self, shard: &mut Shard) {
        for (number, config) in (0..).zip(&self.pools) {
            let queues = vec![config.queue.as_str().into()];
            shard.join(WorkerId(number), Worker::new(queues, self.programs.definitions.clone()));
        }
    }

    /// Gives back claims of this process that no worker of it executes: they were written, and never handed out.
    pub(crate) fn give_back_undelivered(&self, core: &mut Core, id: ShardId) {
        let claims = core.at(id).map(|shard| shard.local_claims()).unwrap_or_default();
        for claim in claims {
            if !core.executing.contains_key(&claim)
                && let Some(shard) = core.at(id)
            {
                shard.submit(self.now(), NOBODY, Command::GiveBack { claim, token: self.token });
            }
        }
    }

    pub(crate) fn open_shard(&self, store: &mut dyn Store, id: ShardId) -> Result<Shard, Fault> {
        let shared = store.cluster().is_some();
        let opened = store.open_shard(id, if shared { &self.process } else { &self.node })?;
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
            windows: self.windows,
            rules: self.rules.lock().clone(),
            definition_wait_ms: millis(self.definition_wait),
        };
        let mut shard = Shard::new(config, now);
        self.fold_tail(store, &mut shard, opened.watermark)?;
        for run in store.read_claimed(id)? {
            self.adopt(store, &mut shard, run)?;
        }
        for line in store.read_lines(id)? {
            let folded = |run| shard.is_resident(run);
            let (runs, last) = self.read_waiting(store, id, &line, None, shard.now(), &folded)?;
            shard.loaded_ready(now, &line, runs, last);
        }
        let due = store.read_due(id, Timestamp(i64::MIN), self.windows.due)?;
        shard.loaded_due(now, &due.entries, due.more_from);
        shard.replayed(now);
        // With one owner at a time, the processes before this one are dead. Where nodes share the store they may live: their
        // claims last for another lease.
        if !shared {
            for run in shard.claimed_runs() {
                shard.end_lost_claims(run);
            }
        }
        Ok(shard)
    }

    /// Folds the log after the watermark. A row that is damaged sets its run aside; the others go on. No index row is written of
    /// what the run did before: until it is repaired, index rows count as complete up to where the log was folded from and no
    /// further.
    fn fold_tail(&self, store: &mut dyn Store, shard: &mut Shard, watermark: Seq) -> Result<(), Fault> {
        let (mut after, mut floor) = (watermark, watermark);
        loop {
            let rows = store.scan(shard.id(), after, PAGE_ROWS)?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                after = match row {
                    Ok(row) => self.fold_row(store, shard, &row, floor)?,
                    Err(fault) => self.fold_damage(shard, fault, floor)?,
                };
            }
            if shard.behind() >= FOLDED_RUNS_MAX
                && let Some(mut flush) = shard.flush()
            {
                flush.through = flush.through.min(after);
                floor = floor.max(flush.through);
                store.flush(&[flush])?;
                shard.flushed();
            }
        }
    }

    /// Folds one row into its run, and gives the row's position.
    fn fold_row(&self, store: &mut dyn Store, shard: &mut Shard, row: &Row, floor: Seq) -> Result<Seq, Fault> {
        // A row without facts was emptied: its run was purged later in the log, or a compacted row begins it anew.
        if row.facts.is_empty() {
            return Ok(row.seq);
        }
        if self.is_damaged(row.run) {
            // Its index row stays behind: were the row not met again, the run would go on from there once it is repaired.
            shard.hold_watermark(floor.next());
            return Ok(row.seq);
        }
        // A row with which a journal begins says all there is: an index row would say the same, or be damaged, and then the rows
        // that follow would be passed over.
        if !row.begins() {
            self.adopt(store, shard, row.run)?;
        }
        if let Err(found) = shard.replay(row) {
            shard.hold_watermark(floor.next());
            shard.set_aside(row.run);
            self.set_aside(row.run, found);
        }
        Ok(row.seq)
    }

    /// Sets the run of a damaged row aside, and gives the row's position. A row that is missing, or whose run cannot be
    /// read, names no run: the run it belonged to is noticed at its next row, by its revision.
    fn fold_damage(&self, shard: &mut Shard, fault: Fault, floor: Seq) -> Result<Seq, Fault> {
        match fault.kind {
            FaultKind::Corrupt { run, position: Some((_, seq)) } => {
                shard.hold_watermark(floor.next());
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

    /// Takes a run into memory by its index row, unless the log has said how it stands.
    fn adopt(&self, store: &mut dyn Store, shard: &mut Shard, run: RunId) -> Result<(), Fault> {
        if shard.is_resident(run) {
            return Ok(());
        }
        if let Some(StoredRun { run, head }) = self.read_sound(store, run)? {
            shard.adopt(run, head);
        }
        Ok(())
    }

    /// A run by its index row; `None` when there is none, or it is damaged, which sets the run aside.
    pub(crate) fn read_sound(&self, store: &mut dyn Store, run: RunId) -> Result<Option<StoredRun>, Fault> {
        // Its index row may be older than what is damaged: it must not go on from there.
        if self.is_damaged(run) {
            return Ok(None);
        }
        match store.read_run(run) {
            Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => {
                self.set_aside(run, fault.message);
                Ok(None)
            }
            read => read,
        }
    }

    /// A page of the runs that wait in a line, without those that are `known`.
    pub(crate) fn read_waiting(
        &self,
        store: &mut dyn Store,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        known: &dyn Fn(RunId) -> bool,
    ) -> Result<WaitingPage, Fault> {
        let page = store.read_ready(shard, line, after, now, self.windows.page)?;
        let mut runs = Vec::with_capacity(page.places.len());
        for place in page.places.iter().filter(|place| !known(place.run)) {
            let sound = self.read_sound(store, place.run)?;
            runs.extend(sound.map(|stored| (stored.run, stored.head)));
        }
        Ok((runs, page.places.last().copied().filter(|_| page.more)))
    }

    /// Remembers that a run's record is damaged: commands for it are refused, with what was found.
    fn set_aside(&self, run: RunId, found: String) {
        tracing::error!(%run, %found, "the record of a run is damaged; the run is set aside");
        self.damaged.lock().entry(run).or_insert(found);
    }

    pub(crate) fn is_damaged(&self, run: RunId) -> bool {
        self.damaged.lock().contains_key(&run)
    }

    /// What is wrong with a run's record, if something is.
    pub(crate) fn damage(&self, run: RunId) -> Option<String> {
        self.damaged.lock().get(&run).cloned()
    }
}

/// The newest run that was ever made. Ids are made by clients, whose clocks may be ahead of ours: one up to the newest known may
/// have been used. The reader is not the one for inspection: whoever inspects may take long, and the store is held meanwhile.
pub(crate) fn newest_run(reader: &mut dyn Reader) -> Result<Option<RunId>, Fault> {
    match reader.list(&Filter::default(), &Page { most: 1, before: None }) {
        Err(fault) if !matches!(fault.kind, FaultKind::Corrupt { .. }) => Err(fault),
        listed => Ok(listed.unwrap_or_default().first().map(|newest| newest.run)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use abide_store::memory::MemoryStore;

    use super::*;
    use crate::{Clock, Config};

    /// SE-33: whoever inspects may take minutes. A node takes its shards and keeps its lease meanwhile.
    #[test]
    fn a_node_waits_for_nobody_who_inspects() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let clock = Arc::new(AtomicI64::new(1_000));
        let mut store = MemoryStore::shared(4, clock.clone());
        let config = Config { clock: Clock::Manual(clock), ..Config::default() };
        let handle = runtime.handle().clone();
        let shared = Shared::open(Box::new(store.clone()), config, handle, true).expect("it opens");
        let inspecting = shared.reader.lock();
        let (node, (done, is_done)) = (shared.clone(), mpsc::channel());
        std::thread::spawn(move || {
            let mut core = node.core.lock();
            core.map.all().for_each(|id| core.drop_shard(node.now(), id, &mut Vec::new()));
            drop(core);
            node.rules_changed.store(true, Ordering::Release);
            let renewed = node.renew(&mut store);
            node.read_rules_if_told();
            let _ = done.send(renewed);
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("it does not wait").expect("the store is there");
        assert_eq!(shared.core.lock().served().count(), 4);
        assert!(shared.rules_changed.load(Ordering::Acquire), "they are read when that is over");
        drop(inspecting);
        shared.read_rules_if_told();
        assert!(!shared.rules_changed.load(Ordering::Acquire));
    }
}
