//! Membership: a node renews its lease, takes shards that are free, hands over those it has too many of, and lets go of
//! what is no longer its own. Everything that others did meanwhile is refused by the store; this only notices in time.

use std::sync::atomic::Ordering;

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Abandoned, Answer, Command, Ticket};
use abide_kernel::{ClaimId, Phase, Refusal, Shard, ShardEpoch, ShardId, Slot, Str, Timestamp};
use abide_store::intake::HOST;
use abide_store::{Fault, FaultKind, Member, Reader, Store};
use tokio::sync::oneshot;

use crate::clock;
use crate::commit::Releasing;
use crate::core::{Core, Waiter};
use crate::dispatch::{Reply, tell};
use crate::driver::Shared;
use crate::engine::Engine;
use crate::link::{Letter, Mail, unknown};
use crate::recovery::newest_run;
use crate::ring::Serves;

/// Commits after which a shard that is handed over goes, however busy it is.
const LAST_COMMITS: usize = 4;

impl Engine {
    /// Asks a node to hand over what it serves and to take nothing more, or to take its share again, and lets all nodes look
    /// at once; word that is lost costs them the time to their next renewal. Whether there is such a process. It blocks.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn drain_node(&self, process: &str, draining: bool) -> Result<bool, Fault> {
        let shared = &self.shared;
        let mut visit = shared.visit();
        let Some(cluster) = visit.cluster() else { return Ok(false) };
        if !cluster.drain(process, draining)? {
            return Ok(false);
        }
        let now = shared.now();
        let mut core = shared.core.lock();
        core.another_joined(now);
        if let Some(ring) = &core.ring {
            ring.tell_all(&Letter::Joined);
        }
        Ok(true)
    }
}

impl Shared {
    /// Renews the lease if it is time, and brings what is served here in line with it. Whether anything was done.
    pub(crate) fn renew_if_due(&self, store: &mut dyn Store) -> bool {
        if !self.renewal_is_due() {
            return false;
        }
        if let Err(fault) = self.renew(store) {
            tracing::warn!(%fault, "the lease could not be renewed");
            match fault.kind {
                FaultKind::Refused | FaultKind::Unknown | FaultKind::Held => {}
                FaultKind::Fatal | FaultKind::Corrupt { .. } | FaultKind::Importing | FaultKind::Unusable => {
                    self.close(&fault.message);
                }
            }
        }
        true
    }

    fn renewal_is_due(&self) -> bool {
        self.core.lock().ring.as_ref().is_some_and(|ring| ring.next_renewal <= self.now())
    }

    /// Renews the lease, and brings what is served here in line with who lives.
    pub(crate) fn renew(&self, store: &mut dyn Store) -> Result<(), Fault> {
        let (member, lease) = {
            let mut core = self.core.lock();
            let now = self.now();
            let Some(ring) = &mut core.ring else { return Ok(()) };
            // If it fails it is tried again, long before the lease ends.
            ring.next_renewal = now.after(ring.lease_ms / 10);
            ring.tried_at = Some(now);
            (ring.member.clone(), std::time::Duration::from_millis(ring.lease_ms))
        };
        let before = self.clock.now();
        let Some(cluster) = store.cluster() else { return Ok(()) };
        let view = cluster.renew(&member, lease)?;
        let after = self.clock.now();
        let known = self.core.lock().ring.as_ref().is_some_and(|ring| ring.renewed);
        let known = known.then(|| self.offset.load(Ordering::Acquire));
        let offset = clock::offset(known, view.now, before, after);
        let drift = offset - self.offset.swap(offset, Ordering::AcqRel);
        let (give, take) = {
            let mut core = self.core.lock();
            let now = self.now();
            let Some(ring) = &mut core.ring else { return Ok(()) };
            let first = !std::mem::replace(&mut ring.renewed, true);
            ring.learn(view);
            if first {
                ring.tell_all(&Letter::Joined);
            }
            ring.tried_at = Some(now);
            ring.next_renewal = ring.next_look(now);
            ring.serves_until = Timestamp(before.0 + offset).after(ring.lease_ms - ring.lease_ms / 10);
            let runs_away = !first && drift.unsigned_abs() > ring.lease_ms / 4;
            let mut told = Vec::new();
            core.let_go(now, runs_away, &mut told);
            core.look_at_desks(now);
            self.follow_others(&core);
            self.tell_rules(&core);
            core.tell_damage();
            let served: Vec<ShardId> = core.served().map(Shard::id).collect();
            core.mail_waits(&served);
            let planned = core.ring.as_ref().map(|ring| ring.plan(&served)).unwrap_or_default();
            drop(core);
            tell_unknown(told);
            if runs_away {
                tracing::error!(drift, "this node's clock runs away from the store's; its shards are opened anew");
            }
            planned
        };
        self.hand_over(store, &give)?;
        self.take_all(store, &take)?;
        self.release_strays(store)?;
        self.reroute();
        Ok(())
    }

    /// Gives up what the store thinks is served here and is not: a shard was taken, and could not be read then.
    fn release_strays(&self, store: &mut dyn Store) -> Result<(), Fault> {
        let strays: Vec<(ShardId, ShardEpoch)> = {
            let core = self.core.lock();
            let Some(ring) = &core.ring else { return Ok(()) };
            let ours = ring.view.shards.iter().filter(|owned| owned.owner.as_ref() == Some(&self.process));
            let absent = |id: ShardId| core.shards[usize::from(id.0)].is_none();
            ours.filter(|owned| absent(owned.shard)).map(|owned| (owned.shard, owned.epoch)).collect()
        };
        let released = self.release_all(store, strays)?;
        if let (false, Some(ring)) = (released.is_empty(), &self.core.lock().ring) {
            ring.tell_all(&Letter::Released(released));
        }
        Ok(())
    }

    /// Gives shards up in the store, and tells which: one whose record is damaged cannot be released either.
    fn release_all(
        &self,
        store: &mut dyn Store,
        shards: Vec<(ShardId, ShardEpoch)>,
    ) -> Result<Vec<(ShardId, ShardEpoch)>, Fault> {
        let mut released = Vec::with_capacity(shards.len());
        for (id, epoch) in shards {
            let Some(cluster) = store.cluster() else { break };
            match cluster.release(id, epoch) {
                Ok(()) => released.push((id, epoch)),
                Err(fault) => self.set_shard_aside(id, fault)?,
            }
        }
        Ok(released)
    }

    /// Takes shards, and tells the others.
    pub(crate) fn take_all(&self, store: &mut dyn Store, shards: &[ShardId]) -> Result<(), Fault> {
        let mut took = Vec::new();
        let mut failed = None;
        let mut reader = None;
        for (number, id) in shards.iter().enumerate() {
            // Opening may take long. The lease is kept meanwhile, or another would take what is opened here, and so for ever;
            // the rest is taken after the renewal, which comes at once.
            if number > 0 && self.renewal_is_due() {
                break;
            }
            match self.take(store, &mut reader, *id) {
                Ok(epoch) => took.push((*id, epoch)),
                // Someone else was quicker.
                Err(fault) if fault.kind == FaultKind::Held => {}
                Err(fault) => {
                    failed = self.set_shard_aside(*id, fault).err();
                    if failed.is_some() {
                        break;
                    }
                }
            }
        }
        if !took.is_empty()
            && let Some(ring) = &self.core.lock().ring
        {
            ring.tell_all(&Letter::Took(took));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes a shard. The reader is made when it is needed, and good for all that are taken together.
    fn take(
        &self,
        store: &mut dyn Store,
        reader: &mut Option<Box<dyn Reader>>,
        id: ShardId,
    ) -> Result<ShardEpoch, Fault> {
        let mut shard = self.open_shard(store, id)?;
        let reader = match reader {
            Some(reader) => reader,
            none => none.insert(store.reader()?),
        };
        if let Some(newest) = newest_run(reader.as_mut())? {
            shard.newest_run(newest);
        }
        self.join_pools(&mut shard);
        let envelopes = store.read_envelopes(id, usize::MAX / 2)?;
        let epoch = shard.epoch();
        let now = self.now();
        let mut core = self.core.lock();
        let sent: Vec<u64> = shard.sent().to_vec();
        core.desk.join(&mut shard);
        // They may have changed since it was opened.
        shard.go_by(&self.rules.lock());
        core.shards[usize::from(id.0)] = Some(shard);
        self.tell_anew(&core);
        self.give_back_undelivered(&mut core, id);
        let map = core.map;
        if let Some(ring) = &mut core.ring {
            ring.came(id);
            if let Some(owned) = ring.view.shards.get_mut(usize::from(id.0)) {
                owned.epoch = epoch;
                owned.owner = Some(self.process.clone());
            }
            // Whoever had it may have died before its receivers heard of what it sent.
            map.all()
                .zip(sent)
                .filter(|(to, sent)| *to != id && *sent > 0)
                .for_each(|(to, sent)| ring.owe(id, to, sent));
            ring.send_mail(now);
        }
        for envelope in envelopes {
            if let Some(shard) = core.at(id) {
                shard.receive(now, envelope);
            }
        }
        core.fill(now);
        drop(core);
        if id == HOST {
            self.ring_intake();
        }
        Ok(epoch)
    }

    /// Gives shards up in good order: what they gathered is durable and has left, and another can go on at once.
    pub(crate) fn hand_over(&self, store: &mut dyn Store, shards: &[ShardId]) -> Result<(), Fault> {
        if shards.is_empty() {
            return Ok(());
        }
        for _ in 0..LAST_COMMITS {
            let mut hints = Vec::new();
            self.append_gathered(store, true, Releasing::Here, &mut hints);
            self.hint_all(hints);
            let core = self.core.lock();
            if core.closed.is_some() {
                return Ok(());
            }
            if !shards.iter().any(|id| core.is_busy(*id)) {
                break;
            }
        }
        let mut told = Vec::new();
        let mut released = Vec::new();
        {
            let now = self.now();
            let mut core = self.core.lock();
            for id in shards {
                released.extend(core.at(*id).map(|shard| (*id, shard.epoch())));
                core.drop_shard(now, *id, &mut told);
            }
        }
        tell_unknown(told);
        let released = self.release_all(store, released)?;
        let mut core = self.core.lock();
        if let Some(ring) = &mut core.ring {
            for (id, _) in &released {
                if let Some(owned) = ring.view.shards.get_mut(usize::from(id.0)) {
                    owned.owner = None;
                }
            }
            ring.tell_all(&Letter::Released(released));
        }
        Ok(())
    }

    /// Leaves for good: every shard is handed over, and the lease ends.
    pub(crate) fn leave(&self, store: &mut dyn Store) {
        let served: Vec<ShardId> = {
            let core = self.core.lock();
            // Of an engine that was closed nothing more is written: its shards are ahead of the store.
            if core.ring.is_none() || core.closed.is_some() {
                return;
            }
            core.served().map(Shard::id).collect()
        };
        let left = self.hand_over(store, &served).and_then(|()| match store.cluster() {
            Some(cluster) => cluster.leave(&self.process),
            None => Ok(()),
        });
        if let Err(fault) = left {
            tracing::warn!(%fault, "the shards could not be handed over; others take them when the lease ends");
        }
    }

    /// The ownership under which a shard is served here.
    pub(crate) fn epoch_here(&self, id: ShardId) -> Option<ShardEpoch> {
        self.core.lock().at(id).map(|shard| shard.epoch())
    }

    /// The ownership under which a shard is served, here or elsewhere, as far as is known.
    pub(crate) fn epoch_known(&self, id: ShardId) -> Option<ShardEpoch> {
        let core = self.core.lock();
        let here = core.shards[usize::from(id.0)].as_ref().map(Shard::epoch);
        let there = || core.ring.as_ref()?.view.shards.get(usize::from(id.0)).map(|owned| owned.epoch);
        here.or_else(there)
    }

    /// Commands that wait for another node go where they belong now.
    pub(crate) fn reroute(&self) {
        let mut replies = Vec::new();
        self.core.lock().reroute(self.now(), &mut replies);
        tell(replies);
        self.bell.ring();
    }
}

/// Tells those who wait for what was dropped that nobody knows.
pub(crate) fn tell_unknown(told: Vec<oneshot::Sender<Answer>>) {
    for waiter in told {
        let _ = waiter.send(unknown());
    }
}

impl Core {
    /// Whether a shard has something that is not durable, or not let out.
    fn is_busy(&self, id: ShardId) -> bool {
        let shard = self.shards[usize::from(id.0)].as_ref();
        shard.is_some_and(|shard| shard.wants_append() || shard.has_outputs())
    }

    /// Lets go of every shard that another took, or of all.
    fn let_go(&mut self, now: Timestamp, all: bool, told: &mut Vec<oneshot::Sender<Answer>>) {
        let Some(ring) = &self.ring else { return };
        let ours = |shard: &Shard| {
            let owned = ring.view.shards.get(usize::from(shard.id().0));
            owned
                .is_some_and(|owned| owned.epoch == shard.epoch() && owned.owner.as_ref() == Some(&ring.member.process))
        };
        let gone: Vec<ShardId> = self.served().filter(|shard| all || !ours(shard)).map(Shard::id).collect();
        for id in gone {
            self.drop_shard(now, id, told);
        }
    }

    /// The lease is over: nothing is served any more.
    pub(crate) fn lapse(&mut self, now: Timestamp, told: &mut Vec<oneshot::Sender<Answer>>) {
        if self.ring.as_ref().is_none_or(|ring| now < ring.serves_until) || self.served().next().is_none() {
            return;
        }
        tracing::warn!("this node's lease is over before it was renewed: it serves nothing until it is");
        for id in self.map.all() {
            self.drop_shard(now, id, told);
        }
    }

    /// A shard is no longer served here. Commands that may be given again go to whoever serves it next.
    pub(crate) fn drop_shard(&mut self, now: Timestamp, id: ShardId, told: &mut Vec<oneshot::Sender<Answer>>) {
        let Some(mut shard) = self.shards[usize::from(id.0)].take() else { return };
        shard.withdraw(&mut self.throttle);
        let map = self.map;
        self.spans.forget(|run| map.home(run.slot()) == id);
        let Abandoned { tickets, undelivered } = shard.abandon();
        for (worker, by) in undelivered {
            match self.pools.get_mut(worker.0 as usize) {
                Some(pool) => pool.running -= 1,
                None => self.desk.lost(&by, &mut self.handed),
            }
        }
        for ticket in tickets {
            let Some((waiter, again)) = self.take_waiting(ticket) else { continue };
            match (waiter, again) {
                (Waiter::There { process, id }, _) => self.answer_there(&process, id, unknown()),
                (waiter, Some((slot, command))) => {
                    let waiter = if command.changes_nothing() { waiter } else { waiter.again() };
                    self.forward(now, ticket, slot, *command, waiter);
                }
                (Waiter::Here(sender) | Waiter::Again(sender), None) => told.push(sender),
                (Waiter::Beat(_) | Waiter::Nobody, None) => {}
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.left(id);
            ring.look_soon();
        }
    }

    /// Keeps a command for whoever serves its shard, and asks them if they are known.
    pub(crate) fn forward(&mut self, now: Timestamp, ticket: Ticket, slot: Slot, command: Command, waiter: Waiter) {
        let home = self.map.home(slot);
        if let Some(ring) = &mut self.ring {
            ring.forward(now, ticket, slot, command, waiter);
            // It was never asked before, so that nothing can be unknown.
            let _ = ring.ask(now, ticket, home);
        }
    }

    /// Every command that waits for another node is given to its shard here, or to whoever serves it.
    pub(crate) fn reroute(&mut self, now: Timestamp, replies: &mut Vec<Reply>) {
        let forwarded = self.ring.as_ref().map(crate::ring::Ring::forwarded).unwrap_or_default();
        self.route(now, forwarded, replies);
        if let Some(ring) = &mut self.ring {
            ring.send_mail(now);
        }
    }

    /// Says again what is due to be said again.
    pub(crate) fn ask_again(&mut self, now: Timestamp, replies: &mut Vec<Reply>) {
        let due = self.ring.as_mut().map(|ring| ring.due(now)).unwrap_or_default();
        self.route(now, due, replies);
    }

    fn route(&mut self, now: Timestamp, forwarded: Vec<(Ticket, Slot)>, replies: &mut Vec<Reply>) {
        for (ticket, slot) in forwarded {
            let home = self.map.home(slot);
            let serves = self.serves(now, home);
            let Some(ring) = &mut self.ring else { return };
            let lost = if serves {
                let Some(forward) = ring.take_forward(ticket) else { continue };
                if forward.may_go_on() {
                    let (command, waiter) = forward.into_parts();
                    self.place(now, ticket, slot, command, waiter);
                    continue;
                }
                Some(forward.waiter)
            } else if let Some((waiter, answer)) = ring.take_hopeless(ticket, home) {
                self.reply(waiter, answer, replies);
                continue;
            } else {
                ring.ask(now, ticket, home)
            };
            if let Some(waiter) = lost {
                self.reply(waiter, unknown(), replies);
            }
        }
    }

    /// Brings an envelope to its shard, or tells whoever serves it. Whether it is here.
    pub(crate) fn deliver(&mut self, now: Timestamp, envelope: Envelope) -> bool {
        let (from, to, number) = (envelope.from, envelope.to, envelope.number);
        if let Some(shard) = self.at(to) {
            if shard.expects(from) >= number {
                shard.receive(now, envelope);
            } else if let Some(ring) = &mut self.ring {
                // Some before it came while the shard was elsewhere.
                ring.mail.entry(to).or_default();
            }
            return true;
        }
        if let Some(ring) = &mut self.ring {
            ring.owe(from, to, number);
        }
        false
    }

    /// Tells a waiter; callers here are told without the lock.
    pub(crate) fn reply(&mut self, waiter: Waiter, answer: Answer, replies: &mut Vec<Reply>) {
        match waiter {
            Waiter::Here(sender) => replies.push((sender, answer)),
            Waiter::Again(sender) => {
                let known = !matches!(answer, Answer::Refused(Refusal::Corrupt { .. }));
                replies.push((sender, if known { answer } else { unknown() }));
            }
            Waiter::There { process, id } => self.answer_there(&process, id, answer),
            Waiter::Beat(claim) => {
                if let (Answer::Refused(_), Some(executing)) = (&answer, self.executing.get(&claim)) {
                    executing.news.revoke();
                }
            }
            Waiter::Nobody => {}
        }
    }

    pub(crate) fn answer_there(&mut self, process: &Str, id: u64, answer: Answer) {
        if let Some(ring) = &mut self.ring {
            ring.answer(process, id, answer);
        }
    }

    /// Another node answered.
    pub(crate) fn answered(&mut self, now: Timestamp, id: u64, answer: Answer, replies: &mut Vec<Reply>) {
        let waiter = self.ring.as_mut().and_then(|ring| ring.answered(now, id, &answer));
        if let Some(waiter) = waiter {
            self.reply(waiter, answer, replies);
        }
    }

    pub(crate) fn is_elsewhere(&mut self, now: Timestamp, id: u64, from: &Member, epoch: ShardEpoch, serves: Serves) {
        if let Some(ring) = &mut self.ring {
            ring.is_elsewhere(now, id, from, epoch, serves);
        }
    }

    /// Another node no longer wants to know what it asked.
    pub(crate) fn forget_asked(&mut self, process: &Str, id: u64) {
        let peer = self.ring.as_mut().and_then(|ring| ring.peers.get_mut(process));
        if let Some((run, ticket)) = peer.and_then(|peer| peer.forget(id)) {
            drop(self.unwatch(run, ticket));
        }
    }

    /// Another node says that envelopes wait in the store for shards of ours.
    pub(crate) fn mail_came(&mut self, from: &Member, mail: Vec<Mail>) {
        let mut known = Vec::new();
        for mail in mail {
            let Some(expects) = self.at(mail.to).map(|shard| shard.expects(mail.from)) else { continue };
            let Some(ring) = &mut self.ring else { return };
            if expects > mail.number {
                known.push(mail);
            } else {
                ring.mail.entry(mail.to).or_default().push((from.clone(), mail));
            }
        }
        if let (false, Some(ring)) = (known.is_empty(), &self.ring) {
            ring.send(from, Letter::Fetched(known));
        }
    }

    /// The store says that envelopes wait for shards here: whoever sent them could perhaps not say so.
    fn mail_waits(&mut self, served: &[ShardId]) {
        let Some(ring) = &mut self.ring else { return };
        for shard in std::mem::take(&mut ring.view.mail).into_iter().filter(|shard| served.contains(shard)) {
            ring.mail.entry(shard).or_default();
        }
    }

    pub(crate) fn mail_fetched(&mut self, mail: &[Mail]) {
        if let Some(ring) = &mut self.ring {
            ring.mail_fetched(mail);
        }
    }

    /// Another node says that it serves shards now.
    pub(crate) fn others_took(
        &mut self,
        now: Timestamp,
        from: &Member,
        shards: &[(ShardId, ShardEpoch)],
        replies: &mut Vec<Reply>,
    ) {
        if let Some(ring) = &mut self.ring {
            ring.learn_took(now, from, shards);
        }
        let mut told = Vec::new();
        for (id, epoch) in shards {
            if self.at(*id).is_some_and(|shard| shard.epoch() < *epoch) {
                self.drop_shard(now, *id, &mut told);
            }
        }
        replies.extend(told.into_iter().map(|sender| (sender, unknown())));
        self.reroute(now, replies);
    }

    /// Another node is there, and wants its share.
    pub(crate) fn another_joined(&mut self, now: Timestamp) {
        if let Some(ring) = &mut self.ring {
            ring.next_renewal = ring.next_renewal.min(now);
        }
    }

    pub(crate) fn others_released(&mut self, now: Timestamp, shards: &[(ShardId, ShardEpoch)]) {
        if let Some(ring) = &mut self.ring {
            ring.learn_released(now, shards);
        }
    }

    /// The process that executes an attempt, if it is another one.
    pub(crate) fn executed_elsewhere(&self, claim: ClaimId) -> Option<&Member> {
        let ring = self.ring.as_ref()?;
        let shard = self.shards[usize::from(self.map.home(claim.run.slot()).0)].as_ref()?;
        let cursors = &shard.run(claim.run)?.cursors;
        let held = |phase: &Phase| matches!(phase, Phase::Claimed(held) if held.number == claim.number);
        let cursor = cursors.iter().find(|cursor| held(&cursor.phase))?;
        ring.find(cursor.claimant.as_ref()?.process.as_ref()?)
    }
}
