//! The ring: what a node knows of the others that share its store, what it asked of them, and what they asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_kernel::shard::{Answer, Ticket};
use abide_kernel::{RunId, ShardEpoch, ShardId, Str, Timestamp};
use abide_store::{Living, Member, Membership};

use crate::link::{Letter, Link, Mail};
use crate::roster::RollCalls;

mod questions;

use questions::{ASK_AGAIN_MS, Forward};
pub(crate) use questions::{Serves, reads};

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
    /// Those of them that change something, by who was asked: below the first, that node need not remember anything.
    unsettled: BTreeMap<Str, BTreeSet<u64>>,
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

/// What a node asked, and what it was answered.
#[derive(Default)]
pub(crate) struct Peer {
    heard_at: Timestamp,
    settled: u64,
    asks: BTreeMap<u64, Option<Answer>>,
    /// Questions that may wait for months: nothing is kept of their answers.
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

    /// A question that may wait for long waits under a ticket.
    pub(crate) fn reads(&mut self, id: u64, run: RunId, ticket: Ticket) {
        self.reading.insert(id, (run, ticket));
    }

    pub(crate) fn forget(&mut self, id: u64) -> Option<(RunId, Ticket)> {
        self.reading.remove(&id)
    }
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
            unsettled: BTreeMap::new(),
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

    /// When the membership is looked at next, if nothing happens: in time for the own lease, and when that of another ends
    /// before. One that lives renews so early that this is never so.
    pub(crate) fn next_look(&self, now: Timestamp) -> Timestamp {
        let others = self.view.living.iter().filter(|living| living.member.process != self.member.process);
        // A little later, because clocks differ a little.
        let margin = self.lease_ms / 100;
        let over = others.map(|living| living.until.max(now).after(margin)).min();
        let usual = now.after(self.lease_ms / 3);
        over.map_or(usual, |over| over.min(usual))
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

    pub(crate) fn find(&self, process: &str) -> Option<&Member> {
        self.view.living.iter().map(|living| &living.member).find(|member| *member.process == *process)
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
    /// Whether a question was on its way for so long that it may have been answered, and that forgotten: it would be another
    /// question then. Clocks may differ by the rest.
    pub(crate) fn is_late(&self, now: Timestamp, at: Timestamp) -> bool {
        now.since(at) > LEASES_REMEMBERED / 4 * self.lease_ms
    }

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
