//! The desk: workers outside of this process that ask for attempts. Each asks by a seat, which it leaves when it has been
//! given something, or is tired of waiting. Those that can claim the same are of one kind, and known to the shards as one.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_kernel::shard::{Dispatch, Worker, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{Claimant, Refusal, Shard, Str, Timestamp, TokenHash};
use hashbrown::HashMap;
use tokio::sync::oneshot;

/// How long a worker is remembered that says nothing any more: longer than a question waits.
const LINGER_MS: u64 = 180_000;
/// Kinds that are known at once: each is known to every shard.
const KINDS_MAX: usize = 1_000;
/// Questions that wait at once.
const SEATS_MAX: usize = 100_000;
/// Workers that are remembered.
const LATELY_MAX: usize = 10_000;

/// Attempts on their way to the one who asked.
pub(crate) type Handed = (oneshot::Sender<Vec<Dispatch>>, Vec<Dispatch>);

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
}

/// What workers of one kind have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
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
struct Known {
    kind: Kind,
    waiting: VecDeque<Seat>,
    /// When one of them was last here.
    seen: Timestamp,
}

/// One who asked for attempts.
struct Seat {
    number: u64,
    /// The place of its kind.
    kind: usize,
    /// An allocation of its own, by which what was claimed for it is told from what was claimed for others.
    by: Arc<Claimant>,
    most: usize,
    /// How many attempts were claimed for it.
    claimed: usize,
    got: Vec<Dispatch>,
    reply: oneshot::Sender<Vec<Dispatch>>,
}

/// Workers outside of this process.
pub(crate) struct Desk {
    /// By number, beginning behind the local pools; none where a kind was forgotten.
    kinds: Vec<Option<Known>>,
    /// The number of the first kind.
    first: u32,
    /// For whom something was claimed that is not durable yet.
    served: Vec<Seat>,
    next_seat: u64,
    /// Which kind claims first; it moves on, so that none is favoured where caps leave room for few.
    first_kind: usize,
    /// Who was here lately, by the hashes of their tokens.
    lately: HashMap<u128, (Lately, usize)>,
}

/// A worker that was here lately.
#[derive(Clone, Debug)]
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
            next_seat: 0,
            first_kind: 0,
            lately: HashMap::new(),
        }
    }

    fn id(&self, index: usize) -> WorkerId {
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
        let full = |what: &str, limit: usize| Refusal::Busy { what: what.into(), limit: limit as u64 };
        if self.kinds.iter().flatten().map(|known| known.waiting.len()).sum::<usize>() >= SEATS_MAX {
            return Err(full("workers that wait", SEATS_MAX));
        }
        let kind = Kind::of(offer);
        let found = self.kinds.iter().position(|known| known.as_ref().is_some_and(|known| known.kind == kind));
        if found.is_none() && self.kinds.iter().flatten().count() >= KINDS_MAX {
            return Err(full("kinds of workers", KINDS_MAX));
        }
        let index = found.unwrap_or_else(|| self.learn(now, kind));
        self.note(now, offer, index);
        let number = self.next_seat;
        self.next_seat += 1;
        let by = Arc::new((*offer.by).clone());
        let seat = Seat { number, kind: index, by, most: offer.most.max(1), claimed: 0, got: Vec::new(), reply };
        let id = self.id(index);
        let known = self.kinds[index].as_mut().expect("it was just found or made");
        known.seen = now;
        known.waiting.push_back(seat);
        Ok((number, found.is_none().then(|| (id, known.kind.worker()))))
    }

    fn learn(&mut self, now: Timestamp, kind: Kind) -> usize {
        let known = Known { kind, waiting: VecDeque::new(), seen: now };
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
        for known in self.kinds.iter_mut().flatten() {
            if let Some(place) = known.waiting.iter().position(|seat| seat.number == number) {
                known.waiting.remove(place);
                known.seen = now;
            }
        }
    }

    /// Lets those who wait claim, in the order in which they came, as long as there is something.
    pub(crate) fn fill(&mut self, now: Timestamp, mut claim: impl FnMut(WorkerId, &Arc<Claimant>, usize) -> usize) {
        let kinds = self.kinds.len();
        for turn in 0..kinds {
            let index = (self.first_kind + turn) % kinds;
            let id = self.id(index);
            let Some(known) = &mut self.kinds[index] else { continue };
            while let Some(mut seat) = known.waiting.pop_front() {
                if seat.reply.is_closed() {
                    continue;
                }
                seat.claimed = claim(id, &seat.by, seat.most);
                if seat.claimed == 0 {
                    known.waiting.push_front(seat);
                    break;
                }
                known.seen = now;
                self.served.push(seat);
            }
        }
        self.first_kind = if kinds == 0 { 0 } else { (self.first_kind + 1) % kinds };
    }

    /// Whether somebody waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.kinds.iter().flatten().any(|known| !known.waiting.is_empty())
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
        if !seat.got.is_empty() {
            handed.push((seat.reply, seat.got));
        } else if let Some(Some(known)) = self.kinds.get_mut(seat.kind) {
            known.waiting.push_front(seat);
        }
    }

    /// Everybody goes: there is nothing more to come.
    pub(crate) fn close(&mut self) {
        self.kinds.clear();
        self.served.clear();
    }

    /// Forgets kinds of which nobody has asked for long; the shards are to forget them, too.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) -> Vec<WorkerId> {
        self.lately.retain(|_, (lately, _)| now.since(lately.seen) < LINGER_MS);
        let is_idle = |known: &Known| known.waiting.is_empty() && now >= known.seen.after(LINGER_MS);
        // One for whom something is on its way comes back to its place if it is lost.
        let is_served = |index: usize| self.served.iter().any(|seat| seat.kind == index);
        let idle = self.kinds.iter().enumerate().filter(|(_, known)| known.as_ref().is_some_and(is_idle));
        let idle: Vec<usize> = idle.map(|(index, _)| index).filter(|index| !is_served(*index)).collect();
        for index in &idle {
            self.kinds[*index] = None;
        }
        idle.into_iter().map(|index| self.id(index)).collect()
    }

    /// When a kind may have to be forgotten.
    pub(crate) fn next_idle(&self) -> Option<Timestamp> {
        let is_served = |index: usize| self.served.iter().any(|seat| seat.kind == index);
        let known = self.kinds.iter().enumerate().filter_map(|(index, known)| Some((index, known.as_ref()?)));
        let resting = known.filter(|(index, known)| known.waiting.is_empty() && !is_served(*index));
        resting.map(|(_, known)| known.seen.after(LINGER_MS)).min()
    }

    /// Makes all kinds known to a shard.
    pub(crate) fn join(&self, shard: &mut Shard) {
        self.workers().for_each(|(id, worker)| shard.join(id, worker));
    }
}

#[cfg(test)]
mod tests {
    use abide_kernel::Fingerprint;

    use super::*;

    fn offer(workflow: &str) -> Offer {
        Offer {
            namespace: Some("shop".into()),
            queues: vec!["default".into()],
            definitions: vec![Definition {
                workflow: workflow.into(),
                version: 1,
                fingerprint: Fingerprint(1),
                first_step: "first".into(),
            }],
            by: Claimant::new("hand".into(), TokenHash(7), 30_000, None),
            most: 1,
        }
    }

    fn sit(desk: &mut Desk, now: u64, workflow: &str) -> Result<u64, Refusal> {
        let (reply, receiver) = oneshot::channel();
        // One who waits holds the other end.
        std::mem::forget(receiver);
        desk.sit(Timestamp(now as i64), &offer(workflow), reply).map(|(seat, _)| seat)
    }

    /// What anybody may make known is bounded, and those who are known still find a seat.
    #[test]
    fn there_is_room_for_so_many_kinds() {
        let mut desk = Desk::new(2);
        for number in 0..KINDS_MAX {
            assert!(sit(&mut desk, 0, &format!("workflow {number}")).is_ok());
        }
        assert!(matches!(sit(&mut desk, 0, "one more"), Err(Refusal::Busy { .. })));
        assert!(sit(&mut desk, 0, "workflow 0").is_ok());
    }

    /// D25: a worker that says something is here, also while it asks for nothing; one that does not is forgotten.
    #[test]
    fn whoever_reports_is_not_forgotten() {
        let mut desk = Desk::new(0);
        let seat = sit(&mut desk, 0, "mail").expect("a seat");
        desk.stand_up(Timestamp(0), seat);
        let later = |ms: u64| Timestamp(0).after(ms);
        desk.heard(later(LINGER_MS - 1), TokenHash(7));
        assert!(desk.forget_idle(later(LINGER_MS)).is_empty());
        assert_eq!(desk.lately(later(LINGER_MS)).len(), 1);
        assert_eq!(desk.next_idle(), Some(later(2 * LINGER_MS - 1)));
        assert_eq!(desk.forget_idle(later(2 * LINGER_MS)), [WorkerId(0)]);
        assert!(desk.lately(later(2 * LINGER_MS)).is_empty() && desk.next_idle().is_none());
    }

    /// Where there is room for one at a time, it is not always the same kind's.
    #[test]
    fn kinds_take_turns() {
        let mut desk = Desk::new(0);
        for workflow in ["mail", "post", "mail", "post"] {
            sit(&mut desk, 0, workflow).expect("a seat");
        }
        let mut firsts = Vec::new();
        for _ in 0..2 {
            let mut room = 1;
            desk.fill(Timestamp(0), |worker, _, _| {
                firsts.extend((room > 0).then_some(worker));
                std::mem::take(&mut room)
            });
        }
        assert_eq!(firsts, [WorkerId(0), WorkerId(1)]);
    }
}
