//! Messages: from run to run within the batch when both are here and in memory, else by durable envelope.

use alloc::vec::Vec;

use super::{Load, Shard};
use crate::envelope::{DeadEnvelope, Envelope, Message};
use crate::transition::{Transition, cancel, child, start};
use crate::{ChildAnswered, Fact, Facts, RunId, ShardId, Started};

/// What the store just said.
pub(super) enum Known<'a> {
    /// Nothing.
    Nothing,
    /// This run is in memory now, or does not exist.
    Run(RunId),
    /// This run's record is damaged.
    Corrupt(RunId, &'a str),
    /// Whoever occupies this key is in memory now, or nobody does.
    Key(&'a str),
    /// The record of whoever occupies this key is damaged.
    CorruptKey(&'a str, &'a str),
}

impl Known<'_> {
    fn is_run(&self, id: RunId) -> bool {
        matches!(self, Self::Run(known) | Self::Corrupt(known, _) if *known == id)
    }

    fn is_key(&self, identity: &str) -> bool {
        matches!(self, Self::Key(known) | Self::CorruptKey(known, _) if *known == identity)
    }

    /// What is wrong with the record that a message needs, if that is what was found.
    fn damage(&self, message: &Message) -> Option<&str> {
        match (self, message) {
            (Self::Corrupt(run, found), _) => (message.target() == Some(*run)).then_some(*found),
            (Self::CorruptKey(identity, found), Message::AdmitChild { started, .. }) => {
                let key = started.spec.key.as_ref()?;
                (started.spec.key_identity(&key.key) == *identity).then_some(*found)
            }
            _ => None,
        }
    }
}

impl Shard {
    /// Takes in an envelope from a shard. One that was consumed before is ignored; the rest are consumed in order.
    pub fn receive(&mut self, now: crate::Timestamp, envelope: Envelope) {
        self.advance(now);
        if envelope.number == self.expects(envelope.from) {
            self.inbound[usize::from(envelope.from.0)].push_back(envelope);
        }
        self.consume_inbound(&Known::Nothing);
        self.pump();
    }

    /// Delivers every queued message: at once where the target is in memory, by envelope elsewhere.
    pub(super) fn pump(&mut self) {
        while let Some(message) = self.messages.pop_front() {
            let home = self.home(message.slot());
            if home == self.config.id && self.need(&message, &Known::Nothing).is_none() {
                self.obey(message);
            } else {
                self.send(home, message);
            }
        }
    }

    fn send(&mut self, to: ShardId, message: Message) {
        let sent = &mut self.config.sent[usize::from(to.0)];
        *sent += 1;
        let envelope = Envelope { from: self.config.id, to, number: *sent, message };
        self.batch.envelopes.push(envelope);
    }

    /// Consumes what can be consumed, in order per sender. The first envelope whose target must be loaded holds up
    /// those behind it; `known` is what was just loaded, or just found not to exist.
    pub(super) fn consume_inbound(&mut self, known: &Known<'_>) {
        for sender in 0..self.inbound.len() {
            while let Some(envelope) = self.inbound[sender].front() {
                if let Some(need) = self.need(&envelope.message, known) {
                    if let Some(absent) = self.found_absent(&envelope.message, known) {
                        self.absent.insert(absent, ());
                    }
                    self.load_for_inbound(need);
                    break;
                }
                let Some(envelope) = self.inbound[sender].pop_front() else {
                    break;
                };
                self.config.consumed[sender] = envelope.number;
                self.note_consumed(envelope.from, envelope.number);
                match known.damage(&envelope.message) {
                    Some(found) => self.batch.dead.push(DeadEnvelope { reason: found.into(), envelope }),
                    None => self.obey(envelope.message),
                }
            }
        }
    }

    fn load_for_inbound(&mut self, need: Load) {
        match &need {
            Load::Run(run) if !self.waiting_runs.contains_key(run) => {
                self.waiting_runs.insert(*run, Vec::new());
                self.loads.push(need);
            }
            Load::Key(identity) if !self.waiting_keys.contains_key(identity) => {
                self.waiting_keys.insert(identity.clone(), Vec::new());
                self.loads.push(need);
            }
            _ => {}
        }
    }

    /// What must be loaded before the message can be obeyed; `None` when everything is in memory or known not to
    /// exist.
    fn need(&self, message: &Message, known: &Known<'_>) -> Option<Load> {
        let id = match message {
            Message::AdmitChild { child, started, .. } => return self.need_to_admit(*child, started, known),
            Message::Forward { .. } => return None,
            Message::Begin { run, .. } if self.recent.is_first(*run, self.now) => return None,
            Message::Begin { run, .. } | Message::Cancel { run, .. } | Message::ParentPurged { run, .. } => *run,
            Message::Begun { reservation } | Message::KeyFreed { reservation } => *reservation,
            Message::ChildAnswered { parent, .. } | Message::ChildEnded { parent, .. } => *parent,
        };
        (!self.runs.contains_key(&id) && !known.is_run(id)).then_some(Load::Run(id))
    }

    /// A child is admitted when it is known whether it began before, and who has its key.
    fn need_to_admit(&self, child: RunId, started: &Started, known: &Known<'_>) -> Option<Load> {
        let local = self.record_of(child, &started.spec, started.request);
        if self.runs.contains_key(&local) {
            return None;
        }
        let absent = self.absent.contains_key(&local) || known.is_run(local) || self.recent.is_first(local, self.now);
        if !absent {
            return Some(Load::Run(local));
        }
        let key = started.spec.key.as_ref()?;
        let identity = started.spec.key_identity(&key.key);
        let known = self.keys.contains_key(&identity) || known.is_key(&identity);
        (!known).then_some(Load::Key(identity))
    }

    /// The record of a child that was looked for and not found, to be remembered while its key is looked for.
    fn found_absent(&self, message: &Message, known: &Known<'_>) -> Option<RunId> {
        let Message::AdmitChild { child, started, .. } = message else {
            return None;
        };
        let local = self.record_of(*child, &started.spec, started.request);
        (known.is_run(local) && !self.runs.contains_key(&local)).then_some(local)
    }

    fn note_consumed(&mut self, sender: ShardId, number: u64) {
        match self.batch.consumed.iter_mut().find(|(known, _)| *known == sender) {
            Some((_, last)) => *last = number,
            None => self.batch.consumed.push((sender, number)),
        }
    }

    fn obey(&mut self, message: Message) {
        match message {
            Message::AdmitChild { child, started, .. } => self.admit_child(child, started),
            Message::Forward { message, .. } => self.messages.push_back(*message),
            Message::Begin { run, started } => {
                let reservation = started.reservation;
                if !self.runs.contains_key(&run) && !self.gone.contains_key(&run) {
                    self.begin(run, start::decide(run, *started, self.now).facts);
                }
                if let Some(reservation) = reservation {
                    self.messages.push_back(Message::Begun { reservation });
                }
            }
            Message::Begun { reservation } => {
                if self.runs.get(&reservation).is_some_and(|resident| resident.run.awaits_beginning()) {
                    let facts = Facts::from_iter([Fact::Begun]);
                    self.transact(reservation, Transition { facts, messages: Vec::new() });
                }
                for (ticket, answer) in self.beginning.remove(&reservation).unwrap_or_default() {
                    self.answer(Some(ticket), answer);
                }
            }
            Message::KeyFreed { reservation } => self.free_key(reservation),
            Message::ChildAnswered { parent, child, answer } => {
                let Some(resident) = self.runs.get(&parent) else {
                    return;
                };
                let transition = child::decide_answered(&resident.run, ChildAnswered { child, answer });
                self.transact(parent, transition);
            }
            Message::ChildEnded { parent, ended } => {
                let Some(resident) = self.runs.get(&parent) else {
                    return;
                };
                let transition = child::decide_ended(&resident.run, *ended);
                self.transact(parent, transition);
            }
            Message::Cancel { run, request, cascade, reason } => {
                let Some(resident) = self.runs.get(&run) else {
                    return;
                };
                if let Ok(transition) = cancel::decide(&resident.run, request, cascade, &reason) {
                    self.transact(run, transition);
                }
            }
            Message::ParentPurged { run, parent } => {
                let Some(resident) = self.runs.get(&run) else {
                    return;
                };
                let ours = resident.run.started.parent.as_ref().is_some_and(|link| link.run == parent);
                if ours && !resident.run.orphaned {
                    let facts = Facts::from_iter([Fact::ParentPurged]);
                    self.transact(run, Transition { facts, messages: Vec::new() });
                }
            }
        }
    }

    /// The record that held a key for a run elsewhere is no longer needed.
    fn free_key(&mut self, reservation: RunId) {
        let Some(resident) = self.runs.get(&reservation) else {
            return;
        };
        if resident.run.end.is_none() {
            let facts = Facts::from_iter([crate::transition::complete::ended(crate::Status::Done)]);
            self.transact(reservation, Transition { facts, messages: Vec::new() });
        }
    }
}
