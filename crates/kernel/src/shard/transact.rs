//! Transact: facts become a row, the run is folded and checked, and the indexes follow.

use alloc::boxed::Box;

use super::resident::{Place, Resident};
use super::{Output, Shard};
use crate::envelope::Message;
use crate::transition::Transition;
use crate::{ClaimId, Fact, Facts, Meta, Phase, Rev, Row, Run, RunId, SLOTS, Seq, ShardId};

impl Shard {
    /// Appends the transition's facts to the run's journal as one row and folds them.
    pub(super) fn transact(&mut self, id: RunId, transition: Transition) {
        self.messages.extend(transition.messages);
        if transition.facts.is_empty() {
            return;
        }
        let seq = self.head.next();
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let running = claims(&resident.run);
        let meta = Meta { seq, at: self.now };
        for fact in &transition.facts {
            resident.run.apply(fact, meta);
        }
        let rev = Rev(resident.run.rev.0 + 1);
        resident.run.rev = rev;
        let row = Row {
            seq,
            run: id,
            rev,
            prior: resident.head,
            at: self.now,
            facts: transition.facts,
        };
        resident.head = seq;
        self.push_row(id, row);
        self.settle(id);
        self.tell_scheduled(id);
        self.tell_revoked(id, running.as_slice());
    }

    /// Begins a run with its first row.
    pub(super) fn begin(&mut self, id: RunId, facts: Facts) {
        let seq = self.head.next();
        let row = Row {
            seq,
            run: id,
            rev: Rev(1),
            prior: Seq(0),
            at: self.now,
            facts,
        };
        match Run::begin(&row) {
            Ok(run) => {
                self.runs.insert(id, Box::new(Resident::new(run, seq)));
                self.push_row(id, row);
                self.settle(id);
                self.tell_scheduled(id);
            }
            Err(bad) => self.bug = Some(alloc::format!("{id}: {bad}")),
        }
    }

    /// Adds facts to the run's row in the batch that is being gathered, or makes a row of their own. A claim that
    /// follows from what was just recorded costs no row.
    pub(super) fn transact_merged(&mut self, id: RunId, facts: Facts) {
        let number = self.batch_number;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let row = match resident.gathering {
            Some((gathering, index)) if gathering == number => self.batch.rows.get_mut(index),
            _ => None,
        };
        let Some(row) = row else {
            self.transact(
                id,
                Transition {
                    facts,
                    messages: alloc::vec::Vec::new(),
                },
            );
            return;
        };
        let meta = Meta {
            seq: row.seq,
            at: row.at,
        };
        for fact in &facts {
            resident.run.apply(fact, meta);
        }
        row.facts.extend(facts);
        self.settle(id);
    }

    fn push_row(&mut self, id: RunId, row: Row) {
        debug_assert_eq!(row.seq, self.head.next(), "positions are dense");
        self.head = row.seq;
        if let Some(resident) = self.runs.get_mut(&id) {
            resident.gathering = Some((self.batch_number, self.batch.rows.len()));
            if !resident.dirty {
                resident.dirty = true;
                self.dirty.push(id);
            }
        }
        self.batch.rows.push(row);
    }

    /// Checks the run and brings ready work, deadlines and keys in line with it.
    pub(super) fn settle(&mut self, id: RunId) {
        let now = self.now;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        if let Err(broken) = resident.run.check() {
            self.bug = Some(alloc::format!("{id} at rev {}: {broken}", resident.run.rev.0));
            return;
        }
        let lane = match resident.lane {
            Some(lane) if self.ready.lane_key(lane).fingerprint == resident.run.fingerprint => lane,
            _ => self.ready.lane(&resident.lane_key()),
        };
        resident.lane = Some(lane);
        let spec = &resident.run.started.spec;
        let gate = spec
            .concurrency
            .as_ref()
            .map(|concurrency| (&*spec.namespace, concurrency));
        resident.places.resize(resident.run.cursors.len(), Place::None);
        for index in 0..resident.places.len() {
            let (before, after) = (resident.places[index], resident.wanted_place(index, lane, now));
            if before == after {
                continue;
            }
            resident.places[index] = after;
            match before {
                Place::Ready(lane, order) => self.ready.remove(lane, order, gate),
                Place::Running => gate
                    .iter()
                    .for_each(|(namespace, concurrency)| self.ready.leave(namespace, concurrency)),
                Place::None => {}
            }
            match after {
                Place::Ready(lane, order) => self.ready.insert(lane, order, gate),
                Place::Running => gate
                    .iter()
                    .for_each(|(namespace, concurrency)| self.ready.enter(namespace, concurrency)),
                Place::None => {}
            }
        }
        let due = resident.due(now);
        match (resident.armed, due) {
            (Some(armed), Some(due)) if due >= armed => {}
            (armed, due) => {
                armed.iter().for_each(|armed| self.deadlines.disarm(*armed, id));
                due.iter().for_each(|due| self.deadlines.arm(*due, id));
                resident.armed = due;
            }
        }
        self.settle_key(id);
        self.settle_end(id);
    }

    fn settle_key(&mut self, id: RunId) {
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let started = &resident.run.started;
        let Some(key) = &started.spec.key else { return };
        if let Some(reservation) = started.reservation {
            // The key is held by a record elsewhere, which is told when this run has left the scope.
            let inside = key.occupied.contains(resident.run.status());
            if !inside && (resident.occupies || resident.run.end.is_some()) {
                self.messages.push_back(Message::KeyFreed { reservation });
            }
            resident.occupies = inside;
            return;
        }
        let occupies = resident.run.occupies_key();
        if occupies == resident.occupies {
            return;
        }
        let identity = started.spec.key_identity(&key.key);
        let holder = self.keys.get(&identity).copied();
        if occupies && holder.is_none() {
            self.keys.insert(identity, id);
        } else if !occupies && holder == Some(id) {
            self.keys.remove(&identity);
        }
        // A key that another run took meanwhile is not taken back.
        resident.occupies = occupies && holder.is_none();
    }

    fn settle_end(&mut self, id: RunId) {
        if self.watchers.is_empty() {
            return;
        }
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        if resident.run.end.is_some()
            && let Some(tickets) = self.watchers.remove(&id)
        {
            let ending = super::execute::ending(&resident.run);
            for ticket in tickets {
                self.answer(Some(ticket), super::Answer::Ended(Box::new(ending.clone())));
            }
        }
    }

    /// Tells the notifier of attempts that the last row of the run made claimable.
    fn tell_scheduled(&mut self, id: RunId) {
        if !self.config.notify {
            return;
        }
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        let queue = resident.run.started.spec.queue.clone();
        let Some(row) = self.batch.rows.last() else { return };
        let intents: alloc::vec::Vec<_> = row
            .facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Scheduled(intent) => Some(intent.clone()),
                _ => None,
            })
            .collect();
        for intent in intents {
            self.emit(Output::Scheduled {
                run: id,
                intent,
                queue: queue.clone(),
            });
        }
    }

    /// Tells workers whose claims ended without them.
    fn tell_revoked(&mut self, id: RunId, before: &[u32]) {
        if before.is_empty() {
            return;
        }
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        let held = claims(&resident.run);
        let lost = |number: &&u32| {
            let answered =
                |cursor: &crate::Cursor| cursor.completion.is_some_and(|done| done.claim == **number);
            !held.contains(*number) && !resident.run.cursors.iter().any(answered)
        };
        let lost: alloc::vec::Vec<u32> = before.iter().filter(lost).copied().collect();
        for number in lost {
            self.emit(Output::Revoked(ClaimId { run: id, number }));
        }
    }

    /// The shard that serves a slot.
    pub(super) fn home(&self, slot: crate::Slot) -> ShardId {
        debug_assert!(slot.0 < SLOTS, "a slot has twelve bits");
        self.config.map.home(slot)
    }
}

/// The numbers of the claims that are held on the run.
fn claims(run: &Run) -> smallvec::SmallVec<[u32; 1]> {
    run.cursors
        .iter()
        .filter_map(|cursor| match &cursor.phase {
            Phase::Claimed(claim) => Some(claim.number),
            _ => None,
        })
        .collect()
}
