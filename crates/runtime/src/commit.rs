//! Commit: what was gathered is appended, and what became durable leaves.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abide_kernel::shard::{Answer, Batch, Flush, Load, Loaded};
use abide_kernel::{Refusal, RunId, Shard, ShardId, Timestamp};
use abide_store::{Fault, FaultKind, Store, StoredRun, Verdict};
use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::dispatch::Hint;
use crate::driver::Shared;
use crate::link::Letter;
use crate::membership::tell_unknown;
use crate::points;

/// How long index rows may be behind while the engine is busy: what must be folded after a crash stays bounded.
const FLUSH_AGE_MS: u64 = 1_000;

/// What a turn of the crank found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Something was appended, loaded or flushed.
    Worked,
    /// There was nothing to do.
    Idle,
    /// Another thread is at it.
    Busy,
}

/// Who lets out what a commit made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Releasing {
    /// Whoever commits.
    Here,
    /// The driver, if enough is gathered already for the next commit to begin at once.
    Driver,
}

impl Shared {
    /// Loads what is wanted, appends what is gathered, lets out what is durable, unless another thread is at it.
    pub(crate) fn commit(&self, flush_now: bool) -> Turn {
        let Some(store) = self.store.try_lock() else {
            return Turn::Busy;
        };
        self.commit_with(store, flush_now, Releasing::Here)
    }

    /// The same, after whoever is at it.
    pub(crate) fn commit_next(&self, flush_now: bool, releasing: Releasing) -> Turn {
        self.commit_with(self.store.lock(), flush_now, releasing)
    }

    fn commit_with(&self, mut store: MutexGuard<'_, Box<dyn Store>>, flush_now: bool, releasing: Releasing) -> Turn {
        let mut hints = Vec::new();
        let turn = self.commit_group(store.as_mut(), flush_now, releasing, &mut hints);
        drop(store);
        // The notifier is the user's: it may take its time, and ask the engine what it likes.
        self.hint_all(hints);
        turn
    }

    fn commit_group(
        &self,
        store: &mut dyn Store,
        flush_now: bool,
        releasing: Releasing,
        hints: &mut Vec<Hint>,
    ) -> Turn {
        let renewed = self.renew_if_due(store);
        self.read_rules_if_told();
        if self.append_gathered(store, flush_now, releasing, hints) || renewed { Turn::Worked } else { Turn::Idle }
    }

    /// Loads what is wanted, appends what is gathered and writes index rows if it is time. Whether there was anything to
    /// do.
    pub(crate) fn append_gathered(
        &self,
        store: &mut dyn Store,
        flush_now: bool,
        releasing: Releasing,
        hints: &mut Vec<Hint>,
    ) -> bool {
        let loaded = self.load_all(store);
        let (batches, flushes) = {
            let mut core = self.core.lock();
            let bug = core.served().find_map(|shard| shard.bug().map(str::to_owned));
            if let Some(bug) = bug {
                core.bug = Some(bug.clone());
                drop(core);
                tracing::error!(%bug, "an invariant does not hold; nothing was written, the shards are opened anew");
                self.reopen(store, "an invariant does not hold");
                return true;
            }
            let flush = flush_now || core.behind() >= self.flush_runs || core.is_far_behind(self.now(), FLUSH_AGE_MS);
            core.seal(flush)
        };
        if batches.is_empty() && flushes.is_empty() {
            return loaded;
        }
        points::reach("sealed");
        if points::acknowledges_early() && !batches.is_empty() {
            self.appended(batches.clone(), Releasing::Here, hints);
            if store.append(&batches).is_err() {
                return false;
            }
        } else if !batches.is_empty() {
            match self.append(store, &batches) {
                Ok(verdicts) => {
                    // What a flush sends out of memory must have been let out.
                    let releasing = if flushes.is_empty() { releasing } else { Releasing::Here };
                    if !self.judged(store, batches, &verdicts, releasing, hints) {
                        return true;
                    }
                }
                Err(fault) => {
                    self.append_failed(store, &fault);
                    return true;
                }
            }
        }
        if !flushes.is_empty() {
            self.flush(store, &flushes);
        }
        true
    }

    /// Appends a group, by the watch.
    fn append(&self, store: &mut dyn Store, batches: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        let (before, begun) = (store.counters().sync_ns, Instant::now());
        let verdicts = store.append(batches)?;
        let took = begun.elapsed();
        let syncing = store.counters().sync_ns.checked_sub(before).filter(|ns| *ns > 0).map(Duration::from_nanos);
        let rows = batches.iter().map(|batch| batch.rows.len()).sum();
        self.core.lock().meter.appended(rows, took, syncing);
        Ok(verdicts)
    }

    /// What was appended leaves; a shard that another has taken goes. Whether the shards are what they were.
    fn judged(
        &self,
        store: &mut dyn Store,
        batches: Vec<Batch>,
        verdicts: &[Verdict],
        releasing: Releasing,
        hints: &mut Vec<Hint>,
    ) -> bool {
        if verdicts.iter().all(|verdict| *verdict == Verdict::Durable) {
            self.appended(batches, releasing, hints);
            return true;
        }
        let stale: Vec<ShardId> = batches
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| **verdict == Verdict::Stale)
            .map(|(batch, _)| batch.shard)
            .collect();
        let durable = batches.into_iter().filter(|batch| !stale.contains(&batch.shard)).collect();
        self.appended(durable, Releasing::Here, hints);
        self.lose(store, &stale);
        false
    }

    /// Shards turned out to be another's. A store with one owner at a time was opened by another process, and back.
    fn lose(&self, store: &mut dyn Store, shards: &[ShardId]) {
        let mut told = Vec::new();
        {
            let mut core = self.core.lock();
            let now = self.now();
            core.meter.fenced_writes += shards.len() as u64;
            if core.ring.is_some() {
                shards.iter().for_each(|id| core.drop_shard(now, *id, &mut told));
            } else {
                drop(core);
                self.reopen(store, "another process took a shard over");
            }
        }
        tell_unknown(told);
    }

    /// Writes index rows. Shards that another has taken go.
    fn flush(&self, store: &mut dyn Store, flushes: &[Flush]) {
        let verdicts = match store.flush(flushes) {
            Ok(verdicts) => verdicts,
            Err(fault) => {
                // Index rows can be rebuilt; the log is what counts. But a store that fails is not written again.
                tracing::error!(%fault, "index rows could not be written");
                self.append_failed(store, &fault);
                return;
            }
        };
        points::reach("flushed");
        let mut stale = Vec::new();
        let mut core = self.core.lock();
        for (flush, verdict) in flushes.iter().zip(verdicts) {
            match verdict {
                Verdict::Durable => {
                    if let Some(shard) = core.at(flush.shard).filter(|shard| shard.epoch() == flush.epoch) {
                        shard.flushed();
                    }
                }
                Verdict::Stale => stale.push(flush.shard),
            }
        }
        drop(core);
        if !stale.is_empty() {
            self.lose(store, &stale);
        }
    }

    /// Batches are durable: what hangs on them leaves, here or where the driver comes by next.
    fn appended(&self, batches: Vec<Batch>, releasing: Releasing, hints: &mut Vec<Hint>) {
        points::reach("appended");
        let mut core = self.core.lock();
        core.durable.extend(batches);
        if releasing == Releasing::Driver && self.is_large(&core) {
            self.left_over.store(true, Ordering::Release);
            drop(core);
            self.bell.ring();
            return;
        }
        self.let_out(core, hints);
        points::reach("released");
    }

    /// What became durable leaves: answers to callers, attempts to workers, envelopes to shards. Whether anything did.
    fn let_out(&self, mut core: MutexGuard<'_, Core>, hints: &mut Vec<Hint>) -> bool {
        let now = self.now();
        let mut outputs = Vec::new();
        let mut answers = Vec::new();
        let mut jobs = Vec::new();
        self.left_over.store(false, Ordering::Release);
        if !core.durable.is_empty() {
            core.last_change = now;
            core.behind_since.get_or_insert(now);
            while let Some(batch) = core.durable.pop_front() {
                self.tell_followers(&core, now, &batch);
                core.observe(&batch);
                // One that left meanwhile has told everybody, and what was appended is found by whoever opens it next.
                if let Some(shard) = core.at(batch.shard).filter(|shard| shard.epoch() == batch.epoch) {
                    shard.durable(now, batch);
                }
            }
        }
        core.drain_outputs(&mut outputs);
        if outputs.is_empty() && core.handed.is_empty() {
            return false;
        }
        self.sort_outputs(&mut core, now, &mut outputs, &mut answers, &mut jobs, hints);
        let handed = std::mem::take(&mut core.handed);
        drop(core);
        self.deliver(answers, jobs, handed);
        true
    }

    /// Lets out what was left over, and whatever may leave without a commit, such as a refusal when nothing is pending.
    pub(crate) fn let_out_ready(&self) -> bool {
        let mut hints = Vec::new();
        let any = self.let_out(self.core.lock(), &mut hints);
        self.hint_all(hints);
        any
    }

    /// Makes every load that is wanted, and those that follow from them.
    fn load_all(&self, store: &mut dyn Store) -> bool {
        let mut any = false;
        loop {
            let loads = self.core.lock().take_loads();
            any |= self.fetch_mail(store);
            if loads.is_empty() {
                return any;
            }
            any = true;
            for (shard, load) in loads {
                if let Err(fault) = self.load(store, shard, load)
                    && !self.read_failed(store, shard, fault)
                {
                    return true;
                }
            }
            let now = self.now();
            self.core.lock().fill(now);
        }
    }

    fn load(&self, store: &mut dyn Store, id: ShardId, load: Load) -> Result<(), Fault> {
        match load {
            Load::Run(run) => {
                let loaded = self.read_loaded(store, run)?;
                self.with_shard(id, |shard, now| shard.loaded_run(now, run, loaded));
            }
            Load::Key(identity) => {
                let holder = match store.read_key(&identity)? {
                    Some(run) => Some((run, self.read_loaded(store, run)?)),
                    None => None,
                };
                self.with_shard(id, |shard, now| shard.loaded_key(now, &identity, holder));
            }
            Load::Due { from } => {
                let due = store.read_due(id, from, self.windows.due)?;
                self.with_shard(id, |shard, now| shard.loaded_due(now, &due.entries, due.more_from));
            }
            Load::Ready { line, after, now } => {
                let (runs, last) = self.read_waiting(store, id, &line, Some(after), now, &|_| false)?;
                self.with_shard(id, |shard, now| shard.loaded_ready(now, &line, runs, last));
            }
        }
        Ok(())
    }

    /// Tells a shard what was read for it, if it is still served here.
    fn with_shard(&self, id: ShardId, tell: impl FnOnce(&mut Shard, Timestamp)) {
        let now = self.now();
        if let Some(shard) = self.core.lock().at(id) {
            tell(shard, now);
        }
    }

    /// Fetches envelopes that others sent to shards here. Whether there were any.
    fn fetch_mail(&self, store: &mut dyn Store) -> bool {
        let mail = match &mut self.core.lock().ring {
            Some(ring) if !ring.mail.is_empty() => std::mem::take(&mut ring.mail),
            _ => return false,
        };
        for (id, told) in mail {
            let envelopes = match store.read_envelopes(id, usize::MAX / 2) {
                Ok(envelopes) => envelopes,
                Err(fault) => {
                    if self.read_failed(store, id, fault) {
                        continue;
                    }
                    return true;
                }
            };
            self.with_shard(id, |shard, now| envelopes.into_iter().for_each(|envelope| shard.receive(now, envelope)));
            let core = self.core.lock();
            if let Some(ring) = &core.ring {
                told.into_iter().for_each(|(member, mail)| ring.send(&member, Letter::Fetched(vec![mail])));
            }
        }
        self.core.lock().fill(self.now());
        true
    }

    /// A run as a shard that asked for it is told.
    fn read_loaded(&self, store: &mut dyn Store, run: RunId) -> Result<Loaded, Fault> {
        Ok(match self.read_sound(store, run)? {
            Some(StoredRun { run, head }) => Loaded::Run(Box::new(run), head),
            None => self.damage(run).map_or(Loaded::Missing, Loaded::Corrupt),
        })
    }

    /// Something of one shard could not be read. If that is because it is damaged, and nodes share the store, the shard is
    /// set aside. Whether the others are what they were.
    fn read_failed(&self, store: &mut dyn Store, id: ShardId, fault: Fault) -> bool {
        // Of the shard, what is durable leaves before it goes.
        self.let_out(self.core.lock(), &mut Vec::new());
        match self.set_shard_aside(id, fault) {
            Ok(()) => true,
            Err(fault) => {
                self.append_failed(store, &fault);
                false
            }
        }
    }

    /// An append failed. What was gathered is dropped with everything that hangs on it, and the shards are opened
    /// anew; after a failed sync the engine stops for good.
    fn append_failed(&self, store: &mut dyn Store, fault: &Fault) {
        tracing::error!(%fault, "the store failed");
        match fault.kind {
            FaultKind::Refused | FaultKind::Unknown | FaultKind::Held => self.reopen(store, &fault.message),
            FaultKind::Fatal | FaultKind::Corrupt { .. } | FaultKind::Importing | FaultKind::Unusable => {
                self.close(&fault.message);
            }
        }
    }

    fn reopen(&self, store: &mut dyn Store, why: &str) {
        // Of the old shards, what is durable leaves before they go. The notifier does without: the store is held.
        self.let_out(self.core.lock(), &mut Vec::new());
        if self.core.lock().ring.is_some() {
            self.reopen_served(store, why);
            return;
        }
        // Everybody waits for the lock meanwhile, which is not what the watchdog looks for.
        self.role.set_recovering(true);
        let mut core = self.core.lock();
        let mut waiters = Vec::new();
        let opened = self.open_shards(store, &mut core, &mut waiters);
        let closed = opened.err().map(|fault| format!("{why}; opening the shards anew failed: {fault}"));
        // Without its shards nobody may find the core open.
        let told = closed.as_ref().map(|reason| core.close(reason)).unwrap_or_default();
        drop(core);
        self.role.set_recovering(false);
        for waiter in waiters {
            let _ = waiter.send(Answer::Refused(Refusal::Unknown));
        }
        if closed.is_some() {
            self.tell_closed(told);
        }
    }

    /// Where nodes share the store: the shards that are served here are taken anew, unless others have taken them.
    fn reopen_served(&self, store: &mut dyn Store, why: &str) {
        let mut told = Vec::new();
        let served: Vec<ShardId> = {
            let mut core = self.core.lock();
            let now = self.now();
            let served: Vec<ShardId> = core.served().map(Shard::id).collect();
            served.iter().for_each(|id| core.drop_shard(now, *id, &mut told));
            served
        };
        tell_unknown(told);
        if let Err(fault) = self.take_all(store, &served) {
            match fault.kind {
                FaultKind::Refused | FaultKind::Unknown | FaultKind::Held => {
                    tracing::warn!(%fault, why, "the shards could not be taken anew; they are with the next renewal");
                }
                FaultKind::Fatal | FaultKind::Corrupt { .. } | FaultKind::Importing | FaultKind::Unusable => {
                    self.close(&fault.message);
                }
            }
        }
        self.reroute();
    }

    /// Takes no more commands, and tells everybody who waits.
    pub(crate) fn close(&self, reason: &str) {
        self.let_out(self.core.lock(), &mut Vec::new());
        let waiters = self.core.lock().close(reason);
        self.tell_closed(waiters);
    }

    /// Tells everybody who waits that there is no more to come.
    fn tell_closed(&self, waiters: Vec<(oneshot::Sender<Answer>, Answer)>) {
        for (waiter, answer) in waiters {
            let _ = waiter.send(answer);
        }
        self.tail.close();
        self.attempt_ended.notify_waiters();
    }

    /// The current instant: the clock's, or the store's where nodes share it.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0 + self.offset.load(Ordering::Acquire))
    }
}
