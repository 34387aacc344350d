//! Several nodes over one store in memory, with leases by the store's own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_kernel::{ShardEpoch, ShardId, Timestamp};

use super::state::{ShardState, State};
use super::{MemoryStore, WriteFault, lock};
use crate::{Cluster, Fault, FaultKind, Living, Member, Membership, Owned};

impl MemoryStore {
    /// An empty store that nodes share: each has a clone. `clock` is the store's own, in milliseconds.
    ///
    /// # Panics
    /// When `shards` is zero or exceeds the number of slots.
    #[must_use]
    pub fn shared(shards: u16, clock: Arc<AtomicI64>) -> Self {
        Self { clock: Some(clock), ..Self::new(shards) }
    }

    /// Whether nodes share it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.clock.is_some()
    }

    /// The store's own time, if nodes share it.
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| Timestamp(clock.load(Ordering::Acquire)))
    }
}

impl Cluster for MemoryStore {
    fn renew(&mut self, member: &Member, lease: Duration) -> Result<Membership, Fault> {
        self.begin_write()?;
        self.counts.write();
        let now = self.now().unwrap_or_default();
        let mut state = lock(&self.state);
        state.script.meet_read()?;
        let fault = state.script.next_renewal();
        if let Some(fault) = fault.filter(|fault| !fault.writes()) {
            drop(state);
            return Err(self.met(fault));
        }
        let until = now.after(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        state.members.retain(|process, living| living.until > now || *process == member.process);
        let mut member = member.clone();
        if let Some(known) = state.members.get(&member.process) {
            member.draining = known.member.draining;
        }
        let process = member.process.clone();
        state.members.insert(process.clone(), Living { member, until });
        let mut seen = state.membership(now);
        let ours = seen.shards.iter().filter(|owned| owned.owner.as_ref() == Some(&process)).map(|owned| owned.shard);
        seen.mail = ours.filter(|shard| state.unconsumed(*shard).next().is_some()).collect();
        drop(state);
        self.end_write()?;
        self.tell(fault)?;
        Ok(seen)
    }

    fn release(&mut self, shard: ShardId, epoch: ShardEpoch) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let mut state = lock(&self.state);
        let fault = state.script.next_ownership();
        if fault.is_none_or(WriteFault::writes)
            && let Some(owned) = state.shards.get_mut(usize::from(shard.0)).filter(|owned| owned.epoch == epoch)
        {
            owned.check_row(shard)?;
            owned.owner = None;
        }
        drop(state);
        self.tell(fault)
    }

    fn drain(&mut self, process: &str, draining: bool) -> Result<bool, Fault> {
        self.check_going()?;
        self.counts.write();
        let mut state = lock(&self.state);
        let known = state.members.get_mut(process);
        Ok(known.map(|living| living.member.draining = draining).is_some())
    }

    fn secret(&mut self) -> Result<Vec<u8>, Fault> {
        // Nobody outside of this process can reach it.
        Ok(b"in memory".to_vec())
    }

    fn leave(&mut self, process: &str) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let mut state = lock(&self.state);
        let fault = state.script.next_ownership();
        if fault.is_none_or(WriteFault::writes) {
            state.members.remove(process);
        }
        drop(state);
        self.tell(fault)
    }
}

impl State {
    pub(super) fn membership(&self, now: Timestamp) -> Membership {
        let (living, gone) = self.members.values().cloned().partition(|living| living.until > now);
        let owned = |(index, state): (usize, &ShardState)| Owned {
            shard: ShardId(index as u16),
            epoch: state.epoch,
            owner: state.owner.clone(),
        };
        Membership { now, living, gone, shards: self.shards.iter().enumerate().map(owned).collect(), mail: Vec::new() }
    }

    fn lives(&self, process: &str, now: Timestamp) -> bool {
        self.members.get(process).is_some_and(|living| living.until > now)
    }

    /// Whether a shard's owner may write: where nodes share the store, only while its lease lasts.
    pub(super) fn is_served(&self, shard: &ShardState, now: Option<Timestamp>) -> bool {
        now.is_none_or(|now| shard.owner.as_ref().is_some_and(|owner| self.lives(owner, now)))
    }

    /// A shard may be taken from nobody, from oneself, and from a node whose lease has ended.
    pub(super) fn check_free(&self, shard: ShardId, process: &str, now: Timestamp) -> Result<(), Fault> {
        let Some(state) = self.shards.get(usize::from(shard.0)) else {
            return Ok(());
        };
        match &state.owner {
            Some(owner) if **owner != *process && self.lives(owner, now) => {
                let message = format!("shard {} belongs to {owner}, whose lease has not ended", shard.0);
                Err(Fault::new(FaultKind::Held, message))
            }
            _ => Ok(()),
        }
    }
}
