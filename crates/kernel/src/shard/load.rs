//! Load: runs and keys outside memory come back on demand. Commands for a run that is being loaded wait, in order.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::messages::Known;
use super::ready::Order;
use super::resident::Resident;
use super::{Answer, Command, LinePlace, Load, Shard, Ticket};
use crate::limits::WAITING_COMMANDS_MAX;
use crate::transition::{expire, heartbeat};
use crate::{ClaimId, Phase, Refusal, Row, Run, RunId, Seq, Timestamp};

/// A command that waits for a run or key.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Option<Ticket>,
    pub(super) command: Command,
}

/// What the store had.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// The run, and the position of its last row.
    Run(Box<Run>, Seq),
    /// No such run.
    Missing,
    /// A run whose record is damaged.
    Corrupt(String),
}

impl Shard {
    /// Executes the command if its run is in memory, else has it loaded first.
    pub(super) fn execute_or_load(&mut self, ticket: Option<Ticket>, command: Command) {
        let Some(id) = command.run() else { return };
        if self.runs.contains_key(&id) && !self.waiting_runs.contains_key(&id) {
            return self.execute(ticket, id, command);
        }
        self.wait_for_run(id, Waiting { ticket, command });
    }

    pub(super) fn wait_for_run(&mut self, id: RunId, waiting: Waiting) {
        match self.waiting_runs.get_mut(&id) {
            Some(queue) if queue.len() >= WAITING_COMMANDS_MAX => {
                let what = "the list of commands waiting for the run".into();
                let refusal = Refusal::Busy { what, limit: WAITING_COMMANDS_MAX as u64 };
                self.answer(waiting.ticket, Answer::Refused(refusal));
            }
            Some(queue) => queue.push(waiting),
            None => {
                self.waiting_runs.insert(id, alloc::vec![waiting]);
                self.loads.push(Load::Run(id));
            }
        }
    }

    /// The store's answer to a load of a run.
    pub fn loaded_run(&mut self, now: Timestamp, id: RunId, loaded: Loaded) {
        self.advance(now);
        let waiting = self.waiting_runs.remove(&id).unwrap_or_default();
        let corrupt = match loaded {
            Loaded::Run(run, head) => {
                self.adopt(*run, head);
                self.visitors.push(id);
                None
            }
            Loaded::Missing => None,
            Loaded::Corrupt(found) => Some(found),
        };
        for Waiting { ticket, command } in waiting {
            match (&corrupt, command) {
                // It may have begun while it was being looked for.
                (_, Command::Start { .. }) if self.runs.contains_key(&id) => self.answer_begun(ticket, id),
                (_, command) if self.runs.contains_key(&id) => self.execute(ticket, id, command),
                (Some(found), _) => {
                    let found = found.clone();
                    self.answer(ticket, Answer::Refused(Refusal::Corrupt { run: id, found }));
                }
                (None, Command::Start { request, spec }) => self.start_missing(ticket, request, spec),
                (None, _) => self.answer(ticket, Answer::Refused(Refusal::NotFound { run: id })),
            }
        }
        if self.runs.contains_key(&id) {
            self.expire(id);
        }
        let known = corrupt.as_deref().map_or(Known::Run(id), |found| Known::Corrupt(id, found));
        self.consume_inbound(&known);
        self.pump();
        // Not before: what was loaded for a message would be gone when the message is obeyed.
        if self.visitors.len() >= 2 * self.config.windows.visitors {
            self.see_visitors_off();
        }
    }

    /// The store's answer to a load of a key: the run that occupies it, if there is one. While its record is damaged,
    /// nobody knows whether the key is free.
    pub fn loaded_key(&mut self, now: Timestamp, identity: &str, holder: Option<(RunId, Loaded)>) {
        self.advance(now);
        let corrupt = match holder.filter(|_| !self.keys.contains_key(identity)) {
            Some((_, Loaded::Run(run, head))) => {
                self.visitors.push(run.id);
                self.adopt(*run, head);
                None
            }
            Some((run, Loaded::Corrupt(found))) => Some((run, found)),
            Some((_, Loaded::Missing)) | None => None,
        };
        for Waiting { ticket, command } in self.waiting_keys.remove(identity).unwrap_or_default() {
            match (&corrupt, command) {
                (Some((run, found)), _) => {
                    let refusal = Refusal::Corrupt { run: *run, found: found.clone() };
                    self.answer(ticket, Answer::Refused(refusal));
                }
                (None, Command::Start { request, spec }) => self.start_keyed(ticket, request, spec),
                (None, _) => {}
            }
        }
        let known = corrupt.as_ref().map_or(Known::Key(identity), |(_, found)| Known::CorruptKey(identity, found));
        self.consume_inbound(&known);
        self.pump();
    }

    /// The store's answer to a load of deadlines: those from the asked instant on, in order, and where the next
    /// ones begin, if there are more.
    pub fn loaded_due(&mut self, now: Timestamp, due: &[(Timestamp, RunId)], more_from: Option<Timestamp>) {
        self.advance(now);
        self.paging_due = false;
        self.deadlines.set_horizon(more_from);
        for (at, run) in due {
            if !self.runs.contains_key(run) {
                self.deadlines.arm(*at, *run);
            }
        }
    }

    /// The store's answer to a load of waiting attempts: a page of their runs, in order, as far as they can be read,
    /// and the last place of the page if there are more behind it.
    pub fn loaded_ready(&mut self, now: Timestamp, line: &str, runs: Vec<(Run, Seq)>, last: Option<LinePlace>) {
        self.advance(now);
        for (run, head) in runs {
            self.adopt(run, head);
        }
        let edge = |LinePlace { priority, eligible_at, arrival, run }| Order {
            priority,
            eligible_at,
            arrival,
            run,
            cursor: u16::MAX,
        };
        self.ready.paged(line, last.map(edge));
        self.pump();
    }

    /// Takes a run into memory as the store has it. A run that is there already stays as it is.
    pub fn adopt(&mut self, run: Run, head: Seq) {
        let id = run.id;
        // The store may not know yet that it was purged.
        if self.runs.contains_key(&id) || self.gone.contains_key(&id) {
            return;
        }
        self.recent.found(id);
        self.advance(run.updated_at);
        self.runs.insert(id, Box::new(Resident::new(run, head)));
        self.rearm(id);
        self.settle(id);
    }

    /// Tells it of the newest run that was ever made in this shard, when the store knows: a retried start of a
    /// client whose clock was ahead is then looked up and not taken for a new one.
    pub fn newest_run(&mut self, id: RunId) {
        self.recent.found(id);
    }

    /// Folds a row of the log that is newer than the index rows: the run, if it is in memory, or begins with it.
    ///
    /// # Errors
    /// When the row does not follow the run's rows before it.
    pub fn replay(&mut self, row: &Row) -> Result<(), String> {
        let id = row.run;
        self.advance(row.at);
        self.recent.found(id);
        if matches!(row.facts.first(), Some(crate::Fact::Purged)) {
            self.forget(id, row.seq);
            return Ok(());
        }
        match self.runs.get_mut(&id) {
            None if row.begins() => {
                let run = Run::begin(row).map_err(|bad| alloc::format!("{id}: {bad}"))?;
                // Long after a purge, the same request may have begun a run of its own under the same id.
                if self.gone.remove(&id).is_some() {
                    self.purged.retain(|(purged, _)| *purged != id);
                }
                self.runs.insert(id, Box::new(Resident::new(run, row.seq)));
            }
            None => return Err(alloc::format!("{id}: its journal begins at rev {}", row.rev.0)),
            Some(resident) if row.rev <= resident.run.rev => return Ok(()),
            Some(resident) if row.rev.0 != resident.run.rev.0 + 1 => {
                return Err(alloc::format!("{id}: rev {} follows rev {}", row.rev.0, resident.run.rev.0));
            }
            Some(resident) => {
                resident.run.apply_row(row);
                resident.head = row.seq;
            }
        }
        if let Some(resident) = self.runs.get_mut(&id) {
            // The process may have ended before the rows before it were emptied.
            resident.note_compaction(row);
            if !resident.dirty {
                resident.dirty = true;
                self.dirty.push(id);
            }
        }
        Ok(())
    }

    /// After replay: every run that was folded takes its place, and claims of processes that are gone end.
    pub fn replayed(&mut self, now: Timestamp) {
        self.advance(now);
        // No fact of ours is older than the last one, so nor is our opening: leases begin anew from here.
        self.opened_at = self.now;
        for id in self.claimed_runs() {
            self.rearm(id);
        }
        for id in self.dirty.clone() {
            self.settle(id);
        }
    }

    /// Ends the claims of local workers of processes other than this one, for a run in memory.
    pub fn end_lost_claims(&mut self, id: RunId) {
        let Some(resident) = self.runs.get(&id) else {
            return;
        };
        let transition = expire::decide_process_lost(&resident.run, &self.config.process, &self.config.node);
        self.transact(id, transition);
        self.pump();
    }

    /// The claims that local workers of this process hold.
    #[must_use]
    pub fn local_claims(&self) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        for (id, resident) in &self.runs {
            for cursor in &resident.run.cursors {
                if let Phase::Claimed(claim) = &cursor.phase
                    && cursor.claimant.as_ref().is_some_and(|by| by.process.as_ref() == Some(&self.config.process))
                {
                    claims.push(ClaimId { run: *id, number: claim.number });
                }
            }
        }
        claims.sort();
        claims
    }

    /// Every run in memory that holds a claim.
    #[must_use]
    pub fn claimed_runs(&self) -> Vec<RunId> {
        let mut ids: Vec<RunId> = self
            .runs
            .iter()
            .filter(|(_, resident)| resident.run.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_))))
            .map(|(id, _)| *id)
            .collect();
        ids.sort();
        ids
    }

    fn rearm(&mut self, id: RunId) {
        let opened_at = self.opened_at;
        let Some(resident) = self.runs.get_mut(&id) else {
            return;
        };
        let held: Vec<(u32, u64)> = resident
            .run
            .cursors
            .iter()
            .filter_map(|cursor| match &cursor.phase {
                Phase::Claimed(claim) => Some((claim.number, cursor.claimant.as_ref().map_or(0, |by| by.lease_ms))),
                _ => None,
            })
            .collect();
        for (claim, lease_ms) in held {
            heartbeat::extend(&mut resident.run, claim, opened_at.after(lease_ms));
        }
    }

    /// Lets everything happen that is due for a run, loading it if it must.
    pub(super) fn expire(&mut self, id: RunId) {
        let Some(resident) = self.runs.get_mut(&id) else {
            // The deadline of a run outside memory: bring it back, and look then.
            if !self.waiting_runs.contains_key(&id) {
                self.waiting_runs.insert(id, Vec::new());
                self.loads.push(Load::Run(id));
            }
            return;
        };
        resident.armed.take().iter().for_each(|armed| self.deadlines.disarm(*armed, id));
        let transition = expire::decide(&resident.run, &self.config.node, self.now);
        if transition.is_empty() {
            self.settle(id);
        } else {
            self.transact(id, transition);
        }
    }

    /// Drops a purged run.
    pub(super) fn forget(&mut self, id: RunId, head: Seq) {
        self.drop_resident(id);
        self.purged.push((id, head));
        self.gone.insert(id, ());
    }

    /// Takes a run out of memory and out of every index.
    pub(super) fn drop_resident(&mut self, id: RunId) {
        self.unplace(id);
        let Some(resident) = self.runs.remove(&id) else {
            return;
        };
        resident.armed.iter().for_each(|armed| self.deadlines.disarm(*armed, id));
        if let (true, Some(identity)) = (resident.occupies, resident.key_identity()) {
            self.keys.remove(&identity);
        }
    }
}
