//! The ring: what a node knows of the others that share its store, what it asked of them, and what they asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_kernel::shard::{Answer, Command, Ticket};
use abide_kernel::{Refusal, RunId, ShardEpoch, ShardId, Slot, Str, Timestamp};
use abide_store::{Living, Member, Membership};

use crate::core::Waiter;
use crate::link::{Letter, Link, Mail};
use crate::roster::RollCalls;

/// After how long a question is asked again, at first; it doubles from try to try.
const ASK_AGAIN_MS: u64 = 250;

/// For how many leases what a node asked is remembered after it was last heard of.
const LEASES_REMEMBERED: u64 = 20;

/// A node's place among those that share its store.
pub(crate) struct Ring {
    pub(crate) member: Member,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) lease_ms: u64,
    /// Whether it serves only what nobody else would.
    pub(crate) guest: bool,
    pub(crate) view: Membership,
    /// Until when this node may serve its shards. Before its lease ends, by a margin for clocks that differ.
    pub(crate) serves_until: Timestamp,
    pub(crate) tried_at: Option<Timestamp>,
    pub(crate) renewed: bool,
    pub(crate) next_renewal: Timestamp,
    forwards: BTreeMap<Ticket, Forward>,
    /// By the numbers under which others are asked, in the order in which questions were begun. A ticket will not do: a
    /// command that was here first is older than questions that others know to be settled.
    questions: BTreeMap<u64, Ticket>,
    next_question: u64,
    /// Envelopes that wait in the store for shards elsewhere: the last number by sender and receiver.
    owed: BTreeMap<(ShardId, ShardId), u64>,
    has_news: bool,
    /// When what others owe an answer to is said again.
    next_retry: Option<Timestamp>,
    /// Shards here for which envelopes wait in the store, and who said so.
    pub(crate) mail: BTreeMap<ShardId, Vec<(Member, Mail)>>,
    /// Shards that were set aside because they are damaged, by whom, and what was found.
    pub(crate) aside: BTreeMap<(ShardId, Str), String>,
    pub(crate) peers: BTreeMap<Str, Peer>,
    pub(crate) roll_calls: RollCalls,
}

/// A command for a shard that is served elsewhere, or by nobody yet.
pub(crate) struct Forward {
    pub(crate) slot: Slot,
    pub(crate) command: Command,
    pub(crate) waiter: Waiter,
    /// The number under which others are asked.
    question: u64,
    /// Who was asked, under which ownership of the shard. Under another it does nothing of it.
    asked: Option<(Str, ShardEpoch)>,
    /// When somebody was first asked.
    since: Option<Timestamp>,
    tries: u32,
    retry_at: Timestamp,
}

impl Forward {
    /// Whether it may be given to a shard that is served here now: nobody was asked who may have done it.
    pub(crate) fn may_go_on(&self) -> bool {
        self.asked.is_none() || self.command.is_repeatable()
    }
}

/// The shard of a question, and the ownership under which it is served by whoever was asked under another.
pub(crate) type Serves = Option<(ShardId, ShardEpoch)>;

/// What a node asked, and what it was answered.
#[derive(Default)]
pub(crate) struct Peer {
    heard_at: Timestamp,
    settled: u64,
    asks: BTreeMap<u64, Option<Answer>>,
    /// Questions that change nothing and may wait for months: nothing is kept of their answers.
    reading: BTreeMap<u64, (RunId, Ticket)>,
}

impl Peer {
    /// It asked something; questions below a number are settled.
    pub(crate) fn heard(&mut self, now: Timestamp, settled: u64) {
        self.heard_at = now;
        self.settled = self.settled.max(settled);
        self.asks = self.asks.split_off(&self.settled);
    }

    /// What was answered to a question, if it was asked before. One that is settled has no answer any more, and needs
    /// none.
    pub(crate) fn find(&self, id: u64, reads: bool) -> Option<Option<&Answer>> {
        if reads {
            return self.reading.contains_key(&id).then_some(None);
        }
        if id < self.settled {
            return Some(None);
        }
        self.asks.get(&id).map(Option::as_ref)
    }

    pub(crate) fn begin(&mut self, id: u64) {
        self.asks.insert(id, None);
    }

    /// A question that changes nothing waits under a ticket.
    pub(crate) fn reads(&mut self, id: u64, run: RunId, ticket: Ticket) {
        self.reading.insert(id, (run, ticket));
    }

    pub(crate) fn forget(&mut self, id: u64) -> Option<(RunId, Ticket)> {
        self.reading.remove(&id)
    }
}

/// Whether a command changes nothing.
pub(crate) fn reads(command: &Command) -> bool {
    matches!(command, Command::Watch { .. } | Command::Show { .. } | Command::Unflushed)
}

impl Ring {
    pub(crate) fn new(member: Member, link: Arc<dyn Link>, lease_ms: u64, guest: bool) -> Self {
        Self {
            member,
            link,
            lease_ms,
            guest,
            view: Membership::default(),
            serves_until: Timestamp(i64::MIN),
            tried_at: None,
            renewed: false,
            next_renewal: Timestamp(i64::MIN),
            forwards: BTreeMap::new(),
            questions: BTreeMap::new(),
            next_question: 1,
            owed: BTreeMap::new(),
            has_news: false,
            next_retry: None,
            mail: BTreeMap::new(),
            aside: BTreeMap::new(),
            peers: BTreeMap::new(),
            roll_calls: RollCalls::default(),
        }
    }

    /// When it next has something to do by itself.
    pub(crate) fn next_wake(&self) -> Timestamp {
        self.next_retry.map_or(self.next_renewal, |retry| retry.min(self.next_renewal))
    }

    /// The membership is looked at soon, though not more often than every tenth of a lease.
    pub(crate) fn look_soon(&mut self) {
        let soon = self.tried_at.map_or(Timestamp(i64::MIN), |at| at.after(self.lease_ms / 10));
        self.next_renewal = self.next_renewal.min(soon);
    }

    /// Which of the shards that are served here go, and which that are not are taken. Every node that wants shards gets as
    /// many as every other, or one more.
    pub(crate) fn plan(&self, served: &[ShardId]) -> (Vec<ShardId>, Vec<ShardId>) {
        let living = self.view.living.iter().filter(|living| !living.member.draining);
        let mut takers: Vec<&Str> = living.map(|living| &living.member.process).collect();
        if self.guest && takers.is_empty() {
            takers.push(&self.member.process);
        }
        let shards = self.view.shards.len();
        let Some(place) = takers.iter().position(|process| **process == self.member.process) else {
            return (served.to_vec(), Vec::new());
        };
        let share = shards / takers.len() + usize::from(place < shards % takers.len());
        let surplus = served.len().saturating_sub(share);
        let give = served.iter().rev().take(surplus).copied().collect();
        // Each begins somewhere else, so that they seldom reach for the same one.
        let first = place * shards / takers.len();
        let free = (0..shards).map(|turn| ShardId(((first + turn) % shards) as u16)).filter(|shard| {
            let ours = self.view.owner(*shard).is_none_or(|owner| owner.member.process == self.member.process);
            ours && !served.contains(shard) && !self.is_aside(*shard, &self.member.process)
        });
        (give, free.take(share.saturating_sub(served.len())).collect())
    }

    /// Everybody else who lives.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Member> {
        let members = self.view.living.iter().map(|living| &living.member);
        members.filter(|member| member.process != self.member.process)
    }

    /// Says something to another node.
    pub(crate) fn send(&self, to: &Member, letter: Letter) {
        self.link.send(&self.member, to, letter);
    }

    /// Says something to everybody else.
    pub(crate) fn tell_all(&self, letter: &Letter) {
        self.others().for_each(|member| self.send(member, letter.clone()));
    }

    /// Keeps a command until the owner of its shard has answered.
    pub(crate) fn forward(&mut self, now: Timestamp, ticket: Ticket, slot: Slot, command: Command, waiter: Waiter) {
        if let Waiter::Beat(claim) = waiter {
            // The one before it says nothing that this one does not.
            let same = |other: &Forward| matches!(other.waiter, Waiter::Beat(known) if known == claim);
            let before = self.forwards.iter().find(|(_, other)| same(other)).map(|(ticket, _)| *ticket);
            before.into_iter().for_each(|ticket| drop(self.take_forward(ticket)));
        }
        let question = self.new_question(ticket);
        let forward = Forward { slot, command, waiter, question, asked: None, since: None, tries: 0, retry_at: now };
        self.forwards.insert(ticket, forward);
    }

    fn new_question(&mut self, ticket: Ticket) -> u64 {
        let question = self.next_question;
        self.next_question += 1;
        self.questions.insert(question, ticket);
        question
    }

    /// Every command that waits for an answer from elsewhere, with its slot.
    pub(crate) fn forwarded(&self) -> Vec<(Ticket, Slot)> {
        self.forwards.iter().map(|(ticket, forward)| (*ticket, forward.slot)).collect()
    }

    /// Everybody who waits for an answer from elsewhere.
    pub(crate) fn take_forwards(&mut self) -> Vec<Waiter> {
        self.questions.clear();
        std::mem::take(&mut self.forwards).into_values().map(|forward| forward.waiter).collect()
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
        self.questions.remove(&forward.question);
        Some(forward)
    }

    /// Nobody wants to know any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) -> Option<Waiter> {
        let forward = self.take_forward(ticket)?;
        if let Some(member) = forward.asked.and_then(|(process, _)| self.find(&process)) {
            self.send(member, Letter::Forget { id: forward.question });
        }
        Some(forward.waiter)
    }

    pub(crate) fn find(&self, process: &str) -> Option<&Member> {
        self.view.living.iter().map(|living| &living.member).find(|member| *member.process == *process)
    }

    /// Asks whoever serves the shard. Gives the waiter back when nobody will ever know what became of the command.
    pub(crate) fn ask(&mut self, now: Timestamp, ticket: Ticket, home: ShardId) -> Option<Waiter> {
        let mut owner = self.view.owner(home).map(|living| living.member.clone());
        let mut epoch = self.view.epoch(home);
        let changes = |ticket: &Ticket| self.forwards.get(ticket).is_some_and(|forward| !reads(&forward.command));
        let unsettled = self.questions.iter().find(|(_, ticket)| changes(ticket)).map(|(question, _)| *question);
        let lives = |process: &Str| self.view.living.iter().any(|living| living.member.process == *process);
        let forward = self.forwards.get_mut(&ticket)?;
        // Who did it and could not say so forgets it in the end, and would do it again.
        let forgotten = forward.since.is_some_and(|since| now.since(since) > LEASES_REMEMBERED / 2 * self.lease_ms);
        if forgotten && !forward.command.is_repeatable() {
            return self.take_forward(ticket).map(|forward| forward.waiter);
        }
        owner = owner.filter(|owner| owner.process != self.member.process);
        if let Some((asked, under)) = &forward.asked
            && owner.as_ref().is_none_or(|owner| owner.process != *asked)
            && !forward.command.is_repeatable()
        {
            if !lives(asked) {
                return self.take_forward(ticket).map(|forward| forward.waiter);
            }
            // It may have done it, and will say so.
            epoch = *under;
            owner =
                self.view.living.iter().map(|living| &living.member).find(|member| member.process == *asked).cloned();
        }
        let wait = ASK_AGAIN_MS << forward.tries.min(8);
        forward.retry_at = now.after(wait);
        self.next_retry = Some(self.next_retry.map_or(forward.retry_at, |next| next.min(forward.retry_at)));
        if let Some(owner) = owner {
            forward.tries += 1;
            forward.asked = Some((owner.process.clone(), epoch));
            forward.since.get_or_insert(now);
            let (id, command) = (forward.question, Box::new(forward.command.clone()));
            let letter = Letter::Ask { id, settled: unsettled.unwrap_or(id), slot: forward.slot, epoch, command };
            self.send(&owner, letter);
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

    /// The answer of another node to a question: who waits for it, or `None` if it must be asked again, or was asked of
    /// somebody else since. What that one does is the last that is done of it, and so what its caller is told.
    pub(crate) fn answered(&mut self, now: Timestamp, from: &Str, id: u64, answer: &Answer) -> Option<Waiter> {
        let ticket = *self.questions.get(&id)?;
        let forward = self.forwards.get(&ticket)?;
        if forward.asked.as_ref().is_some_and(|(asked, _)| asked != from) {
            return None;
        }
        let repeatable = forward.command.is_repeatable();
        let lost = matches!(answer, Answer::Refused(Refusal::Unknown | Refusal::Closed { .. }));
        if !(lost && repeatable) {
            return self.take_forward(ticket).map(|forward| forward.waiter);
        }
        // Whoever answered so keeps that answer: what is asked from now on is another question.
        self.questions.remove(&id);
        let question = self.new_question(ticket);
        if let Some(forward) = self.forwards.get_mut(&ticket) {
            forward.question = question;
        }
        self.ask_later(now, ticket);
        None
    }

    fn ask_later(&mut self, now: Timestamp, ticket: Ticket) {
        let Some(forward) = self.forwards.get_mut(&ticket) else { return };
        forward.asked = None;
        forward.retry_at = now.after(ASK_AGAIN_MS);
        self.next_retry = Some(self.next_retry.map_or(forward.retry_at, |next| next.min(forward.retry_at)));
        self.look_soon();
    }

    /// A question went to a node that does not serve the shard under the ownership that was meant. Nothing was done under
    /// that one, and nothing will be. It may serve it under another.
    pub(crate) fn is_elsewhere(&mut self, now: Timestamp, id: u64, from: &Member, asked: ShardEpoch, serves: Serves) {
        let Some(ticket) = self.questions.get(&id).copied() else { return };
        let meant = |forward: &Forward| forward.asked.as_ref() == Some(&(from.process.clone(), asked));
        if !self.forwards.get(&ticket).is_some_and(meant) {
            return;
        }
        self.ask_later(now, ticket);
        if let Some(served) = serves {
            self.learn_took(now, from, &[served]);
            self.next_retry = Some(now);
            self.forwards.get_mut(&ticket).into_iter().for_each(|forward| forward.retry_at = now);
        }
    }

    /// Answers another node's question, now and whenever it asks again.
    pub(crate) fn answer(&mut self, process: &Str, id: u64, answer: Answer) {
        if let Some(member) = self.find(process) {
            self.send(member, Letter::Answer { id, answer: Box::new(answer.clone()) });
        }
        let Some(peer) = self.peers.get_mut(process) else { return };
        peer.reading.remove(&id);
        if let Some(asked) = peer.asks.get_mut(&id) {
            *asked = Some(answer);
        }
    }

    /// Envelopes up to a number wait in the store for a shard elsewhere.
    pub(crate) fn owe(&mut self, from: ShardId, to: ShardId, number: u64) {
        let owed = self.owed.entry((from, to)).or_default();
        *owed = number.max(*owed);
        self.has_news = true;
    }

    /// Tells others of envelopes that were sent since the last time.
    pub(crate) fn send_news(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.has_news) {
            self.send_mail(now);
        }
    }

    /// Tells the owners of shards elsewhere what waits for them, and again if they do not answer.
    pub(crate) fn send_mail(&mut self, now: Timestamp) {
        let mut by_owner: BTreeMap<Str, (Member, Vec<Mail>)> = BTreeMap::new();
        for ((from, to), number) in &self.owed {
            let owner = self.view.owner(*to).map(|living| &living.member);
            if let Some(owner) = owner.filter(|owner| owner.process != self.member.process) {
                let (_, mail) = by_owner.entry(owner.process.clone()).or_insert_with(|| (owner.clone(), Vec::new()));
                mail.push(Mail { from: *from, to: *to, number: *number });
            }
        }
        by_owner.into_values().for_each(|(owner, mail)| self.send(&owner, Letter::Mail(mail)));
        if !self.owed.is_empty() {
            let again = now.after((ASK_AGAIN_MS * 4).min(self.lease_ms));
            self.next_retry = Some(self.next_retry.map_or(again, |next| next.min(again)));
        }
    }

    /// Envelopes were fetched by their receiver.
    pub(crate) fn mail_fetched(&mut self, fetched: &[Mail]) {
        for mail in fetched {
            if self.owed.get(&(mail.from, mail.to)).is_some_and(|number| *number <= mail.number) {
                self.owed.remove(&(mail.from, mail.to));
            }
        }
    }

    /// A shard is no longer served here: whoever serves it next looks after its mail.
    pub(crate) fn left(&mut self, shard: ShardId) {
        self.owed.retain(|(from, _), _| *from != shard);
        self.mail.remove(&shard);
    }

    /// A shard is served here now: what waited for it in the store was fetched.
    pub(crate) fn came(&mut self, shard: ShardId) {
        self.owed.retain(|(_, to), _| *to != shard);
    }

    /// Another node says that it serves shards.
    pub(crate) fn learn_took(&mut self, now: Timestamp, from: &Member, shards: &[(ShardId, ShardEpoch)]) {
        if self.find(&from.process).is_none() {
            let until = now.after(self.lease_ms);
            self.view.living.push(Living { member: from.clone(), until });
            self.view.living.sort_by(|one, other| one.member.process.cmp(&other.member.process));
        }
        for (shard, epoch) in shards {
            if let Some(owned) = self.view.shards.get_mut(usize::from(shard.0)).filter(|owned| owned.epoch < *epoch) {
                owned.epoch = *epoch;
                owned.owner = Some(from.process.clone());
            }
        }
    }

    /// Another node says that shards are free.
    pub(crate) fn learn_released(&mut self, now: Timestamp, shards: &[(ShardId, ShardEpoch)]) {
        for (shard, epoch) in shards {
            if let Some(owned) = self.view.shards.get_mut(usize::from(shard.0)).filter(|owned| owned.epoch <= *epoch) {
                owned.owner = None;
                self.next_renewal = self.next_renewal.min(now);
            }
        }
    }

    /// Who lives and who owns what, as the store just said.
    pub(crate) fn learn(&mut self, view: Membership) {
        let living: BTreeSet<&Str> = view.living.iter().map(|living| &living.member.process).collect();
        // One that is thought dead may only have been slow, and ask again.
        let kept = LEASES_REMEMBERED * self.lease_ms;
        self.peers.retain(|process, peer| living.contains(process) || view.now.since(peer.heard_at) < kept);
        // Whoever comes back may find it repaired.
        self.aside.retain(|(_, process), _| living.contains(process));
        self.view = view;
        // Others may have asked it to drain, or to take its share again.
        if let Some(asked) = self.find(&self.member.process).map(|member| member.draining) {
            self.member.draining = asked;
        }
    }
}

#[cfg(test)]
mod tests {
    use abide_kernel::shard::Command;
    use abide_store::Owned;
    use parking_lot::Mutex;

    use super::*;

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

    fn member(process: &str) -> Member {
        Member { process: process.into(), node: process.into(), address: process.into(), draining: false }
    }

    /// A node that serves nothing; another serves the only shard.
    fn ring() -> (Ring, Arc<Kept>) {
        let link = Arc::<Kept>::default();
        let mut ring = Ring::new(member("one"), link.clone(), 10_000, false);
        let living = ["one", "two"].map(|process| Living { member: member(process), until: Timestamp(10_000) });
        let shards = vec![Owned { shard: ShardId(0), epoch: ShardEpoch(1), owner: Some("two".into()) }];
        ring.learn(Membership { now: Timestamp(0), living: living.to_vec(), shards, ..Membership::default() });
        (ring, link)
    }

    fn forward(ring: &mut Ring, ticket: u64) {
        let command = Command::Compact { run: RunId(1) };
        assert!(command.is_repeatable());
        ring.forward(Timestamp(0), Ticket(ticket), Slot(0), command, Waiter::Nobody);
        assert!(ring.ask(Timestamp(0), Ticket(ticket), ShardId(0)).is_none());
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
        let done = Answer::Refused(Refusal::NotFound { run: RunId(1) });
        assert!(ring.answered(Timestamp(0), &"two".into(), first, &done).is_some());

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
        assert!(ring.answered(Timestamp(0), &"two".into(), first, &Answer::Refused(Refusal::Unknown)).is_none());
        let due = ring.due(Timestamp(ASK_AGAIN_MS as i64));
        assert_eq!(due, [(Ticket(1), Slot(0))]);
        assert!(ring.ask(Timestamp(ASK_AGAIN_MS as i64), Ticket(1), ShardId(0)).is_none());
        let (second, settled) = link.asked();
        assert_ne!(first, second);
        assert_eq!(settled, second);
        // What is said to the first is said to nobody.
        let done = Answer::Refused(Refusal::NotFound { run: RunId(1) });
        assert!(ring.answered(Timestamp(0), &"two".into(), first, &done).is_none());
        assert!(ring.answered(Timestamp(0), &"two".into(), second, &done).is_some());
    }

    /// SE-38, D36: what a caller is told is the last that is done of a command. Who was asked before may have refused what
    /// whoever was asked next then did.
    #[test]
    fn an_answer_of_one_who_was_asked_before_is_not_taken() {
        let (mut ring, link) = ring();
        forward(&mut ring, 1);
        let (id, _) = link.asked();
        ring.learn_took(Timestamp(0), &member("three"), &[(ShardId(0), ShardEpoch(2))]);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(0)).is_none());
        assert_eq!(link.asked().0, id);
        let done = Answer::Refused(Refusal::NotFound { run: RunId(1) });
        assert!(ring.answered(Timestamp(0), &"two".into(), id, &done).is_none());
        assert!(ring.answered(Timestamp(0), &"three".into(), id, &done).is_some());
    }

    /// SE-38: word that nothing was done counts for the ownership under which it was asked, and not for one under which it
    /// may be done since. Whoever serves the shard under another is asked under that at once.
    #[test]
    fn what_was_not_done_under_one_ownership_may_be_done_under_the_next() {
        let (mut ring, link) = ring();
        forward(&mut ring, 1);
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
        assert!(ring.forwards[&Ticket(1)].asked.is_some());
    }

    /// SE-38: what must not be done twice is not asked for longer than whoever did it remembers that.
    #[test]
    fn what_must_not_be_done_twice_is_given_up_before_it_is_forgotten() {
        let (mut ring, _) = ring();
        let command = Command::Purge { run: RunId(1) };
        assert!(!command.is_repeatable());
        ring.forward(Timestamp(0), Ticket(1), Slot(0), command, Waiter::Nobody);
        assert!(ring.ask(Timestamp(0), Ticket(1), ShardId(0)).is_none());
        let half = (LEASES_REMEMBERED / 2 * ring.lease_ms) as i64;
        assert!(ring.ask(Timestamp(half), Ticket(1), ShardId(0)).is_none());
        assert!(ring.ask(Timestamp(half + 1), Ticket(1), ShardId(0)).is_some());
    }
}
