//! Admit: a start is decided by the home of its business key, else by the run's own home.

use alloc::boxed::Box;

use super::load::Waiting;
use super::{Answer, Command, Load, Shard, Ticket};
use crate::envelope::Message;
use crate::transition::start::{self, StartAnswer};
use crate::{ChildAnswer, Parent, Refusal, RequestId, RunId, StartSpec, Started};

impl Shard {
    /// Decides on a start.
    pub(super) fn start(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        if let Err(refusal) = spec.validate() {
            return self.answer(ticket, Answer::Refused(refusal));
        }
        let slot = spec.admission_slot(request);
        if self.home(slot) != self.config.id {
            let found = alloc::format!("one for {:?}", self.home(slot));
            return self.answer(
                ticket,
                Answer::Refused(Refusal::invalid("start", "a start for this shard", found)),
            );
        }
        if let Some(key) = &spec.key {
            let identity = spec.key_identity(&key.key);
            if !self.keys.contains_key(&identity) {
                return self.wait_for_key(
                    identity,
                    Waiting {
                        ticket,
                        command: Command::Start { request, spec },
                    },
                );
            }
            return self.start_keyed(ticket, request, spec);
        }
        let id = spec.run_id(request);
        if self.runs.contains_key(&id) {
            return self.answer(ticket, Answer::Started(StartAnswer::Created(id)));
        }
        if !self.recent.is_first(id, self.now) {
            return self.wait_for_run(
                id,
                Waiting {
                    ticket,
                    command: Command::Start { request, spec },
                },
            );
        }
        self.start_new(ticket, id, start::started(*spec, request, None));
    }

    /// Decides on a start whose business key is known: taken by a run in memory, or free.
    pub(super) fn start_keyed(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        let Some(key) = &spec.key else { return };
        let identity = spec.key_identity(&key.key);
        if let Some(holder) = self.keys.get(&identity).copied() {
            let Some(holder) = self.runs.get(&holder) else {
                return;
            };
            let answer = Answer::Started(start::conflict(&holder.run, &spec, request));
            let reservation = holder.run.id;
            // A run in another shard may not have begun yet: its first answer leaves when it has.
            if let Some(waiting) = self.beginning.get_mut(&reservation) {
                waiting.extend(ticket.map(|ticket| (ticket, answer)));
                return;
            }
            return self.answer(ticket, answer);
        }
        let id = spec.run_id(request);
        self.start_new(ticket, id, start::started(*spec, request, None));
    }

    /// Decides on a start for which the store had no run: it is the first.
    pub(super) fn start_unseen(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        let id = spec.run_id(request);
        self.start_new(ticket, id, start::started(*spec, request, None));
    }

    fn start_new(&mut self, ticket: Option<Ticket>, id: RunId, started: Started) {
        if self.home(id.slot()) == self.config.id {
            self.begin(id, start::decide(id, started, self.now).facts);
            self.answer(ticket, Answer::Started(StartAnswer::Created(id)));
            return;
        }
        let reservation = self.reserve(id, started);
        let waiting = self.beginning.entry(reservation).or_default();
        waiting.extend(ticket.map(|ticket| (ticket, Answer::Started(StartAnswer::Created(id)))));
    }

    /// Holds a business key here for a run that lives in another shard, and tells that shard to begin it.
    fn reserve(&mut self, id: RunId, mut started: Started) -> RunId {
        let slot = started.spec.admission_slot(started.request);
        let reservation = RunId::new(id.made_at(), slot, id.0 ^ 1);
        let mut held = started.clone();
        held.reserves = Some(id);
        held.parent = None;
        started.reservation = Some(reservation);
        self.begin(reservation, start::decide(reservation, held, self.now).facts);
        self.messages.push_back(Message::Begin {
            run: id,
            started: Box::new(started),
        });
        reservation
    }

    /// Admits a child under its business key: it begins, or its parent is told why not.
    pub(super) fn admit_child(&mut self, child: RunId, started: Box<Started>) {
        let Some(key) = &started.spec.key else { return };
        let identity = started.spec.key_identity(&key.key);
        let Some(parent) = started.parent.as_ref().map(|parent: &Parent| parent.run) else {
            return;
        };
        if let Some(holder) = self.keys.get(&identity).and_then(|holder| self.runs.get(holder)) {
            let answer = match start::conflict(&holder.run, &started.spec, started.request) {
                StartAnswer::Created(_) => return,
                StartAnswer::Reused(by) => ChildAnswer::Existing(by),
                StartAnswer::Rejected { reason, .. } => ChildAnswer::Rejected(reason.name().into()),
            };
            self.messages.push_back(Message::ChildAnswered {
                parent,
                child,
                answer,
            });
            return;
        }
        if self.home(child.slot()) == self.config.id {
            self.begin(child, start::decide(child, *started, self.now).facts);
        } else {
            self.reserve(child, *started);
        }
    }

    fn wait_for_key(&mut self, identity: alloc::string::String, waiting: Waiting) {
        if let Some(queue) = self.waiting_keys.get_mut(&identity) {
            queue.push(waiting);
            return;
        }
        self.loads.push(Load::Key(identity.clone()));
        self.waiting_keys.insert(identity, alloc::vec![waiting]);
    }
}
