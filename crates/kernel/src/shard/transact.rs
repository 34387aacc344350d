//! Transact: facts become a row, the run is folded and checked, and the indexes follow.

use alloc::boxed::Box;

use super::resident::{Place, Resident};
use super::{Output, Shard};
use crate::envelope::Message;
use crate::transition::Transition;
use crate::{ClaimId, Fact, Facts, Meta, OpEnd, OpKind, Phase, Rev, Row, Run, RunId, SLOTS, Seq, ShardId, Timestamp};

impl Shard {
    /// Appends the transition's facts to the run's journal as one row and folds them.
    pub(super) fn transact(&mut self, id: RunId, mut transition: Transition) {
        self.messages.extend(core::mem::take(&mut transition.messages));
        if transition.facts.is_empty() {
            return;
        }
        let seq = self.head.next();
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        resident.ride(&mut transition.facts);
        let running = claims(&resident.run);
        let key_freed = resident.run.key_freed;
        let meta = Meta { seq, at: self.now };
        for fact in &transition.facts {
            resident.run.apply(fact, meta);
        }
        let freed = freed_elsewhere(&resident.run, key_freed);
        self.messages.extend(freed);
        let rev = Rev(resident.run.rev.0 + 1);
        resident.run.rev = rev;
        let row = Row { seq, run: id, rev, prior: resident.head, at: self.now, facts: transition.facts };
        resident.head = seq;
        self.push_row(id, row);
        self.settle(id);
        self.tell_scheduled(id);
        self.tell_revoked(id, running.as_slice());
        self.tell_ledger(id);
    }

    /// Begins a run with its first row.
    pub(super) fn begin(&mut self, id: RunId, facts: Facts) {
        let seq = self.head.next();
        let row = Row { seq, run: id, rev: Rev(1), prior: Seq(0), at: self.now, facts };
        match Run::begin(&row) {
            Ok(run) => {
                self.messages.extend(freed_elsewhere(&run, false));
                let before = self.runs.insert(id, Box::new(Resident::new(run, seq)));
                debug_assert!(before.is_none(), "a run begins once");
                self.recent.remember(id);
                self.push_row(id, row);
                self.settle(id);
                self.tell_scheduled(id);
            }
            Err(bad) => self.bug = Some(alloc::format!("{id}: {bad}")),
        }
    }

    /// Adds facts to the run's row in the batch that is being gathered, or makes a row of their own. A claim that
    /// follows from what was just recorded costs no row, unless it had to wait: a row has one instant, and at that of the
    /// row before the attempt could not be claimed.
    pub(super) fn transact_merged(&mut self, id: RunId, facts: Facts) {
        let number = self.batches_sealed;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let row = match resident.gathering {
            Some((gathering, index)) if gathering == number => self.batch.rows.get_mut(index),
            _ => None,
        };
        let Some(row) = row.filter(|row| can_be_at(&resident.run, &facts, row.at)) else {
            self.transact(id, Transition { facts, messages: alloc::vec::Vec::new() });
            return;
        };
        let meta = Meta { seq: row.seq, at: row.at };
        let key_freed = resident.run.key_freed;
        for fact in &facts {
            resident.run.apply(fact, meta);
        }
        row.facts.extend(facts);
        self.messages.extend(freed_elsewhere(&resident.run, key_freed));
        self.settle(id);
    }

    fn push_row(&mut self, id: RunId, row: Row) {
        debug_assert_eq!(row.seq, self.head.next(), "positions are dense");
        self.head = row.seq;
        if let Some(resident) = self.runs.get_mut(&id) {
            resident.gathering = Some((self.batches_sealed, self.batch.rows.len()));
            resident.note_compaction(&row);
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
        let gate = spec.concurrency.as_ref().map(|concurrency| (&*spec.namespace, concurrency));
        resident.places.resize(resident.run.cursors.len(), Place::None);
        for index in 0..resident.places.len() {
            let (before, after) = (resident.places[index], resident.wanted_place(index, lane, now));
            if before == after {
                continue;
            }
            resident.places[index] = after;
            // First where it goes, then where it comes from: a key that passes from waiting to running has no room in between.
            match after {
                Place::Ready(lane, order) => self.ready.insert(lane, order, gate),
                Place::Running(lane) => {
                    self.tally.enter(&self.ready, lane);
                    gate.iter().for_each(|(namespace, concurrency)| self.ready.enter(namespace, concurrency));
                }
                Place::None => {}
            }
            match before {
                Place::Ready(lane, order) => self.ready.remove(lane, order, gate),
                Place::Running(lane) => {
                    self.tally.leave(&self.ready, lane);
                    gate.iter().for_each(|(namespace, concurrency)| self.ready.leave(namespace, concurrency));
                }
                Place::None => {}
            }
        }
        let due = resident.due(now);
        // Only a lease moves with every step, so only a claimed run keeps an entry that comes too early: a parked one would
        // be brought back into memory by it, for nothing.
        let held = resident.places.iter().any(|place| matches!(place, Place::Running(_)));
        match (resident.armed, due) {
            (Some(armed), Some(due)) if due == armed || (held && due > armed) => {}
            (armed, due) => {
                armed.iter().for_each(|armed| self.deadlines.disarm(*armed, id));
                due.iter().for_each(|due| self.deadlines.arm(*due, id));
                resident.armed = due;
            }
        }
        self.find_orphans();
        self.settle_key(id);
        self.settle_watchers(id);
    }

    /// Takes a run out of the ready work, because it leaves the shard.
    pub(super) fn unplace(&mut self, id: RunId) {
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let places = core::mem::take(&mut resident.places);
        let gate = resident.gate();
        for place in places {
            match place {
                Place::Ready(lane, order) => self.ready.remove(lane, order, gate),
                Place::Running(lane) => {
                    self.tally.leave(&self.ready, lane);
                    gate.iter().for_each(|(namespace, concurrency)| self.ready.leave(namespace, concurrency));
                }
                Place::None => {}
            }
        }
    }

    fn settle_key(&mut self, id: RunId) {
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let occupies = resident.run.occupies_key();
        if occupies == resident.occupies {
            return;
        }
        resident.occupies = occupies;
        let Some(identity) = resident.key_identity() else {
            return;
        };
        if occupies {
            // Whoever starts a run has looked first, and a freed key is never taken back.
            debug_assert!(!self.keys.contains_key(&identity), "a key has one holder");
            self.keys.insert(identity, id);
        } else {
            self.keys.remove(&identity);
        }
    }

    /// Tells those who watch the run what they wait for, if it has come.
    pub(super) fn settle_watchers(&mut self, id: RunId) {
        if self.watchers.is_empty() {
            return;
        }
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        let run = &resident.run;
        // Most rows of most runs say nothing that anybody waits for.
        if run.end.is_none() && run.updates.is_empty() {
            return;
        }
        let Some(watching) = self.watchers.get_mut(&id) else {
            return;
        };
        let mut told = alloc::vec::Vec::new();
        watching.retain(|(ticket, watched)| match watched.answer(run) {
            Some(answer) => {
                told.push((*ticket, answer));
                false
            }
            None => true,
        });
        if watching.is_empty() {
            self.watchers.remove(&id);
        }
        for (ticket, answer) in told {
            self.answer(Some(ticket), answer);
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
            self.emit(Output::Scheduled { run: id, intent, queue: queue.clone() });
        }
    }

    /// Tells a step that executes what the last row of its run says of its ledger, beyond what it said itself.
    fn tell_ledger(&mut self, id: RunId) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        let facts = self.batch.rows.last().map_or(&[][..], |row| &row.facts);
        let news = facts.iter().filter_map(|fact| match fact {
            Fact::Resulted(resulted) => match resulted.end {
                OpEnd::Signal(_)
                | OpEnd::Update(_)
                | OpEnd::Elapsed
                | OpEnd::Child
                | OpEnd::Decision
                | OpEnd::Reopened => Some(resulted.op),
                OpEnd::Value(_) | OpEnd::Error(_) | OpEnd::Withdrawn => None,
            },
            Fact::Intended(intended) if matches!(intended.kind, OpKind::Child { .. }) => Some(intended.op),
            Fact::Resolved(resolved) => Some(resolved.op),
            _ => None,
        });
        let told: alloc::vec::Vec<Output> = news
            .filter_map(|op| {
                let entry = resident.run.op(op)?;
                match &resident.run.cursors.get(usize::from(entry.cursor))?.phase {
                    Phase::Claimed(claim) => Some(Output::Told {
                        claim: ClaimId { run: id, number: claim.number },
                        id: op,
                        op: Box::new(entry.clone()),
                    }),
                    _ => None,
                }
            })
            .collect();
        for output in told {
            self.emit(output);
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
        let facts = self.batch.rows.last().map_or(&[][..], |row| &row.facts);
        let lost = |number: &&u32| {
            // A worker that spoke itself knows.
            let spoke = |fact: &Fact| match fact {
                Fact::Completed(completed) => completed.claim == **number,
                Fact::Failed(failed) => failed.claim == **number,
                Fact::Returned(returned) => returned.claim == **number,
                _ => false,
            };
            !held.contains(*number) && !facts.iter().any(spoke)
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

/// Word to the record that holds the run's key elsewhere, when the run has just left the statuses that occupy it.
fn freed_elsewhere(run: &Run, before: bool) -> Option<Message> {
    let reservation = run.started.reservation.filter(|_| run.key_freed && !before)?;
    Some(Message::KeyFreed { reservation })
}

/// Whether what facts claim could be claimed at an instant.
fn can_be_at(run: &Run, facts: &Facts, at: Timestamp) -> bool {
    facts.iter().all(|fact| match fact {
        Fact::Claimed(claimed) => match run.cursors.get(usize::from(claimed.cursor)).map(|cursor| &cursor.phase) {
            Some(Phase::Scheduled { visible_at, .. }) => *visible_at <= at,
            _ => true,
        },
        _ => true,
    })
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
