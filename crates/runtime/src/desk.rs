//! The desk: workers outside of this process that ask for attempts. Each asks by a seat, which it leaves when it has been
//! given something, or is tired of waiting. Those that can claim the same are of one kind, and known to the shards as one.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_kernel::shard::{Dispatch, Worker, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{Claimant, Shard, Str, Timestamp};
use tokio::sync::oneshot;

/// How long a kind is remembered of which nobody asks any more: its workers may all be at work.
const LINGER_MS: u64 = 60_000;

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
    /// Who was here lately.
    lately: Vec<Lately>,
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
        Self { kinds: Vec::new(), first: pools as u32, served: Vec::new(), next_seat: 0, lately: Vec::new() }
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

    /// Who was here lately.
    pub(crate) fn lately(&self) -> &[Lately] {
        &self.lately
    }

    /// Takes a seat. Its number, and the kind that the shards must get to know, if it is new.
    pub(crate) fn sit(
        &mut self,
        now: Timestamp,
        offer: &Offer,
        reply: oneshot::Sender<Vec<Dispatch>>,
    ) -> (u64, Option<(WorkerId, Worker)>) {
        self.note(now, offer);
        let kind = Kind::of(offer);
        let found = self.kinds.iter().position(|known| known.as_ref().is_some_and(|known| known.kind == kind));
        let index = found.unwrap_or_else(|| self.learn(now, kind));
        let number = self.next_seat;
        self.next_seat += 1;
        let by = Arc::new((*offer.by).clone());
        let seat = Seat { number, kind: index, by, most: offer.most.max(1), claimed: 0, got: Vec::new(), reply };
        let id = self.id(index);
        let known = self.kinds[index].as_mut().expect("it was just found or made");
        known.seen = now;
        known.waiting.push_back(seat);
        (number, found.is_none().then(|| (id, known.kind.worker())))
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

    fn note(&mut self, now: Timestamp, offer: &Offer) {
        self.lately.retain(|lately| {
            let same = lately.name == offer.by.owner && lately.namespace == offer.namespace;
            !same && now.since(lately.seen) < LINGER_MS
        });
        self.lately.push(Lately {
            namespace: offer.namespace.clone(),
            name: offer.by.owner.clone(),
            queues: offer.queues.clone(),
            definitions: offer.definitions.clone(),
            seen: now,
        });
    }

    /// Whether something was claimed for a seat, which is on its way.
    pub(crate) fn is_served(&self, number: u64) -> bool {
        self.served.iter().any(|seat| seat.number == number)
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
        for index in 0..self.kinds.len() {
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
        let is_idle = |known: &Known| known.waiting.is_empty() && now >= known.seen.after(LINGER_MS);
        let idle = self.kinds.iter().enumerate().filter(|(_, known)| known.as_ref().is_some_and(is_idle));
        let idle: Vec<usize> = idle.map(|(index, _)| index).collect();
        for index in &idle {
            self.kinds[*index] = None;
        }
        idle.into_iter().map(|index| self.id(index)).collect()
    }

    /// When a kind may have to be forgotten.
    pub(crate) fn next_idle(&self) -> Option<Timestamp> {
        let known = self.kinds.iter().flatten().filter(|known| known.waiting.is_empty());
        known.map(|known| known.seen.after(LINGER_MS)).min()
    }

    /// Makes all kinds known to a shard.
    pub(crate) fn join(&self, shard: &mut Shard) {
        self.workers().for_each(|(id, worker)| shard.join(id, worker));
    }
}
