//! Commit: what was gathered is appended, and what became durable leaves.

use abide_kernel::shard::{Batch, Flush, Load, Loaded};
use abide_kernel::{ShardId, Timestamp, limits};
use abide_store::{Fault, FaultKind, Store, StoredRun, Verdict};

use crate::driver::Shared;
use crate::points;

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

impl Shared {
    /// Loads what is wanted, appends what is gathered, lets out what is durable. One thread at a time.
    pub(crate) fn commit(&self, flush_now: bool) -> Turn {
        let Some(mut store) = self.store.try_lock() else {
            return Turn::Busy;
        };
        let loaded = self.load_all(store.as_mut());
        let (batches, flushes) = {
            let mut core = self.core.lock();
            if let Some(bug) = core.shards.iter().find_map(|shard| shard.bug().map(str::to_owned)) {
                drop(core);
                tracing::error!(%bug, "an invariant does not hold; nothing was written, the shards are opened anew");
                self.reopen(store.as_mut(), "an invariant does not hold");
                return Turn::Worked;
            }
            let flush = flush_now || core.behind() >= self.flush_runs;
            core.seal(flush)
        };
        if batches.is_empty() && flushes.is_empty() {
            return if loaded { Turn::Worked } else { Turn::Idle };
        }
        points::reach("sealed");
        if points::acknowledges_early() && !batches.is_empty() {
            self.let_out(batches.clone());
            return if store.append(&batches).is_ok() { Turn::Worked } else { Turn::Idle };
        }
        if !batches.is_empty() {
            match store.append(&batches) {
                Ok(verdicts) if verdicts.iter().all(|verdict| *verdict == Verdict::Durable) => self.let_out(batches),
                Ok(_) => {
                    self.reopen(store.as_mut(), "another process took a shard over");
                    return Turn::Worked;
                }
                Err(fault) => {
                    self.append_failed(store.as_mut(), &fault);
                    return Turn::Worked;
                }
            }
        }
        for flush in flushes {
            self.flush(store.as_mut(), &flush);
        }
        Turn::Worked
    }

    fn flush(&self, store: &mut dyn Store, flush: &Flush) {
        match store.flush(flush) {
            Ok(_) => {
                points::reach("flushed");
                self.core.lock().shards[usize::from(flush.shard.0)].flushed();
            }
            Err(fault) => {
                // Index rows can be rebuilt; the log is what counts. But a store that fails is not written again.
                tracing::error!(%fault, "index rows could not be written");
                self.append_failed(store, &fault);
            }
        }
    }

    /// What became durable leaves: answers to callers, attempts to workers, envelopes to shards.
    fn let_out(&self, batches: Vec<Batch>) {
        points::reach("appended");
        let now = self.clock.now();
        let mut outputs = Vec::new();
        let mut answers = Vec::new();
        let mut jobs = Vec::new();
        let mut hints = Vec::new();
        {
            let mut core = self.core.lock();
            for batch in batches {
                let index = usize::from(batch.shard.0);
                core.shards[index].durable(now, batch);
            }
            core.drain_outputs(&mut outputs);
            self.sort_outputs(&mut core, now, &mut outputs, &mut answers, &mut jobs, &mut hints);
        }
        self.deliver(answers, jobs, hints);
        points::reach("released");
    }

    /// Takes out whatever may leave without a commit, such as a refusal when nothing is pending.
    pub(crate) fn let_out_ready(&self) -> bool {
        let now = self.clock.now();
        let mut outputs = Vec::new();
        let (mut answers, mut jobs, mut hints) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut core = self.core.lock();
            core.drain_outputs(&mut outputs);
            if outputs.is_empty() {
                return false;
            }
            self.sort_outputs(&mut core, now, &mut outputs, &mut answers, &mut jobs, &mut hints);
        }
        self.deliver(answers, jobs, hints);
        true
    }

    /// Makes every load that is wanted, and those that follow from them.
    fn load_all(&self, store: &mut dyn Store) -> bool {
        let mut any = false;
        loop {
            let loads = self.core.lock().take_loads();
            if loads.is_empty() {
                return any;
            }
            any = true;
            for (shard, load) in loads {
                if let Err(fault) = self.load(store, shard, load) {
                    self.append_failed(store, &fault);
                    return true;
                }
            }
            let now = self.clock.now();
            self.core.lock().fill(now);
        }
    }

    fn load(&self, store: &mut dyn Store, shard: ShardId, load: Load) -> Result<(), Fault> {
        let index = usize::from(shard.0);
        match load {
            Load::Run(run) => {
                let loaded = match store.read_run(run) {
                    Ok(Some(StoredRun { run, head })) => Loaded::Run(Box::new(run), head),
                    Ok(None) => Loaded::Missing,
                    Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => Loaded::Corrupt(fault.message),
                    Err(fault) => return Err(fault),
                };
                let loaded = if self.is_damaged(run) { Loaded::Corrupt(self.damage(run)) } else { loaded };
                self.core.lock().shards[index].loaded_run(self.clock.now(), run, loaded);
            }
            Load::Key(identity) => {
                let holder = match store.read_key(&identity)? {
                    Some(run) => store.read_run(run)?.map(|stored| (stored.run, stored.head)),
                    None => None,
                };
                self.core.lock().shards[index].loaded_key(self.clock.now(), &identity, holder);
            }
            Load::Due { from } => {
                let due = store.read_due(shard, from, limits::DUE_WINDOW_MAX)?;
                self.core.lock().shards[index].loaded_due(self.clock.now(), &due.entries, due.more_from);
            }
            Load::Ready { line, after } => {
                let (runs, last) = self.read_waiting(store, shard, &line, Some(after), self.clock.now())?;
                self.core.lock().shards[index].loaded_ready(self.clock.now(), &line, runs, last);
            }
        }
        Ok(())
    }

    /// An append failed. What was gathered is dropped with everything that hangs on it, and the shards are opened
    /// anew; after a failed sync the engine stops for good.
    fn append_failed(&self, store: &mut dyn Store, fault: &Fault) {
        tracing::error!(%fault, "the store failed");
        match fault.kind {
            FaultKind::Refused | FaultKind::Unknown => self.reopen(store, &fault.message),
            FaultKind::Fatal | FaultKind::Corrupt { .. } | FaultKind::Unusable => self.close(&fault.message),
        }
    }

    fn reopen(&self, store: &mut dyn Store, why: &str) {
        let mut core = self.core.lock();
        if let Err(fault) = self.open_shards(store, &mut core) {
            drop(core);
            self.close(&format!("{why}; opening the shards anew failed: {fault}"));
        }
    }

    /// Takes no more commands, and tells everybody who waits.
    pub(crate) fn close(&self, reason: &str) {
        let mut core = self.core.lock();
        core.closed.get_or_insert_with(|| reason.to_owned());
        core.draining = true;
        let waiters: Vec<_> = core.waiters.drain().map(|(_, waiter)| waiter).collect();
        for shard in &mut core.shards {
            // What was gathered will never be appended.
            drop(shard.seal());
        }
        drop(core);
        for waiter in waiters {
            let _ = waiter
                .send(abide_kernel::shard::Answer::Refused(abide_kernel::Refusal::Closed { reason: reason.into() }));
        }
        self.stopped.notify_waiters();
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
