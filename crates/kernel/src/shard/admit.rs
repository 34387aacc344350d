//! Admit: a start is decided by the home of its business key, else by the run's own home.

use alloc::boxed::Box;
use alloc::string::String;

use super::load::Waiting;
use super::{Answer, Command, Load, Shard, Ticket};
use crate::envelope::Message;
use crate::limits::WAITING_COMMANDS_MAX;
use crate::transition::start::{self, StartAnswer};
use crate::{ChildAnswer, Parent, Refusal, RequestId, RunId, StartSpec, Started};

impl Shard {
    /// Decides on a start. What the request began before is looked for first: a retry gets the first answer, also
    /// after its run has ended and its key was taken by another.
    pub(super) fn start(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        if let Err(refusal) = spec.validate() {
            return self.answer(ticket, Answer::Refused(refusal));
        }
        let id = spec.run_id(request);
        let slot = match spec.key {
            Some(_) => spec.admission_slot(request),
            None => id.slot(),
        };
        if self.home(slot) != self.config.id {
            let found = alloc::format!("one for {:?}", self.home(slot));
            return self.answer(ticket, Answer::Refused(Refusal::invalid("start", "a start for this shard", found)));
        }
        let local = self.record_of(id, &spec, request);
        if self.runs.contains_key(&local) {
            self.answer_begun(ticket, local);
        } else if self.gone.contains_key(&local) {
            self.answer(ticket, Answer::Started(StartAnswer::Created(id)));
        } else if self.recent.is_first(local, self.now) {
            self.start_unseen(ticket, request, spec);
        } else {
            let command = Command::Start { request, spec };
            self.wait_for_run(local, Waiting { ticket, command });
        }
    }

    /// The record of a run in this shard, which admits it: the run itself, or what holds its key for it.
    pub(super) fn record_of(&self, id: RunId, spec: &StartSpec, request: RequestId) -> RunId {
        if spec.key.is_none() || self.home(id.slot()) == self.config.id {
            return id;
        }
        start::reservation_id(id, spec, request)
    }

    /// Answers a start whose record is in memory.
    pub(super) fn answer_begun(&mut self, ticket: Option<Ticket>, record: RunId) {
        let Some(resident) = self.runs.get(&record) else {
            return;
        };
        let id = resident.run.started.reserves.unwrap_or(record);
        self.answer_when_begun(ticket, record, Answer::Started(StartAnswer::Created(id)));
    }

    /// A run in another shard may not have begun yet: answers about it leave when it has.
    fn answer_when_begun(&mut self, ticket: Option<Ticket>, record: RunId, answer: Answer) {
        if self.runs.get(&record).is_some_and(|resident| resident.run.awaits_beginning()) {
            let waiting = self.beginning.entry(record).or_default();
            waiting.extend(ticket.map(|ticket| (ticket, answer)));
        } else {
            self.answer(ticket, answer);
        }
    }

    /// Decides on a start whose record the store does not have: it is the first, or its run was purged since.
    pub(super) fn start_missing(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        let id = spec.run_id(request);
        let local = self.record_of(id, &spec, request);
        if self.recent.holds(local) || self.gone.contains_key(&local) {
            return self.answer(ticket, Answer::Started(StartAnswer::Created(id)));
        }
        self.start_unseen(ticket, request, spec);
    }

    /// Decides on a start that is certain to be the first of its request.
    pub(super) fn start_unseen(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        let Some(key) = &spec.key else {
            let id = spec.run_id(request);
            return self.start_new(ticket, id, start::started(*spec, request, None));
        };
        let identity = spec.key_identity(&key.key);
        if self.keys.contains_key(&identity) {
            return self.start_keyed(ticket, request, spec);
        }
        let command = Command::Start { request, spec };
        self.wait_for_key(identity, Waiting { ticket, command });
    }

    /// Decides on a start whose business key is known: taken by a run in memory, or free.
    pub(super) fn start_keyed(&mut self, ticket: Option<Ticket>, request: RequestId, spec: Box<StartSpec>) {
        let Some(key) = &spec.key else { return };
        let identity = spec.key_identity(&key.key);
        let id = spec.run_id(request);
        let local = self.record_of(id, &spec, request);
        if self.runs.contains_key(&local) {
            return self.answer_begun(ticket, local);
        }
        match self.keys.get(&identity).and_then(|holder| self.runs.get(holder)) {
            Some(holder) => {
                let answer = Answer::Started(start::conflict(&holder.run, &spec, request));
                let record = holder.run.id;
                self.answer_when_begun(ticket, record, answer);
            }
            None => self.start_new(ticket, id, start::started(*spec, request, None)),
        }
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
        let reservation = self.record_of(id, &started.spec, started.request);
        let held = start::held(id, &started);
        started.reservation = Some(reservation);
        self.begin(reservation, start::decide(reservation, held, self.now).facts);
        self.messages.push_back(Message::Begin { run: id, started: Box::new(started) });
        reservation
    }

    /// Admits a child under its business key: it begins, or its parent is told why not. Whether it has begun
    /// before is known by now.
    pub(super) fn admit_child(&mut self, child: RunId, started: Box<Started>) {
        let local = self.record_of(child, &started.spec, started.request);
        self.absent.remove(&local);
        if self.runs.contains_key(&local) || self.gone.contains_key(&local) {
            return;
        }
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
            self.messages.push_back(Message::ChildAnswered { parent, child, answer });
            return;
        }
        if local == child {
            self.begin(child, start::decide(child, *started, self.now).facts);
        } else {
            self.reserve(child, *started);
        }
    }

    fn wait_for_key(&mut self, identity: String, waiting: Waiting) {
        match self.waiting_keys.get_mut(&identity) {
            Some(queue) if queue.len() >= WAITING_COMMANDS_MAX => {
                let refusal = Refusal::Busy {
                    what: "the list of starts waiting for the key".into(),
                    limit: WAITING_COMMANDS_MAX as u64,
                };
                self.answer(waiting.ticket, Answer::Refused(refusal));
            }
            Some(queue) => queue.push(waiting),
            None => {
                self.loads.push(Load::Key(identity.clone()));
                self.waiting_keys.insert(identity, alloc::vec![waiting]);
            }
        }
    }
}
