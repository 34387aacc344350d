//! Orphans: ready attempts whose queue is served by workers of which none has their definition. After a set time
//! they become dead letters; their runs are kept, and requeueing puts them back. What nobody serves is left alone.
//!
//! Whether attempts are orphans is a matter of their lane, so nothing is kept per run.

use alloc::vec::Vec;

use super::Shard;
use super::ready::{LaneId, LaneKey, Order};
use super::resident::Place;
use crate::limits::ORPHANS_AT_ONCE_MAX;
use crate::transition::dead_letter;
use crate::{RunId, Timestamp};

/// The lanes whose attempts are orphans.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    /// With the instant since which nobody has their definition.
    lanes: Vec<(LaneId, Timestamp)>,
    lanes_seen: usize,
}

impl Shard {
    /// Looks at lanes that are new.
    pub(super) fn find_orphans(&mut self) {
        for index in self.orphans.lanes_seen..self.ready.lane_count() {
            let lane = self.ready.lane_at(index);
            if self.is_orphaned(self.ready.lane_key(lane)) {
                self.orphans.lanes.push((lane, self.now));
            }
        }
        self.orphans.lanes_seen = self.ready.lane_count();
    }

    /// Looks at all lanes again, because workers joined or left.
    pub(super) fn find_orphans_again(&mut self) {
        let before = core::mem::take(&mut self.orphans);
        self.find_orphans();
        for (lane, since) in &mut self.orphans.lanes {
            if let Some((_, known)) = before.lanes.iter().find(|(known, _)| known == lane) {
                *since = *known;
            }
        }
    }

    fn is_orphaned(&self, lane: &LaneKey) -> bool {
        let mut serving = self.workers.iter().filter(|worker| worker.serves(lane)).peekable();
        serving.peek().is_some() && serving.all(|worker| worker.definition_for(lane).is_none())
    }

    /// When the next orphan becomes a dead letter.
    pub(super) fn next_orphan(&self) -> Option<(Timestamp, Order)> {
        let oldest = self.orphans.lanes.iter().filter_map(|(lane, since)| Some((*since, self.ready.oldest(*lane)?)));
        oldest.map(|(since, order)| (self.patience_ends(&order, since), order)).min()
    }

    /// When the run becomes a dead letter, if it is an orphan.
    pub(super) fn orphan_until(&self, id: RunId) -> Option<Timestamp> {
        let places = self.runs.get(&id)?.places.iter();
        let until = places.filter_map(|place| match place {
            Place::Ready(lane, order) => {
                let (_, since) = self.orphans.lanes.iter().find(|(known, _)| known == lane)?;
                Some(self.patience_ends(order, *since))
            }
            Place::Running(_) | Place::None => None,
        });
        until.min()
    }

    /// Counted from the shard's opening at the earliest, and from when nobody had the definition any more: while nobody was
    /// there, nobody could have had it, and whoever left may come again.
    fn patience_ends(&self, order: &Order, since: Timestamp) -> Timestamp {
        order.eligible_at.max(self.opened_at).max(since).after(self.config.definition_wait_ms)
    }

    /// Makes dead letters of orphans that have waited long enough. Of very many only some, so that a tick stays short:
    /// the others are due as well, and have the next one come at once.
    pub(super) fn set_orphans_aside(&mut self) {
        for _ in 0..ORPHANS_AT_ONCE_MAX {
            let Some((_, order)) = self.next_orphan().filter(|(at, _)| *at <= self.now) else {
                return;
            };
            let Some(resident) = self.runs.get(&order.run) else {
                return;
            };
            let transition = dead_letter::definition_missing(&resident.run, order.cursor, &self.config.node);
            self.transact(order.run, transition);
        }
    }
}
