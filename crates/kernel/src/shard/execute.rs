//! Execute: a command meets its run, which is in memory.

use alloc::boxed::Box;

use super::{Answer, Command, Ending, Output, Shard, Ticket, Told};
use crate::transition::child::StartingChild;
use crate::transition::record::Entry;
use crate::transition::{
    Transition, anomaly, cancel, child, claim, compact, complete, dead_letter, fail, heartbeat, manual, progress,
    purge, record, recover, resolve, schedule, signal, update, wake,
};
use crate::{Fact, Facts, Refusal, Row, Run, RunId, Status, TokenHash, TurnRef, Update};

/// What someone waits for who watches a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// Its end.
    End,
    /// Its answer to this update.
    Update(u64),
}

impl Watched {
    /// What the one who waits is told, if it has come.
    pub(super) fn answer(self, run: &Run) -> Option<Answer> {
        let update = match self {
            Self::End => return run.end.as_ref().map(|_| Answer::Ended(Box::new(ending(run)))),
            Self::Update(id) => run.update(id),
        };
        if let Some(reply) = update.and_then(Update::reply) {
            return Some(Answer::Answered(reply.clone()));
        }
        let name = update.map(|update| update.name.clone()).unwrap_or_default();
        let status = run.end.as_ref()?.status;
        Some(Answer::Refused(Refusal::Unanswered { run: run.id, name, status }))
    }
}

/// How a run ended, for those who wait for it.
pub(super) fn ending(run: &Run) -> Ending {
    let status = run.status();
    let error = run.last_error.clone().filter(|_| status != Status::Done);
    Ending { run: run.id, status, result: run.result.clone(), error }
}

impl Shard {
    pub(super) fn execute(&mut self, ticket: Option<Ticket>, id: RunId, command: Command) {
        let now = self.now;
        let Some(resident) = self.runs.get_mut(&id) else {
            return self.answer(ticket, Answer::Refused(Refusal::NotFound { run: id }));
        };
        let run = &resident.run;
        if run.is_reservation() && !matches!(command, Command::Show { .. }) {
            return self.answer(ticket, Answer::Refused(Refusal::NotFound { run: id }));
        }
        let decided = match command {
            Command::Start { .. } | Command::Unflushed | Command::Settle { .. } => return,
            Command::Complete { completing, .. } => {
                let decided = complete::decide(run, &completing, now);
                if decided.is_err() {
                    self.set_unrecordable_aside(id, completing.claim, completing.token, &completing.entries);
                }
                match completing.compact_after {
                    Some(rows) => return self.conclude_and_compact(ticket, id, decided, rows),
                    None => decided,
                }
            }
            Command::Fail { failing, .. } => {
                let decided = fail::decide(run, &failing, &self.config.node, now);
                if decided.is_err() {
                    self.set_unrecordable_aside(id, failing.claim, failing.token, &failing.entries);
                }
                decided
            }
            Command::Signal { sent, .. } => return self.execute_signal(ticket, id, &sent),
            Command::Update { asked, told, .. } => return self.execute_update(ticket, id, &asked, told),
            Command::Heartbeat { claim, token } => return self.execute_heartbeat(ticket, id, claim.number, token),
            Command::Progress { claim, token, progressing: said } => {
                return self.execute_progress(ticket, id, claim.number, token, &said);
            }
            Command::Record { recording, .. } => record::decide(run, &recording, now),
            Command::Decide { deciding, .. } => manual::decide(run, &deciding, now),
            Command::Assign { assigning, .. } => manual::assign(run, &assigning, now),
            Command::Resolve { resolving, .. } => match resolve::decide(run, &resolving) {
                // Answered, and not an anomaly: people press twice.
                Err(refusal) => return self.answer(ticket, Answer::Refused(refusal)),
                decided => decided,
            },
            Command::GiveBack { claim, token } => claim::give_back(run, claim.number, token, now),
            Command::StartChild { starting, .. } => return self.execute_child(ticket, id, &starting),
            Command::Cancel { request, cascade, reason, .. } => {
                // Asking twice is ordinary: it is answered, not recorded as an anomaly.
                match cancel::decide(run, request, cascade, &reason) {
                    Err(refusal) => return self.answer(ticket, Answer::Refused(refusal)),
                    decided => decided,
                }
            }
            Command::Wake { token, .. } => match wake::decide(run, token, now) {
                Err(refusal @ Refusal::StaleToken { .. }) => {
                    return self.answer(ticket, Answer::Refused(refusal));
                }
                decided => decided,
            },
            Command::Schedule { intent, .. } => Ok(Transition::of(schedule::decide(run, &intent, now))),
            Command::Notified { cursor, turn, .. } => self.notified(id, cursor, turn),
            Command::Requeue { .. } => dead_letter::requeue(run),
            Command::Discard { .. } => dead_letter::discard(run),
            Command::Compact { .. } => Ok(compact::decide(run, now)),
            Command::Purge { .. } => return self.execute_purge(ticket, id),
            Command::Recover { journal, .. } => return self.execute_recover(ticket, id, &journal),
            Command::Watch { .. } => return self.execute_watch(ticket, id),
            Command::Show { .. } => return self.execute_show(ticket, id),
        };
        self.conclude(ticket, id, decided);
    }

    fn execute_show(&mut self, ticket: Option<Ticket>, id: RunId) {
        let Some(resident) = self.runs.get(&id) else { return };
        let answer = Answer::Run(Box::new(resident.shown()), resident.head);
        self.answer(ticket, answer);
    }

    /// Sets an attempt aside whose entries cannot be recorded, if that is why it was refused: tried again, it would be
    /// refused again.
    fn set_unrecordable_aside(&mut self, id: RunId, claim: u32, token: TokenHash, entries: &[Entry]) {
        if let Some(resident) = self.runs.get(&id) {
            let aside = fail::unrecordable(&resident.run, claim, token, entries, &self.config.node, self.now);
            self.transact(id, aside);
        }
    }

    /// Records what was decided on a completion. A journal that has grown to `rows` begins anew in the same batch, in a
    /// row of its own: the claim that follows rides in that row.
    fn conclude_and_compact(
        &mut self,
        ticket: Option<Ticket>,
        id: RunId,
        decided: Result<Transition, Refusal>,
        rows: u64,
    ) {
        let recorded = decided.as_ref().is_ok_and(|transition| !transition.is_empty());
        self.conclude(ticket, id, decided);
        let long = |run: &Run| recorded && run.journal_rows() >= rows;
        if let Some(resident) = self.runs.get(&id).filter(|resident| long(&resident.run)) {
            let transition = compact::decide(&resident.run, self.now);
            self.transact(id, transition);
        }
    }

    fn execute_heartbeat(&mut self, ticket: Option<Ticket>, id: RunId, claim: u32, token: TokenHash) {
        let now = self.now;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        match heartbeat::decide(&resident.run, claim, token, now) {
            Ok((lease_until, transition)) => {
                heartbeat::extend(&mut resident.run, claim, lease_until);
                self.transact(id, transition);
                self.answer(ticket, Answer::Extended { lease_until });
            }
            Err(refusal) => self.refuse_beat(ticket, id, refusal),
        }
    }

    /// Refuses one who is still at it. That is how a worker learns that its run was cancelled: what is no contradiction is
    /// no anomaly.
    fn refuse_beat(&mut self, ticket: Option<Ticket>, id: RunId, refusal: Refusal) {
        match refusal {
            Refusal::RunOver { status: Status::Cancelled, .. } => self.answer(ticket, Answer::Refused(refusal)),
            refusal => self.conclude(ticket, id, Err(refusal)),
        }
    }

    /// A step says how far it has come. That keeps its lease; it rides with the next row of the run.
    fn execute_progress(
        &mut self,
        ticket: Option<Ticket>,
        id: RunId,
        claim: u32,
        token: TokenHash,
        progressing: &progress::Progressing,
    ) {
        let now = self.now;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        match progress::decide(&resident.run, &resident.said, claim, token, progressing, now) {
            Ok(progressed) => {
                resident.say(progressed);
                self.emit(Output::Progressed(id));
                self.execute_heartbeat(ticket, id, claim, token);
            }
            Err(refusal) => self.refuse_beat(ticket, id, refusal),
        }
    }

    fn execute_child(&mut self, ticket: Option<Ticket>, id: RunId, starting: &StartingChild) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        match child::decide_start(&resident.run, starting, self.now) {
            Ok((child, transition)) => {
                self.transact(id, transition);
                self.pump();
                self.answer(ticket, Answer::Child(child));
            }
            Err(refusal) => self.conclude(ticket, id, Err(refusal)),
        }
    }

    /// Records what was decided, or refuses; a refused lifecycle message is kept as an anomaly.
    fn conclude(&mut self, ticket: Option<Ticket>, id: RunId, decided: Result<Transition, Refusal>) {
        match decided {
            Ok(transition) => {
                let duplicate = transition.is_empty();
                self.transact(id, transition);
                // The revision of this transition, before what it causes elsewhere comes back to the run.
                let rev = self.runs.get(&id).map(|resident| resident.run.rev).unwrap_or_default();
                self.pump();
                self.answer(ticket, Answer::Recorded { rev, duplicate });
            }
            Err(refusal) => {
                let seen = self.runs.get(&id).and_then(|resident| anomaly::of_refusal(&resident.run, &refusal));
                self.record_anomaly(id, seen);
                self.answer(ticket, Answer::Refused(refusal));
            }
        }
    }

    fn record_anomaly(&mut self, id: RunId, seen: Option<Fact>) {
        if let Some(fact) = seen {
            self.transact(id, Transition { facts: Facts::from_iter([fact]), messages: alloc::vec::Vec::new() });
        }
    }

    fn execute_signal(&mut self, ticket: Option<Ticket>, id: RunId, sent: &signal::Sent) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        match signal::decide(&resident.run, sent) {
            Ok((accepted, transition)) => {
                self.transact(id, transition);
                self.answer(ticket, Answer::Signalled(accepted));
            }
            Err(refusal) => self.answer(ticket, Answer::Refused(refusal)),
        }
    }

    fn execute_watch(&mut self, ticket: Option<Ticket>, id: RunId) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        if resident.run.end.is_some() {
            let ended = Box::new(ending(&resident.run));
            self.answer(ticket, Answer::Ended(ended));
        } else if let Some(ticket) = ticket {
            self.watchers.entry(id).or_default().push((ticket, Watched::End));
        }
    }

    fn execute_update(&mut self, ticket: Option<Ticket>, id: RunId, asked: &update::Requesting, told: Told) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        match (update::decide(&resident.run, asked), told, ticket) {
            (Ok((accepted, transition)), Told::Answered, Some(ticket)) => {
                self.transact(id, transition);
                self.watchers.entry(id).or_default().push((ticket, Watched::Update(accepted.update)));
                self.settle_watchers(id);
            }
            (Ok((accepted, transition)), _, _) => {
                self.transact(id, transition);
                self.answer(ticket, Answer::Requested(accepted));
            }
            (Err(refusal), _, _) => self.answer(ticket, Answer::Refused(refusal)),
        }
    }

    fn execute_purge(&mut self, ticket: Option<Ticket>, id: RunId) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        match purge::decide(&resident.run) {
            Ok(transition) => {
                let rev = resident.run.rev;
                if let (Some(reservation), false) = (resident.run.started.reservation, resident.run.key_freed) {
                    self.messages.push_back(crate::envelope::Message::KeyFreed { reservation });
                }
                self.transact(id, transition);
                let head = self.head;
                self.forget(id, head);
                self.answer(ticket, Answer::Recorded { rev, duplicate: false });
            }
            Err(refusal) => self.answer(ticket, Answer::Refused(refusal)),
        }
    }

    /// Brings a torn run in order, one missing piece after the other, each under the revision before it.
    fn execute_recover(&mut self, ticket: Option<Ticket>, id: RunId, journal: &[Row]) {
        let mut changed = false;
        while let Some(resident) = self.runs.get(&id) {
            let transition = recover::decide(&resident.run, self.now);
            if transition.is_empty() {
                let begin = child::begin_again(&resident.run, journal);
                self.messages.extend(begin);
                break;
            }
            changed = true;
            self.transact(id, transition);
        }
        self.pump();
        let rev = self.runs.get(&id).map(|resident| resident.run.rev).unwrap_or_default();
        self.answer(ticket, Answer::Recorded { rev, duplicate: !changed });
    }

    fn notified(&self, id: RunId, cursor: u16, turn: u32) -> Result<Transition, Refusal> {
        let Some(resident) = self.runs.get(&id) else {
            return Ok(Transition::default());
        };
        let run = &resident.run;
        if let Some(end) = &run.end {
            return Err(Refusal::RunOver { run: id, status: end.status });
        }
        // A wake-up for an attempt that was never scheduled points at nothing.
        let known = run.cursors.get(usize::from(cursor)).is_some_and(|at| at.turn >= turn && turn > 0);
        let fact = if known {
            Some(Fact::Notified(TurnRef { cursor, turn }))
        } else {
            anomaly::fact(run, "unknown_runnable_intent", "a wake-up named an attempt that was never scheduled")
        };
        Ok(Transition { facts: fact.into_iter().collect(), messages: alloc::vec::Vec::new() })
    }
}
