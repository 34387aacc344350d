//! Desks of other nodes: workers that ask one node are given what another has. Each node tells the others which kinds of
//! workers ask at its desk; whoever has something for one of them says so, once; the next of that kind takes a seat there.
//! Letters may be lost: kinds are told again with every renewal, and so is what waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use abide_kernel::shard::{Dispatch, Worker, WorkerId};
use abide_kernel::{Claimant, Shard, Str, Timestamp};
use abide_store::Member;

use crate::core::Core;
use crate::desk::{Desk, Handed, Kind, Promise, Reply};
use crate::link::Letter;

impl Desk {
    /// The kinds that ask here: what other nodes are told.
    pub(crate) fn kinds(&self, now: Timestamp) -> Vec<Kind> {
        let here = |known: &&crate::desk::Known| known.is_here(now);
        self.known().map(|(_, known)| known).filter(here).map(|known| known.kind().clone()).collect()
    }

    /// Another node says which kinds ask at its desk. Those that are new, to be made known to the shards.
    pub(crate) fn learn_kinds(&mut self, process: &Str, kinds: Vec<Kind>) -> Vec<(WorkerId, Worker)> {
        self.forget_elsewhere(|known, other| other != process || kinds.contains(known));
        let mut learned = Vec::new();
        for kind in kinds {
            // None of them was ever here.
            let Ok((index, is_new)) = self.find_or_learn(Timestamp(0), kind) else { continue };
            self.note_elsewhere(index, process);
            if is_new {
                learned.push((self.id(index), self.worker(index)));
            }
        }
        learned
    }

    /// Those nodes are gone; whoever was offered to them waits again.
    pub(crate) fn others_left(&mut self, living: &BTreeSet<Str>) {
        self.forget_elsewhere(|_, process| living.contains(process));
        self.take_back(|process| !living.contains(process));
    }

    /// Something was claimed elsewhere for one who sits here, or nothing was. What nobody waits for comes back.
    pub(crate) fn arrived(&mut self, number: u64, attempts: Vec<Dispatch>, handed: &mut Vec<Handed>) -> Vec<Dispatch> {
        match self.take_promised(number) {
            None => attempts,
            Some(seat) if attempts.is_empty() && seat.waits() => {
                self.sit_again(seat);
                Vec::new()
            }
            Some(seat) => {
                handed.push((seat.into_reply(), attempts));
                Vec::new()
            }
        }
    }
}

impl Core {
    /// Tells the other nodes which kinds of workers ask here, if any ever did.
    pub(crate) fn tell_kinds(&mut self, now: Timestamp) {
        let Some(ring) = &self.ring else { return };
        let kinds = self.desk.kinds(now);
        let none = kinds.is_empty();
        if !none || self.desk.told_kinds {
            ring.tell_all(&Letter::Desk(kinds));
        }
        self.desk.told_kinds = !none;
    }

    /// Who lives is known anew: workers at the desks of others are gone with them.
    pub(crate) fn look_at_desks(&mut self, now: Timestamp) {
        let Some(ring) = &self.ring else { return };
        let living = ring.others().map(|member| member.process.clone()).collect();
        self.desk.others_left(&living);
        self.tell_kinds(now);
    }

    /// Another node says which kinds ask at its desk.
    pub(crate) fn heard_kinds(&mut self, now: Timestamp, from: &Member, kinds: Vec<Kind>) {
        for (id, worker) in self.desk.learn_kinds(&from.process, kinds) {
            self.served_mut().for_each(|shard| shard.join(id, worker.clone()));
        }
        self.fill(now);
    }

    /// Another node has something for a kind.
    pub(crate) fn is_asked(&mut self, now: Timestamp, from: &Member, kind: &Kind) {
        self.desk.asked(kind, &from.process);
        self.fill(now);
    }

    /// Offers seats to the nodes that have something for them.
    pub(crate) fn keep(&mut self, promises: Vec<Promise>) {
        let Some(ring) = &self.ring else { return };
        for Promise { process, seat, kind, by, most } in promises {
            let letter = Letter::Seat { seat, kind: Box::new(kind), by: Box::new((*by).clone()), most };
            // One who is gone is noticed with the next look at the membership, and the seat comes back.
            ring.find(&process).into_iter().for_each(|member| ring.send(member, letter.clone()));
        }
    }

    /// Tells nodes with workers elsewhere that something waits for them here.
    pub(crate) fn tell_work(&mut self, now: Timestamp, busy: &[usize]) {
        let Some(ring) = &self.ring else { return };
        // What is held back by a pause, a cap or a rate is nothing to come for: whoever came would be sent away and told again,
        // without end.
        let (shards, throttle) = (&mut self.shards, &mut self.throttle);
        let mut has_work = |id: WorkerId| {
            let mut busy = busy.iter();
            busy.any(|index| shards[*index].as_mut().is_some_and(|shard: &mut Shard| shard.has_work(now, id, throttle)))
        };
        for (process, kind) in self.desk.untold(&mut has_work) {
            ring.find(&process).into_iter().for_each(|member| ring.send(member, Letter::Work(Box::new(kind.clone()))));
        }
    }

    /// One who asked at another node's desk takes what there is, or learns that there is nothing any more.
    pub(crate) fn seat(&mut self, now: Timestamp, from: &Member, seat: u64, kind: Kind, by: Claimant, most: usize) {
        let serves = self.ring.as_ref().is_some_and(|ring| now < ring.serves_until) && !self.draining;
        let by = Arc::new(by);
        let mut claimed = 0;
        if let Some(id) = self.desk.answered(&kind, &from.process).filter(|_| serves) {
            for shard in self.shards.iter_mut().flatten().filter(|shard| shard.has_ready()) {
                if claimed < most {
                    claimed += shard.claim(now, id, &by, most - claimed, &mut self.throttle);
                }
            }
            self.desk.serve(id, by, claimed, Reply::There { process: from.process.clone(), seat });
        }
        if let (0, Some(ring)) = (claimed, &self.ring) {
            ring.send(from, Letter::Handed { seat, attempts: Vec::new() });
        }
        // Perhaps there is more.
        self.fill(now);
    }

    /// What another node claimed for one who asked here.
    pub(crate) fn attempts_came(&mut self, now: Timestamp, seat: u64, attempts: Vec<Dispatch>) {
        let unwanted = self.desk.arrived(seat, attempts, &mut self.handed);
        unwanted.iter().for_each(|dispatch| self.give_back(now, dispatch));
        self.fill(now);
    }
}
