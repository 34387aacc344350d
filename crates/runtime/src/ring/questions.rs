//! Questions: commands for shards that are served elsewhere, who was asked, and until when what must come through is said
//! again.

use std::collections::BTreeSet;

use abide_kernel::shard::{Answer, Command, Ticket};
use abide_kernel::{Refusal, ShardEpoch, ShardId, Slot, Str, Timestamp};
use abide_store::Member;

use super::{LEASES_REMEMBERED, Ring};
use crate::core::Waiter;
use crate::link::Letter;

/// After how long a question is asked again, at first; it doubles from try to try.
pub(super) const ASK_AGAIN_MS: u64 = 250;

/// A command for a shard that is served elsewhere, or by nobody yet.
pub(crate) struct Forward {
    pub(crate) slot: Slot,
    pub(crate) command: Command,
    pub(crate) waiter: Waiter,
    asked: Option<Asked>,
    /// When somebody was first asked.
    since: Option<Timestamp>,
    tries: u32,
    retry_at: Timestamp,
}

/// Who was asked, and under which number. Whoever is asked next is asked under another: what waits for one node, or for
/// nobody yet, keeps no other from forgetting.
struct Asked {
    process: Str,
    question: u64,
    /// Under which ownership of the shard. Under another it does nothing of it.
    epoch: ShardEpoch,
    /// Whether it may have done it: it has not said that it did nothing.
    may_have: bool,
}

/// The shard of a question, and the ownership under which it is served by whoever was asked under another.
pub(crate) type Serves = Option<(ShardId, ShardEpoch)>;

impl Forward {
    /// Whether it may be given to a shard that is served here now: nobody was asked who may have done it.
    pub(crate) fn may_go_on(&self) -> bool {
        self.asked.as_ref().is_none_or(|asked| !asked.may_have) || self.command.is_repeatable()
    }

    /// Somebody was asked who may have done it, and is not asked any more.
    fn is_doubted(&mut self) {
        self.waiter = std::mem::replace(&mut self.waiter, Waiter::Nobody).again();
    }

    /// The command, and whoever waits for it, told nothing yet.
    pub(crate) fn into_parts(mut self) -> (Command, Waiter) {
        if self.asked.as_ref().is_some_and(|asked| asked.may_have) {
            self.is_doubted();
        }
        (self.command, self.waiter)
    }
}

/// Whether nothing is kept of a command's answer: it changes nothing, or may wait for months and finds what came of it when
/// it is given again.
pub(crate) fn reads(command: &Command) -> bool {
    command.changes_nothing() || command.awaits().is_some()
}

impl Ring {
    /// Keeps a command until the owner of its shard has answered.
    pub(crate) fn forward(&mut self, now: Timestamp, ticket: Ticket, slot: Slot, command: Command, waiter: Waiter) {
        if let Waiter::Beat(claim) = waiter {
            // The one before it says nothing that this one does not.
            let same = |other: &Forward| matches!(other.waiter, Waiter::Beat(known) if known == claim);
            let before = self.forwards.iter().find(|(_, other)| same(other)).map(|(ticket, _)| *ticket);
            before.into_iter().for_each(|ticket| drop(self.take_forward(ticket)));
        }
        let forward = Forward { slot, command, waiter, asked: None, since: None, tries: 0, retry_at: now };
        self.forwards.insert(ticket, forward);
    }

    /// The number under which a node is asked: the same if it was asked before.
    fn number(&mut self, ticket: Ticket, process: &Str, epoch: ShardEpoch) -> Option<u64> {
        let forward = self.forwards.get_mut(&ticket)?;
        if let Some(asked) = forward.asked.as_mut().filter(|asked| asked.process == *process) {
            asked.may_have = true;
            asked.epoch = epoch;
            return Some(asked.question);
        }
        let question = self.next_question;
        self.next_question += 1;
        let before = forward.asked.replace(Asked { process: process.clone(), question, epoch, may_have: true });
        if before.as_ref().is_some_and(|asked| asked.may_have) {
            forward.is_doubted();
        }
        if !reads(&forward.command) {
            self.unsettled.entry(process.clone()).or_default().insert(question);
        }
        self.questions.insert(question, ticket);
        before.iter().for_each(|asked| self.settle(asked));
        Some(question)
    }

    /// Nobody waits for the answer to a question any more.
    fn settle(&mut self, asked: &Asked) {
        self.questions.remove(&asked.question);
        if let Some(open) = self.unsettled.get_mut(&asked.process) {
            open.remove(&asked.question);
            if open.is_empty() {
                self.unsettled.remove(&asked.process);
            }
        }
    }

    /// Every command that waits for an answer from elsewhere, with its slot.
    pub(crate) fn forwarded(&self) -> Vec<(Ticket, Slot)> {
        self.forwards.iter().map(|(ticket, forward)| (*ticket, forward.slot)).collect()
    }

    /// Everybody who waits for an answer from elsewhere, and whether nothing but the answer comes of what they asked.
    pub(crate) fn take_forwards(&mut self) -> Vec<(Waiter, bool)> {
        self.questions.clear();
        self.unsettled.clear();
        std::mem::take(&mut self.forwards)
            .into_values()
            .map(|forward| (forward.waiter, forward.command.changes_nothing()))
            .collect()
    }

    /// The command that somebody waits for under a ticket.
    pub(crate) fn waits_under(&self, ticket: Ticket) -> Option<&Command> {
        let forward = self.forwards.get(&ticket).filter(|forward| !matches!(forward.waiter, Waiter::Nobody))?;
        Some(&forward.command)
    }

    /// How many things that must not be lost wait for an answer from elsewhere.
    pub(crate) fn unheard(&self) -> usize {
        self.forwards.values().filter(|forward| matches!(forward.waiter, Waiter::Nobody)).count()
    }

    pub(crate) fn take_forward(&mut self, ticket: Ticket) -> Option<Forward> {
        let forward = self.forwards.remove(&ticket)?;
        forward.asked.iter().for_each(|asked| self.settle(asked));
        Some(forward)
    }

    /// Nobody wants to know any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) -> Option<Waiter> {
        let forward = self.take_forward(ticket)?;
        if let Some(asked) = &forward.asked
            && let Some(member) = self.find(&asked.process)
        {
            self.send(member, Letter::Forget { id: asked.question });
        }
        Some(forward.waiter)
    }

    /// Asks whoever serves the shard. Gives the waiter back when nobody will ever know what became of the command.
    pub(crate) fn ask(&mut self, now: Timestamp, ticket: Ticket, home: ShardId) -> Option<Waiter> {
        let owner = self.view.owner(home).map(|living| living.member.clone());
        let mut owner = owner.filter(|owner| owner.process != self.member.process);
        let mut epoch = self.view.epoch(home);
        let forward = self.forwards.get(&ticket)?;
        // Who did it and could not say so forgets it in the end, and would do it again.
        let forgotten = forward.since.is_some_and(|since| now.since(since) > LEASES_REMEMBERED / 2 * self.lease_ms);
        if forgotten && !forward.command.is_repeatable() {
            return self.take_forward(ticket).map(|forward| forward.waiter);
        }
        if let Some(asked) = &forward.asked
            && owner.as_ref().is_none_or(|owner| owner.process != asked.process)
            && !forward.may_go_on()
        {
            // It may have done it, and will say so.
            epoch = asked.epoch;
            owner = self.find(&asked.process).cloned();
            if owner.is_none() {
                return self.take_forward(ticket).map(|forward| forward.waiter);
            }
        }
        let asking = owner.and_then(|owner| self.number(ticket, &owner.process, epoch).map(|id| (owner, id)));
        let forward = self.forwards.get_mut(&ticket)?;
        let wait = ASK_AGAIN_MS << forward.tries.min(8);
        forward.retry_at = now.after(wait);
        self.next_retry = Some(self.next_retry.map_or(forward.retry_at, |next| next.min(forward.retry_at)));
        if let Some((owner, id)) = asking {
            forward.tries += 1;
            forward.since.get_or_insert(now);
            let settled = self.unsettled.get(&owner.process).and_then(BTreeSet::first).copied().unwrap_or(id);
            let (slot, command) = (forward.slot, Box::new(forward.command.clone()));
            self.send(&owner, Letter::Ask { id, settled, slot, epoch, at: now, command });
        }
        None
    }

    /// What is due to be said again, if it is time.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<(Ticket, Slot)> {
        if self.next_retry.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.next_retry = None;
        self.send_mail(now);
        let (due, later): (Vec<_>, Vec<_>) = self.forwards.iter().partition(|(_, forward)| forward.retry_at <= now);
        let next = later.iter().map(|(_, forward)| forward.retry_at).min();
        self.next_retry = self.next_retry.into_iter().chain(next).min();
        due.into_iter().map(|(ticket, forward)| (*ticket, forward.slot)).collect()
    }

    /// The answer of another node to a question: who waits for it, or `None` if it must be asked again.
    pub(crate) fn answered(&mut self, now: Timestamp, id: u64, answer: &Answer) -> Option<Waiter> {
        let ticket = *self.questions.get(&id)?;
        let repeatable = self.forwards.get(&ticket)?.command.is_repeatable();
        let lost = matches!(answer, Answer::Refused(Refusal::Unknown | Refusal::Closed { .. }));
        if !(lost && repeatable) {
            return self.take_forward(ticket).map(|forward| forward.waiter);
        }
        self.forwards.get_mut(&ticket).into_iter().for_each(Forward::is_doubted);
        // Whoever answered so keeps that answer: what is asked from now on is another question.
        self.ask_later(now, ticket);
        None
    }

    fn ask_later(&mut self, now: Timestamp, ticket: Ticket) {
        let Some(forward) = self.forwards.get_mut(&ticket) else { return };
        // What must not be done twice keeps its number for the same node: a letter that was late would be another question.
        let repeatable = forward.command.is_repeatable();
        let asked = forward.asked.take_if(|_| repeatable);
        forward.asked.iter_mut().for_each(|asked| asked.may_have = false);
        forward.retry_at = now.after(ASK_AGAIN_MS);
        self.next_retry = Some(self.next_retry.map_or(forward.retry_at, |next| next.min(forward.retry_at)));
        asked.iter().for_each(|asked| self.settle(asked));
        self.look_soon();
    }

    /// A question went to a node that does not serve the shard under the ownership that was meant. Nothing was done under
    /// that one, and nothing will be. It may serve it under another.
    pub(crate) fn is_elsewhere(&mut self, now: Timestamp, id: u64, from: &Member, under: ShardEpoch, serves: Serves) {
        let Some(ticket) = self.questions.get(&id).copied() else { return };
        let asked = self.forwards.get(&ticket).and_then(|forward| forward.asked.as_ref());
        if !asked.is_some_and(|asked| asked.process == from.process && asked.epoch == under && asked.may_have) {
            return;
        }
        self.ask_later(now, ticket);
        if let Some(served) = serves {
            self.learn_took(now, from, &[served]);
            self.next_retry = Some(now);
            self.forwards.get_mut(&ticket).into_iter().for_each(|forward| forward.retry_at = now);
        }
    }
}

#[cfg(test)]
mod tests {
    use abide_kernel::Payload;
    use abide_kernel::RunId;
    use abide_kernel::transition::update::Requesting;
    use abide_store::{Living, Membership, Owned};
    use parking_lot::Mutex;
    use std::sync::Arc;

    use super::*;
    use crate::link::Link;
    use crate::ring::Peer;

    /// Keeps what was sent.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Letter>>);

    impl Link for Kept {
        fn send(&self, _: &Member, _: &Member, letter: Letter) {
            self.0.lock().push(letter);
        }
    }

    impl Kept {
        /// The number of the last question, and below which all are settled.
        fn asked(&self) -> (u64, u64) {
            match self.0.lock().pop() {
                Some(Letter::Ask { id, settled, .. }) => (id, settled),
                other => panic!("expected a question, found {other:?}"),
            }
        }
    }

    fn done() -> Answer {
        Answer::Refused(Refusal::NotFound { run: RunId(1) })
    }

    fn member(process: &str) -> Member {
        Member { process: process.into(), node: process.into(), address: process.into(), draining: false }
    }

    /// A node that serves nothing; others serve the first and the last shard.
    fn ring() -> (Ring, Arc<Kept>) {
        let link = Arc::<Kept>::default();
        let mut ring = Ring::new(member("one"), link.clone(), 10_000, false);
        let living = ["one", "six", "two"].map(|process| Living { member: member(process), until: Timestamp(10_000) });
        let owned = |(shard, owner): (u16, Option<&str>)| Owned {
            shard: ShardId(shard),
            epoch: ShardEpoch(1),
            owner: owner.map(Str::from),
        };
        let shards = [(0, Some("two")), (1, None), (2, Some("six"))].map(owned).to_vec();
        ring.learn(Membership { now: Timestamp(0), living: living.to_vec(), shards, ..Membership::default() });
        (ring, link)
    }

    fn forward(ring: &mut Ring, ticket: u64) {
        let command = Command::Compact { run: RunId(1) };
        assert!(command.is_repeatable());
        put(ring, ticket, command, ShardId(0));
    }

    fn put(ring: &mut Ring, ticket: u64, command: Command, home: ShardId) {
        ring.forward(Timestamp(0), Ticket(ticket), Slot(0), command, Waiter::Nobody);
        assert!(ring.ask(Timestamp(0), Ticket(ticket), home).is_none());
    }

    fn update() -> Command {
        let request = abide_kernel::RequestId(1);
        let asked = Requesting { request, name: "more".into(), input: Payload::null(), dedup: None };
        Command::Update { run: RunId(1), asked: Box::new(asked), told: abide_kernel::shard::Told::Answered }
    }

    /// SE-38: whoever is asked remembers no more than what is open there, whatever else waits and for how long: an answer
    /// of a run that takes months, a shard that nobody serves, a node that does not answer.
    #[test]
    fn what_waits_for_long_keeps_nobody_from_forgetting() {
        let (mut ring, link) = ring();
        put(&mut ring, 1, update(), ShardId(0));
        link.asked();
        put(&mut ring, 2, Command::Compact { run: RunId(1) }, ShardId(1));
        assert!(link.0.lock().is_empty(), "nobody serves it");
        put(&mut ring, 3, Command::Compact { run: RunId(1) }, ShardId(2));
        link.asked();

        let mut peer = Peer::default();
        for ticket in 4..100 {
            forward(&mut ring, ticket);
            let (id, settled) = link.asked();
            peer.heard(Timestamp(0), settled);
            peer.begin(id);
            assert_eq!(peer.asks.len(), 1);
            assert!(ring.answered(Timestamp(0), id, &done()).is_some());
        }
        assert_eq!(ring.questions.len(), 2);
        assert!(ring.take_forward(Ticket(3)).is_some());
        assert!(ring.unsettled.is_empty());
    }

    /// SE-38: a node that says that it did nothing is asked again under the same number when what is asked must not be done
    /// twice: a letter that was late is known there. Another node may be asked.
    #[test]
    fn what_must_not_be_done_twice_is_one_question_to_a_node() {
        let (mut ring, link) = ring();
        put(&mut ring, 1, Command::Purge { run: RunId(1) }, ShardId(0));
        let (first, _) = link.asked();
        ring.is_elsewhere(Timestamp(0), first, &member("two"), ShardEpoch(1), None);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(0)).is_none());
        assert_eq!(link.asked(), (first, first));
        // It may have done it now, and nobody else is asked.
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(2)).is_none());
        assert_eq!(link.asked(), (first, first));
        ring.is_elsewhere(Timestamp(0), first, &member("two"), ShardEpoch(1), None);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(2)).is_none());
        assert_ne!(link.asked().0, first);
    }

    /// SE-38: a command that waited here for a shard that another has taken since is older than what was asked of that other
    /// meanwhile, and its question is a new one there all the same. It was taken for one that is settled, and never answered.
    #[test]
    fn a_command_that_comes_to_be_forwarded_late_is_heard() {
        let (mut ring, link) = ring();
        let mut peer = Peer::default();
        forward(&mut ring, 9);
        let (first, settled) = link.asked();
        peer.heard(Timestamp(0), settled);
        assert!(peer.find(first, false).is_none());
        peer.begin(first);
        assert!(ring.answered(Timestamp(0), first, &done()).is_some());

        forward(&mut ring, 10);
        peer.heard(Timestamp(0), link.asked().1);
        forward(&mut ring, 3);
        let (late, settled) = link.asked();
        peer.heard(Timestamp(0), settled);
        assert!(peer.find(late, false).is_none(), "{late} is taken for settled below {}", peer.settled);
    }

    /// SE-38: who could not say what became of a command is asked anew, and not told by what it answered before.
    #[test]
    fn an_unknown_outcome_is_asked_as_another_question() {
        let (mut ring, link) = ring();
        forward(&mut ring, 1);
        let (first, _) = link.asked();
        assert!(ring.answered(Timestamp(0), first, &Answer::Refused(Refusal::Unknown)).is_none());
        let due = ring.due(Timestamp(ASK_AGAIN_MS as i64));
        assert_eq!(due, [(Ticket(1), Slot(0))]);
        assert!(ring.ask(Timestamp(ASK_AGAIN_MS as i64), Ticket(1), ShardId(0)).is_none());
        let (second, settled) = link.asked();
        assert_ne!(first, second);
        assert_eq!(settled, second);
        // What is said to the first is said to nobody.
        assert!(ring.answered(Timestamp(0), first, &done()).is_none());
        assert!(ring.answered(Timestamp(0), second, &done()).is_some());
    }

    /// SE-38, D36: what a caller is told is the last that is done of a command. Who was asked before may have refused what
    /// whoever was asked next then did.
    #[test]
    fn an_answer_of_one_who_was_asked_before_is_not_taken() {
        let (mut ring, link) = ring();
        forward(&mut ring, 1);
        let (before, _) = link.asked();
        ring.learn_took(Timestamp(0), &member("six"), &[(ShardId(0), ShardEpoch(2))]);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(0)).is_none());
        let (now, _) = link.asked();
        assert!(ring.answered(Timestamp(0), before, &done()).is_none());
        assert!(ring.answered(Timestamp(0), now, &done()).is_some());
    }

    /// SE-38: word that nothing was done counts for the ownership under which it was asked, and not for one under which it
    /// may be done since. Whoever serves the shard under another is asked under that at once.
    #[test]
    fn what_was_not_done_under_one_ownership_may_be_done_under_the_next() {
        let (mut ring, link) = ring();
        put(&mut ring, 1, Command::Purge { run: RunId(1) }, ShardId(0));
        let (id, _) = link.asked();
        let two = member("two");
        let serves = Some((ShardId(0), ShardEpoch(5)));
        ring.is_elsewhere(Timestamp(0), id, &two, ShardEpoch(1), serves);
        assert_eq!(ring.due(Timestamp(0)), [(Ticket(1), Slot(0))]);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(0)).is_none());
        let asked = link.0.lock().pop();
        assert!(matches!(asked, Some(Letter::Ask { epoch: ShardEpoch(5), .. })), "{asked:?}");
        // The same word once more, late.
        ring.is_elsewhere(Timestamp(0), id, &two, ShardEpoch(1), serves);
        assert_eq!(ring.due(Timestamp(0)), []);
        assert!(!ring.forwards[&Ticket(1)].may_go_on());
    }

    /// SE-38: what must not be done twice is not asked for longer than whoever did it remembers that.
    #[test]
    fn what_must_not_be_done_twice_is_given_up_before_it_is_forgotten() {
        let (mut ring, _) = ring();
        put(&mut ring, 1, Command::Purge { run: RunId(1) }, ShardId(0));
        let half = (LEASES_REMEMBERED / 2 * ring.lease_ms) as i64;
        assert!(ring.ask(Timestamp(half), Ticket(1), ShardId(0)).is_none());
        assert!(ring.ask(Timestamp(half + 1), Ticket(1), ShardId(0)).is_some());
    }
}
