//! A run in memory: the fold, where it stands in the shard's indexes, and whether it may leave.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::command::{LinePlace, Record};
use super::ready::{LaneId, LaneKey, Order, Ready, key_line};
use crate::transition::progress;
use crate::{Concurrency, Cursor, Fact, Facts, Phase, Progressed, Row, Run, Seq, Timestamp};

/// Rows up to which the journal of a run that has ended stands in for its checkpoint, since its start or compaction.
const FOLDED_ROWS_MAX: u64 = 64;

/// Where a cursor stands in the ready work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: it waits, or is not visible yet, or has ended.
    None,
    /// It can be claimed.
    Ready(LaneId, Order),
    /// It is claimed, out of this lane.
    Running(LaneId),
}

impl Record {
    /// The index row of a run as its journal tells it, up to the row at `head`.
    #[must_use]
    pub fn of(run: Run, head: Seq) -> Self {
        Resident::new(run, head).record()
    }
}

/// A run in memory.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    pub(crate) run: Run,
    /// The position of its last row.
    pub(crate) head: Seq,
    /// Its row in the batch that is being gathered, to which a claim may still be added.
    pub(crate) gathering: Option<(u64, usize)>,
    /// The row with which its journal begins anew, until the store has emptied those before it.
    pub(crate) compacted: Option<Seq>,
    /// What its steps said of themselves since its last row.
    pub(crate) said: Vec<Progressed>,
    /// Its entry in the deadline index.
    pub(crate) armed: Option<Timestamp>,
    pub(crate) places: SmallVec<[Place; 1]>,
    pub(crate) lane: Option<LaneId>,
    /// Whether it occupies its business key, as the key index has it.
    pub(crate) occupies: bool,
    /// Whether its index row is behind, and so it must stay in memory.
    pub(crate) dirty: bool,
    /// Whether its index row is being written.
    pub(crate) flushing: bool,
}

impl Resident {
    pub(crate) fn new(run: Run, head: Seq) -> Self {
        Self {
            run,
            head,
            gathering: None,
            compacted: None,
            said: Vec::new(),
            armed: None,
            places: SmallVec::new(),
            lane: None,
            occupies: false,
            dirty: false,
            flushing: false,
        }
    }

    /// Remembers a row with which the journal begins anew.
    pub(crate) fn note_compaction(&mut self, row: &Row) {
        if matches!(row.facts.first(), Some(Fact::Compacted(_))) {
            self.compacted = Some(row.seq);
        }
    }

    /// The run as it is shown: with what its steps said since its last row.
    pub(crate) fn shown(&self) -> Run {
        let mut shown = self.run.clone();
        if !self.said.is_empty() {
            shown.progress = Some(Box::new(progress::shown(&self.run, &self.said)));
        }
        shown
    }

    /// A step said how far it has come. What would be forgotten anyway is not kept.
    pub(crate) fn say(&mut self, progressed: Progressed) {
        match self.said.iter_mut().find(|said| (said.cursor, said.claim) == (progressed.cursor, progressed.claim)) {
            Some(said) => said.take(progressed.events),
            None => self.said.push(progressed),
        }
    }

    /// What its steps said since its last row goes before other facts, while the claims stand under which it was said. A row
    /// with which a journal begins has no room for it.
    pub(crate) fn ride(&mut self, facts: &mut Facts) {
        if !self.said.is_empty() && !matches!(facts.first(), Some(Fact::Compacted(_) | Fact::Purged)) {
            let said = core::mem::take(&mut self.said).into_iter().map(|said| Fact::Progressed(Box::new(said)));
            facts.insert_many(0, said);
        }
    }

    pub(crate) fn lane_key(&self) -> LaneKey {
        let spec = &self.run.started.spec;
        LaneKey {
            namespace: spec.namespace.clone(),
            queue: spec.queue.clone(),
            workflow: spec.workflow.clone(),
            version: spec.version,
            fingerprint: self.run.fingerprint,
        }
    }

    /// The concurrency key of its attempts, with its namespace.
    pub(crate) fn gate(&self) -> Option<(&str, &Concurrency)> {
        let spec = &self.run.started.spec;
        spec.concurrency.as_ref().map(|concurrency| (&*spec.namespace, concurrency))
    }

    /// The line in which its attempts wait, as the store has it.
    fn line(&self) -> String {
        self.gate().map_or_else(|| self.lane_key().line(), |(namespace, concurrency)| key_line(namespace, concurrency))
    }

    /// The full identity of the business key that this record may hold, here in its shard.
    pub(crate) fn key_identity(&self) -> Option<String> {
        let started = &self.run.started;
        let key = started.spec.key.as_ref().filter(|_| started.reservation.is_none())?;
        Some(started.spec.key_identity(&key.key))
    }

    /// Where cursor `index` should stand now.
    pub(crate) fn wanted_place(&self, index: usize, lane: LaneId, now: Timestamp) -> Place {
        match &self.run.cursors[index].phase {
            Phase::Scheduled { visible_at, arrival } if *visible_at <= now => Place::Ready(
                lane,
                Order {
                    priority: self.run.started.spec.priority,
                    eligible_at: *visible_at,
                    arrival: *arrival,
                    run: self.run.id,
                    cursor: index as u16,
                },
            ),
            Phase::Claimed(_) => Place::Running(lane),
            _ => Place::None,
        }
    }

    /// The next instant after `now` at which something must happen to it by itself.
    pub(crate) fn due(&self, now: Timestamp) -> Option<Timestamp> {
        if self.run.end.is_some() {
            return None;
        }
        let cursors = self.run.cursors.iter().filter_map(|cursor| match &cursor.phase {
            // Once visible it stands in its lane, and nothing more happens by itself.
            Phase::Scheduled { visible_at, .. } => (*visible_at > now).then_some(*visible_at),
            Phase::Claimed(claim) => Some(claim.until()),
            Phase::Waiting(wait) => wait.until,
            _ => None,
        });
        cursors.chain(self.run.started.spec.deadline).chain(self.run.open_ops().filter_map(|(_, op)| op.due())).min()
    }

    /// Whether the run can be dropped from memory: it is flushed, and nobody holds or is about to hold it.
    pub(crate) fn may_leave(&self, ready: &Ready) -> bool {
        let parked = |cursor: &Cursor| match &cursor.phase {
            Phase::Planned { .. } => !self.run.needs_met(cursor),
            Phase::Claimed(_) | Phase::Completed { .. } | Phase::Failed => false,
            Phase::Scheduled { .. }
            | Phase::Waiting(_)
            | Phase::DeadLettered(_)
            | Phase::Finished { .. }
            | Phase::Closed => true,
        };
        let gate = self.gate();
        let placed = self.places.iter().any(|place| match place {
            Place::None => false,
            Place::Ready(lane, order) => !ready.is_hidden(*lane, order, gate),
            Place::Running(_) => true,
        });
        !self.dirty && !self.flushing && !placed && self.run.cursors.iter().all(parked)
    }

    /// The run's folded state. A run that has ended after a few rows has none: it is seldom asked for, and its journal
    /// tells it as well.
    fn checkpoint(&self) -> Vec<u8> {
        if self.run.end.is_some() && self.run.journal_rows() <= FOLDED_ROWS_MAX {
            return Vec::new();
        }
        serde_json::to_vec(&self.run).unwrap_or_default()
    }

    /// The run's index row with its folded state.
    pub(crate) fn record(&self) -> Record {
        Record { checkpoint: self.checkpoint(), ..self.index_row() }
    }

    /// The run's index row without its folded state.
    pub(crate) fn index_row(&self) -> Record {
        let run = &self.run;
        let spec = &run.started.spec;
        // Of the run and not of the key index: a run that is only being folded stands in no index yet.
        let occupies = self.key_identity().filter(|_| run.occupies_key());
        let places = run.cursors.iter().filter_map(|cursor| match &cursor.phase {
            Phase::Scheduled { visible_at, arrival } => {
                Some(LinePlace { priority: spec.priority, eligible_at: *visible_at, arrival: *arrival, run: run.id })
            }
            _ => None,
        });
        let ready = places.min().map(|place| (self.line(), place));
        Record {
            run: run.id,
            head: self.head,
            rev: run.rev,
            namespace: spec.namespace.clone(),
            workflow: spec.workflow.clone(),
            version: spec.version,
            queue: spec.queue.clone(),
            status: run.status(),
            step: run.cursors.first().and_then(|cursor| cursor.step.clone()),
            key: spec.key.as_ref().map(|key| key.key.clone()),
            occupies,
            parent: run.started.parent.as_ref().filter(|_| !run.orphaned).map(|parent| parent.run),
            labels: spec.labels.clone(),
            created_at: run.created_at,
            updated_at: run.updated_at,
            due: run.next_due(),
            ready,
            reservation: run.is_reservation(),
            checkpoint: Vec::new(),
        }
    }
}
