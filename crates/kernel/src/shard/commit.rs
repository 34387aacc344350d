//! Commit: batches leave to be appended; what depends on them leaves when they are durable.

use core::mem;

use super::{Batch, Flush, Output, Shard};
use crate::{RunId, Seq, Timestamp};

impl Shard {
    /// Takes the batch gathered so far. Everything in it must be appended, whole, after all batches before it.
    pub fn seal(&mut self) -> Option<Batch> {
        if self.batch.is_empty() || self.bug.is_some() {
            return None;
        }
        let next = Batch { shard: self.batch.shard, epoch: self.batch.epoch, ..Batch::default() };
        self.batches_sealed += 1;
        self.sealed = self.head;
        Some(mem::replace(&mut self.batch, next))
    }

    /// How many rows wait to be sealed.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.batch.rows.len()
    }

    /// Whether something waits to be sealed.
    #[must_use]
    pub fn wants_append(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The first sealed batch that was not durable yet, and its envelopes, are durable.
    pub fn durable(&mut self, now: Timestamp, batch: Batch) {
        self.advance(now);
        self.batches_durable += 1;
        assert!(self.batches_durable <= self.batches_sealed, "a batch is sealed before it is durable");
        if self.visitors.len() >= self.config.windows.visitors {
            self.see_visitors_off();
        }
        for letter in &batch.settled {
            self.settling.remove(letter);
        }
        let released = self.batches_durable;
        while let Some((_, mut output)) = self.release.pop_front_if(|(after, _)| *after <= released) {
            if let Output::Dispatch(dispatch) = &mut output {
                self.delivered(dispatch);
            }
            self.outputs.push(output);
        }
        self.outputs.extend(batch.envelopes.into_iter().map(Output::Deliver));
    }

    /// How many runs have index rows that are behind.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.dirty.len() + self.purged.len()
    }

    /// Takes the index rows of all runs that changed. They must be written after the batch sealed last, so
    /// nothing may be gathered that is not sealed.
    pub fn flush(&mut self) -> Option<Flush> {
        if self.behind() == 0 || !self.batch.is_empty() || self.bug.is_some() {
            return None;
        }
        let dirty = mem::take(&mut self.dirty);
        let mut records = alloc::vec::Vec::with_capacity(dirty.len());
        let mut compacted = alloc::vec::Vec::new();
        for id in &dirty {
            if let Some(resident) = self.runs.get_mut(id) {
                resident.dirty = false;
                resident.flushing = true;
                compacted.extend(resident.compacted.take().map(|seq| (*id, seq)));
                records.push(resident.record());
            }
        }
        self.flushing = dirty;
        let purged = mem::take(&mut self.purged);
        self.purging.clone_from(&purged);
        let through = self.damaged_at.map_or(self.sealed, |damaged| self.sealed.min(Seq(damaged.0.saturating_sub(1))));
        let (shard, epoch) = (self.config.id, self.config.epoch);
        Some(Flush { shard, epoch, through, records, purged, compacted })
    }

    /// A row of the log is damaged: index rows never count as complete beyond it, so that every later opening meets it
    /// too.
    pub fn hold_watermark(&mut self, damaged: Seq) {
        self.damaged_at = Some(self.damaged_at.map_or(damaged, |first| first.min(damaged)));
    }

    /// The last flush is durable: runs that nobody needs leave memory.
    pub fn flushed(&mut self) {
        let flushed = mem::take(&mut self.flushing);
        for id in flushed {
            if let Some(resident) = self.runs.get_mut(&id) {
                resident.flushing = false;
            }
            self.evict(id);
        }
        for id in self.ready.cut() {
            self.evict(id);
        }
        self.see_visitors_off();
        for (id, _) in mem::take(&mut self.purging) {
            self.gone.remove(&id);
        }
        let runs = &self.runs;
        self.deadlines.trim(self.config.windows.due, |run| runs.contains_key(&run));
    }

    /// Runs that were only looked at leave memory: their index rows are not behind, so no flush would see them off.
    pub(super) fn see_visitors_off(&mut self) {
        for id in mem::take(&mut self.visitors) {
            self.evict(id);
        }
    }

    /// Drops a run from memory if it may leave. Its answers have left: they hang on positions that the flush
    /// came after.
    fn evict(&mut self, id: RunId) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        if !resident.may_leave(&self.ready) || self.waiting_runs.contains_key(&id) || self.beginning.contains_key(&id) {
            return;
        }
        let identity = resident.key_identity();
        // What the store is being asked about must not change behind the answer.
        if identity.as_ref().is_some_and(|identity| self.waiting_keys.contains_key(identity)) {
            return;
        }
        self.unplace(id);
        let Some(resident) = self.runs.remove(&id) else {
            return;
        };
        // The armed entry, and not what is due after now: a moment that passed since the last tick still counts.
        if let Some(armed) = resident.armed {
            if self.paging_due {
                self.deadlines.arm(armed, id);
            } else {
                self.deadlines.park(armed, id);
            }
        }
        if let (true, Some(identity)) = (resident.occupies, identity) {
            self.keys.remove(&identity);
        }
    }
}
