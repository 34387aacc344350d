//! The desk: workers outside of this process that ask for attempts. Each asks by a seat, which it leaves when it has been
//! given something, or is tired of waiting. Those that can claim the same are of one kind, and known to the shards as one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abide_kernel::shard::{Dispatch, Worker, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{Claimant, Refusal, Shard, Str, Timestamp, TokenHash};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// How long a worker is remembered that says nothing any more: longer than a question waits.
const LINGER_MS: u64 = 180_000;
/// Kinds of one namespace that are known at once: each is known to every shard.
const KINDS_MAX: usize = 1_000;
/// Kinds of all namespaces that are known at once.
const KINDS_ALL_MAX: usize = 20 * KINDS_MAX;
/// Questions of one namespace that wait at once.
const SEATS_MAX: usize = 50_000;
/// Questions of all namespaces that wait at once.
const SEATS_ALL_MAX: usize = 4 * SEATS_MAX;
/// Workers that are remembered.
const LATELY_MAX: usize = 10_000;

fn full(what: &str, limit: usize) -> Refusal {
    Refusal::Busy { what: what.into(), limit: limit as u64 }
}

/// Attempts on their way to the one who asked.
pub(crate) type Handed = (Reply, Vec<Dispatch>);

/// Where attempts go.
pub(crate) enum Reply {
    /// To someone who asked here.
    Here(oneshot::Sender<Vec<Dispatch>>),
    /// To someone who asked at the desk of another node.
    There { process: Str, seat: u64 },
}

impl Reply {
    fn is_closed(&self) -> bool {
        matches!(self, Self::Here(reply) if reply.is_closed())
    }
}

/// A seat that waits here is offered to a node that has something for it.
pub(crate) struct Promise {
    pub(crate) process: Str,
    pub(crate) seat: u64,
    pub(crate) kind: Kind,
    pub(crate) by: Arc<Claimant>,
    pub(crate) most: usize,
}

/// What a worker outside can execute, who it is, and how much it takes.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The namespace that it serves; all of them if there is none.
    pub namespace: Option<Str>,
    /// The queues that it serves.
    pub queues: Vec<Str>,
    /// The definitions that it has.
    pub definitions: Vec<Definition>,
    /// Who claims: its name, the hash of its token, and how long its leases last.
    pub by: Arc<Claimant>,
    /// How many attempts it takes now.
    pub most: usize,
    /// Whether it waits when there is nothing at once.
    pub waits: bool,
}

/// What workers of one kind have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    namespace: Option<Str>,
    queues: Vec<Str>,
    definitions: Vec<Definition>,
}

impl Kind {
    fn of(offer: &Offer) -> Self {
        let mut kind = Self {
            namespace: offer.namespace.clone(),
            queues: offer.queues.clone(),
            definitions: offer.definitions.clone(),
        };
        kind.queues.sort();
        kind.queues.dedup();
        kind.definitions.sort_by(|one, other| (&one.workflow, one.version).cmp(&(&other.workflow, other.version)));
        kind.definitions.dedup();
        kind
    }

    fn worker(&self) -> Worker {
        let mut worker = Worker::new(self.queues.clone(), self.definitions.clone());
        worker.namespace.clone_from(&self.namespace);
        worker
    }
}

/// A kind that is known to the shards, and its workers that wait.
pub(crate) struct Known {
    kind: Kind,
    waiting: VecDeque<Seat>,
    /// When one of them was last here.
    seen: Timestamp,
    /// Whether this node told another with such workers that it has something for them, by process.
    elsewhere: BTreeMap<Str, bool>,
    /// Nodes that have something for them, in the order in which they said so.
    asked_by: VecDeque<Str>,
    /// Whose turn it is, if there is something here and elsewhere: the others'.
    theirs: bool,
}

impl Known {
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether one of them is here, or was lately.
    pub(crate) fn is_here(&self, now: Timestamp) -> bool {
        !self.waiting.is_empty() || self.seen.0 > 0 && now < self.seen.after(LINGER_MS)
    }
}

/// One who asked for attempts.
pub(crate) struct Seat {
    number: u64,
    /// The place of its kind.
    kind: usize,
    /// An allocation of its own, by which what was claimed for it is told from what was claimed for others.
    by: Arc<Claimant>,
    most: usize,
    /// How many attempts were claimed for it.
    claimed: usize,
    got: Vec<Dispatch>,
    waits: bool,
    reply: Reply,
}

impl Seat {
    /// Whether it waits when there is nothing.
    pub(crate) fn waits(&self) -> bool {
        self.waits && !self.reply.is_closed()
    }

    pub(crate) fn into_reply(self) -> Reply {
        self.reply
    }
}

/// One who was offered to another node.
struct Promised {
    process: Str,
    seat: Seat,
    /// Whether it was already so when the node last looked who lives.
    is_old: bool,
}

/// Workers outside of this process.
pub(crate) struct Desk {
    /// By number, beginning behind the local pools; none where a kind was forgotten.
    kinds: Vec<Option<Known>>,
    /// The number of the first kind.
    first: u32,
    /// For whom something was claimed that is not durable yet.
    served: Vec<Seat>,
    /// Who was offered to another node, and waits for its answer.
    promised: Vec<Promised>,
    next_seat: u64,
    /// Whether other nodes were told of kinds that ask here.
    pub(crate) told_kinds: bool,
    /// Which kind claims first; it moves on, so that none is favoured where caps leave room for few.
    first_kind: usize,
    /// Who was here lately, by the hashes of their tokens.
    lately: HashMap<u128, (Lately, usize)>,
}

/// A worker that was here lately.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lately {
    /// The namespace that it serves; all of them if there is none.
    pub namespace: Option<Str>,
    /// Its name.
    pub name: Str,
    /// The queues that it serves.
    pub queues: Vec<Str>,
    /// The definitions that it has.
    pub definitions: Vec<Definition>,
    /// When it was here.
    pub seen: Timestamp,
}

impl Desk {
    pub(crate) fn new(pools: usize) -> Self {
        Self {
            kinds: Vec::new(),
            first: pools as u32,
            served: Vec::new(),
            promised: Vec::new(),
            next_seat: 0,
            told_kinds: false,
            first_kind: 0,
            lately: HashMap::new(),
        }
    }

    pub(crate) fn id(&self, index: usize) -> WorkerId {
        WorkerId(self.first + index as u32)
    }

    /// The kinds that are known, by the numbers under which they join a shard.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (WorkerId, Worker)> {
        let known = self.kinds.iter().enumerate().filter_map(|(index, known)| Some((index, known.as_ref()?)));
        known.map(|(index, known)| (self.id(index), known.kind.worker()))
    }

    /// What can be executed by those who are here, or were lately.
    pub(crate) fn services(&self, namespace: &Str) -> Vec<(Vec<Str>, Vec<Definition>)> {
        let known = self.kinds.iter().flatten().map(|known| &known.kind);
        let serves = |kind: &&Kind| kind.namespace.as_ref().is_none_or(|known| known == namespace);
        known.filter(serves).map(|kind| (kind.queues.clone(), kind.definitions.clone())).collect()
    }

    /// The newest version of a workflow that workers of a namespace have.
    pub(crate) fn newest(&self, namespace: &Str, workflow: &Str) -> Option<u32> {
        let theirs = self.services(namespace).into_iter().flat_map(|(_, definitions)| definitions);
        theirs.filter(|known| known.workflow == *workflow).map(|known| known.version).max()
    }

    /// Who was here lately for a namespace, by name.
    pub(crate) fn lately_of(&self, now: Timestamp, namespace: &Str) -> Vec<Lately> {
        let mut here = self.lately(now);
        here.retain(|lately| lately.namespace.as_ref() == Some(namespace));
        here
    }

    /// Who was here lately, by name.
    pub(crate) fn lately(&self, now: Timestamp) -> Vec<Lately> {
        let here = self.lately.values().map(|(lately, _)| lately).filter(|lately| now.since(lately.seen) < LINGER_MS);
        let mut here: Vec<Lately> = here.cloned().collect();
        here.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        here
    }

    /// A worker says something of what it holds: it is here, and so is its kind.
    pub(crate) fn heard(&mut self, now: Timestamp, token: TokenHash) {
        let Some((lately, kind)) = self.lately.get_mut(&token.0) else { return };
        lately.seen = now;
        if let Some(Some(known)) = self.kinds.get_mut(*kind) {
            known.seen = now;
        }
    }

    /// Takes a seat. Its number, and the kind that the shards must get to know, if it is new.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn sit(
        &mut self,
        now: Timestamp,
        offer: &Offer,
        reply: oneshot::Sender<Vec<Dispatch>>,
    ) -> Result<(u64, Option<(WorkerId, Worker)>), Refusal> {
        let (mut all, mut theirs) = (0, 0);
        for known in self.kinds.iter().flatten() {
            all += known.waiting.len();
            theirs += if known.kind.namespace == offer.namespace { known.waiting.len() } else { 0 };
        }
        if theirs >= SEATS_MAX {
            return Err(full("workers of one namespace that wait", SEATS_MAX));
        }
        if all >= SEATS_ALL_MAX {
            return Err(full("workers that wait", SEATS_ALL_MAX));
        }
        let (index, is_new) = self.find_or_learn(now, Kind::of(offer))?;
        self.note(now, offer, index);
        let number = self.next_seat;
        self.next_seat += 1;
        let by = Arc::new((*offer.by).clone());
        let (most, waits, reply) = (offer.most.max(1), offer.waits, Reply::Here(reply));
        let seat = Seat { number, kind: index, by, most, claimed: 0, got: Vec::new(), waits, reply };
        let id = self.id(index);
        let known = self.kinds[index].as_mut().expect("it was just found or made");
        known.seen = now;
        known.waiting.push_back(seat);
        Ok((number, is_new.then(|| (id, known.kind.worker()))))
    }

    /// The place of a kind, and whether it is new.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn find_or_learn(&mut self, now: Timestamp, kind: Kind) -> Result<(usize, bool), Refusal> {
        if let Some(index) = self.find(&kind) {
            return Ok((index, false));
        }
        let (mut all, mut theirs) = (0, 0);
        for known in self.kinds.iter().flatten() {
            all += 1;
            theirs += usize::from(known.kind.namespace == kind.namespace);
        }
        // Whoever makes up kinds must not keep the workers of others out.
        if theirs >= KINDS_MAX {
            return Err(full("kinds of workers in one namespace", KINDS_MAX));
        }
        if all >= KINDS_ALL_MAX {
            return Err(full("kinds of workers", KINDS_ALL_MAX));
        }
        Ok((self.learn(now, kind), true))
    }

    fn find(&self, kind: &Kind) -> Option<usize> {
        self.kinds.iter().position(|known| known.as_ref().is_some_and(|known| known.kind == *kind))
    }

    /// The kinds that are known, by their places.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, &Known)> {
        self.kinds.iter().enumerate().filter_map(|(index, known)| Some((index, known.as_ref()?)))
    }

    pub(crate) fn worker(&self, index: usize) -> Worker {
        self.kinds[index].as_ref().map(|known| known.kind.worker()).unwrap_or_default()
    }

    /// Such workers ask at the desk of another node, which is told anew of what waits for them.
    pub(crate) fn note_elsewhere(&mut self, index: usize, process: &Str) {
        if let Some(known) = &mut self.kinds[index] {
            known.elsewhere.insert(process.clone(), false);
        }
    }

    /// Forgets which nodes have workers of a kind, and what they have for them, unless they are to be kept.
    pub(crate) fn forget_elsewhere(&mut self, keep: impl Fn(&Kind, &Str) -> bool) {
        for known in self.kinds.iter_mut().flatten() {
            let kind = &known.kind;
            known.elsewhere.retain(|process, _| keep(kind, process));
            known.asked_by.retain(|process| keep(kind, process));
        }
    }

    /// Another node has something for a kind.
    pub(crate) fn asked(&mut self, kind: &Kind, process: &Str) {
        let known = self.find(kind).and_then(|index| self.kinds[index].as_mut());
        if let Some(known) = known.filter(|known| !known.asked_by.contains(process)) {
            known.asked_by.push_back(process.clone());
        }
    }

    /// Nodes that are to be told that there is something for a kind of theirs.
    pub(crate) fn untold(&mut self, has_work: &mut impl FnMut(WorkerId) -> bool) -> Vec<(Str, Kind)> {
        let mut told = Vec::new();
        for index in 0..self.kinds.len() {
            let id = self.id(index);
            let Some(known) = &mut self.kinds[index] else { continue };
            if known.elsewhere.values().any(|told| !told) && has_work(id) {
                for (process, is_told) in known.elsewhere.iter_mut().filter(|(_, told)| !**told) {
                    *is_told = true;
                    told.push((process.clone(), known.kind.clone()));
                }
            }
        }
        told
    }

    /// A node takes what it was told of: it may be told again.
    pub(crate) fn answered(&mut self, kind: &Kind, process: &Str) -> Option<WorkerId> {
        let index = self.find(kind)?;
        let known = self.kinds[index].as_mut()?;
        known.elsewhere.insert(process.clone(), false);
        Some(self.id(index))
    }

    /// Something was claimed for one who asked elsewhere.
    pub(crate) fn serve(&mut self, id: WorkerId, by: Arc<Claimant>, claimed: usize, reply: Reply) {
        if claimed == 0 {
            return;
        }
        let (number, kind) = (self.next_seat, (id.0 - self.first) as usize);
        self.next_seat += 1;
        self.served.push(Seat { number, kind, by, most: claimed, claimed, got: Vec::new(), waits: false, reply });
    }

    /// One who was offered to another node, and is not any more.
    pub(crate) fn take_promised(&mut self, number: u64) -> Option<Seat> {
        let place = self.promised.iter().position(|promised| promised.seat.number == number)?;
        Some(self.promised.swap_remove(place).seat)
    }

    /// Takes back what was offered to nodes that are gone, and what has not been answered from one look at the nodes to the
    /// next: the offer or its answer was lost. An answer that comes all the same finds nobody, and goes back.
    pub(crate) fn take_back(&mut self, is_gone: impl Fn(&Str) -> bool) {
        let all = std::mem::take(&mut self.promised).into_iter();
        let (back, kept): (Vec<Promised>, _) = all.partition(|promised| promised.is_old || is_gone(&promised.process));
        self.promised = kept;
        self.promised.iter_mut().for_each(|promised| promised.is_old = true);
        back.into_iter().for_each(|promised| self.sit_again(promised.seat));
    }

    /// One for whom there was nothing waits again, before the others.
    pub(crate) fn sit_again(&mut self, seat: Seat) {
        if let Some(Some(known)) = self.kinds.get_mut(seat.kind) {
            known.waiting.push_front(seat);
        }
    }

    fn learn(&mut self, now: Timestamp, kind: Kind) -> usize {
        let (waiting, asked_by, elsewhere) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        let known = Known { kind, waiting, seen: now, elsewhere, asked_by, theirs: false };
        let free = self.kinds.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.kinds.push(None);
            self.kinds.len() - 1
        });
        self.kinds[index] = Some(known);
        index
    }

    fn note(&mut self, now: Timestamp, offer: &Offer, kind: usize) {
        if self.lately.len() >= LATELY_MAX && !self.lately.contains_key(&offer.by.token.0) {
            self.lately.retain(|_, (lately, _)| now.since(lately.seen) < LINGER_MS);
            if self.lately.len() >= LATELY_MAX {
                return;
            }
        }
        let lately = Lately {
            namespace: offer.namespace.clone(),
            name: offer.by.owner.clone(),
            queues: offer.queues.clone(),
            definitions: offer.definitions.clone(),
            seen: now,
        };
        self.lately.insert(offer.by.token.0, (lately, kind));
    }

    /// Whether nothing was claimed for a seat yet.
    pub(crate) fn waits(&self, number: u64) -> bool {
        self.kinds.iter().flatten().any(|known| known.waiting.iter().any(|seat| seat.number == number))
    }

    /// Nobody sits there any more.
    pub(crate) fn stand_up(&mut self, now: Timestamp, number: u64) {
        self.promised.retain(|promised| promised.seat.number != number);
        for known in self.kinds.iter_mut().flatten() {
            if let Some(place) = known.waiting.iter().position(|seat| seat.number == number) {
                known.waiting.remove(place);
                known.seen = now;
            }
        }
    }

    /// Lets those who wait claim, in the order in which they came, as long as there is something, here or at nodes that said
    /// so, in turn. Gives what is to be said to those.
    pub(crate) fn fill(
        &mut self,
        now: Timestamp,
        mut claim: impl FnMut(WorkerId, &Arc<Claimant>, usize) -> usize,
    ) -> Vec<Promise> {
        let kinds = self.kinds.len();
        let mut promises = Vec::new();
        for turn in 0..kinds {
            let index = (self.first_kind + turn) % kinds;
            let id = self.id(index);
            let Some(known) = &mut self.kinds[index] else { continue };
            while let Some(mut seat) = known.waiting.pop_front() {
                if seat.reply.is_closed() {
                    continue;
                }
                let theirs = known.theirs && !known.asked_by.is_empty();
                seat.claimed = if theirs { 0 } else { claim(id, &seat.by, seat.most) };
                known.theirs = seat.claimed > 0;
                known.seen = now;
                if seat.claimed > 0 {
                    self.served.push(seat);
                } else if let Some(process) = known.asked_by.pop_front() {
                    let (number, by, most) = (seat.number, seat.by.clone(), seat.most);
                    promises.push(Promise {
                        process: process.clone(),
                        seat: number,
                        kind: known.kind.clone(),
                        by,
                        most,
                    });
                    self.promised.push(Promised { process, seat, is_old: false });
                } else {
                    known.waiting.push_front(seat);
                    break;
                }
            }
        }
        self.first_kind = if kinds == 0 { 0 } else { (self.first_kind + 1) % kinds };
        promises
    }

    /// Whether somebody waits for whom there may be something: here, if anything waits here, or elsewhere.
    pub(crate) fn is_waiting(&self, has_work: bool) -> bool {
        let may_get = |known: &Known| !known.waiting.is_empty() && (has_work || !known.asked_by.is_empty());
        self.kinds.iter().flatten().any(may_get)
    }

    /// An attempt is durably claimed. It leaves with the others of its seat; one whose seat is gone comes back.
    pub(crate) fn deliver(&mut self, dispatch: Box<Dispatch>, handed: &mut Vec<Handed>) -> Option<Box<Dispatch>> {
        let Some(index) = self.served.iter().position(|seat| Arc::ptr_eq(&seat.by, &dispatch.by)) else {
            return Some(dispatch);
        };
        self.served[index].got.push(*dispatch);
        self.leave_if_whole(index, handed);
        None
    }

    /// What was claimed for a seat was dropped with its shard.
    pub(crate) fn lost(&mut self, by: &Arc<Claimant>, handed: &mut Vec<Handed>) {
        if let Some(index) = self.served.iter().position(|seat| Arc::ptr_eq(&seat.by, by)) {
            self.served[index].claimed -= 1;
            self.leave_if_whole(index, handed);
        }
    }

    /// All that was claimed and has not arrived was dropped.
    pub(crate) fn lost_all(&mut self, handed: &mut Vec<Handed>) {
        for index in (0..self.served.len()).rev() {
            self.served[index].claimed = self.served[index].got.len();
            self.leave_if_whole(index, handed);
        }
    }

    fn leave_if_whole(&mut self, index: usize, handed: &mut Vec<Handed>) {
        if self.served[index].got.len() < self.served[index].claimed {
            return;
        }
        let seat = self.served.swap_remove(index);
        let waits = seat.waits && matches!(seat.reply, Reply::Here(_));
        if !seat.got.is_empty() || !waits {
            handed.push((seat.reply, seat.got));
        } else {
            self.sit_again(seat);
        }
    }

    /// Everybody goes: there is nothing more to come.
    pub(crate) fn close(&mut self) {
        self.kinds.clear();
        self.served.clear();
        self.promised.clear();
    }

    /// Forgets kinds of which nobody has asked for long; the shards are to forget them, too.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) -> Vec<WorkerId> {
        self.lately.retain(|_, (lately, _)| now.since(lately.seen) < LINGER_MS);
        let is_idle = |known: &Known| {
            known.waiting.is_empty() && known.elsewhere.is_empty() && now >= known.seen.after(LINGER_MS)
        };
        let is_served = |index: usize| self.is_served(index);
        let idle = self.kinds.iter().enumerate().filter(|(_, known)| known.as_ref().is_some_and(is_idle));
        let idle: Vec<usize> = idle.map(|(index, _)| index).filter(|index| !is_served(*index)).collect();
        for index in &idle {
            self.kinds[*index] = None;
        }
        idle.into_iter().map(|index| self.id(index)).collect()
    }

    /// Whether something is on its way to one of a kind, who comes back to its place if it is lost.
    fn is_served(&self, index: usize) -> bool {
        self.served.iter().chain(self.promised.iter().map(|promised| &promised.seat)).any(|seat| seat.kind == index)
    }

    /// When a kind may have to be forgotten.
    pub(crate) fn next_idle(&self) -> Option<Timestamp> {
        let is_served = |index: usize| self.is_served(index);
        let known = self.kinds.iter().enumerate().filter_map(|(index, known)| Some((index, known.as_ref()?)));
        let rests = |known: &Known| known.waiting.is_empty() && known.elsewhere.is_empty();
        let resting = known.filter(|(index, known)| rests(known) && !is_served(*index));
        resting.map(|(_, known)| known.seen.after(LINGER_MS)).min()
    }

    /// Makes all kinds known to a shard.
    pub(crate) fn join(&self, shard: &mut Shard) {
        self.workers().for_each(|(id, worker)| shard.join(id, worker));
    }
}

#[cfg(test)]
mod tests;
