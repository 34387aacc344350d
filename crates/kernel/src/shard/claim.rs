//! Claim: workers take ready attempts, first by priority, then by time, then by arrival.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::ready::{LaneId, LaneKey, Order};
use super::resident::Place;
use super::throttle::Tally;
use super::{Dispatch, Output, Rules, Shard, Throttle, WorkerId};
use crate::explain::Surroundings;
use crate::transition::claim::{self, Definition};
use crate::transition::heartbeat;
use crate::{ClaimId, Claimant, Phase, Run, RunId, Str, Timestamp};

/// What workers have in common that can claim the same: the namespace and the queues they serve, and the definitions they
/// have. It is known in memory only.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// The namespace they serve; all of them if there is none.
    pub namespace: Option<Str>,
    /// The queues they serve.
    pub queues: Vec<Str>,
    /// The definitions they have.
    pub definitions: Vec<Definition>,
    /// The lanes they can serve, and which definition serves each.
    lanes: Vec<(LaneId, usize)>,
    lanes_seen: usize,
}

impl Worker {
    /// Workers for `queues` of all namespaces that have `definitions`.
    #[must_use]
    pub fn new(queues: Vec<Str>, definitions: Vec<Definition>) -> Self {
        Self { queues, definitions, ..Self::default() }
    }

    /// Whether they serve the queue of a lane.
    pub(super) fn serves(&self, lane: &LaneKey) -> bool {
        self.queues.contains(&lane.queue) && self.namespace.as_ref().is_none_or(|known| *known == lane.namespace)
    }

    /// Which of their definitions serves the attempts of a lane, if one does and they serve the queue.
    pub(super) fn definition_for(&self, lane: &LaneKey) -> Option<usize> {
        let serves = |definition: &Definition| {
            definition.workflow == lane.workflow
                && definition.version == lane.version
                && lane.fingerprint.is_none_or(|pinned| pinned == definition.fingerprint)
        };
        self.definitions.iter().position(serves).filter(|_| self.serves(lane))
    }
}

impl Shard {
    /// Makes workers known by a number. They get nothing until they claim.
    pub fn join(&mut self, id: WorkerId, worker: Worker) {
        let index = id.0 as usize;
        if self.workers.len() <= index {
            self.workers.resize_with(index + 1, Worker::default);
        }
        self.workers[index] = worker;
        self.find_orphans_again();
    }

    /// Forgets workers. What they have claimed they keep.
    pub fn leave(&mut self, id: WorkerId) {
        self.join(id, Worker::default());
    }

    /// Whether there is an attempt that the worker could claim now: it would be given one if it asked.
    #[must_use]
    pub fn has_work(&mut self, now: Timestamp, worker: WorkerId, throttle: &mut Throttle) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        self.refresh_lanes(worker);
        self.next_for(now, worker, throttle).is_some()
    }

    /// Whether anything waits to be claimed, by whomever.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Hands over what began and what ended here since the last time. Where several shards share a throttle, all of
    /// them do so before one of them claims.
    pub fn report(&mut self, throttle: &mut Throttle) {
        self.tally.report(throttle);
    }

    /// Goes by other rules from now on, and tells the throttle anew what executes.
    pub fn go_by(&mut self, rules: &Rules) {
        self.config.rules = rules.clone();
        self.tally = Tally::new(rules.clone());
        // Also lanes of which nothing executes go by them.
        self.tally.learn(&self.ready);
        let places = self.runs.values().flat_map(|resident| &resident.places);
        for place in places {
            if let Place::Running(lane) = place {
                self.tally.enter(&self.ready, *lane);
            }
        }
    }

    /// Claims up to `most` attempts for one of the workers, as far as caps and rates let them begin. They are dispatched
    /// once the claims are durable.
    pub fn claim(
        &mut self,
        now: Timestamp,
        worker: WorkerId,
        by: &Arc<Claimant>,
        most: usize,
        throttle: &mut Throttle,
    ) -> usize {
        // A node asks all its shards, of which few have anything.
        if self.ready.is_empty() {
            return 0;
        }
        self.advance(now);
        self.refresh_lanes(worker);
        self.report(throttle);
        let mut claimed = 0;
        while claimed < most && self.claim_next(now, worker, by, throttle) {
            claimed += 1;
            self.report(throttle);
            // A first claim pins its run, which may move the run's other attempts to a lane that is new.
            self.refresh_lanes(worker);
        }
        // A claim may free a key that is held elsewhere, and word of it belongs to the same batch.
        self.pump();
        claimed
    }

    /// What this shard and the throttle know of a run's surroundings, to explain why it does not move; the caller adds
    /// whether live workers serve it and whether its queue is paused.
    #[must_use]
    pub fn surroundings(&self, id: RunId, throttle: &Throttle) -> Surroundings {
        let mut around = Surroundings::default();
        let Some(resident) = self.runs.get(&id) else {
            return around;
        };
        let spec = &resident.run.started.spec;
        let claimed = |run: &Run| run.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_)));
        if spec.concurrency.is_some() {
            let key = |run: &Run| run.started.spec.concurrency.as_ref().map(|c| c.key.clone());
            let shares = |run: &Run| {
                run.started.spec.namespace == spec.namespace && key(run) == key(&resident.run) && claimed(run)
            };
            let holders = self.runs.values().filter(|other| shares(&other.run));
            around.key_held_by = holders.map(|other| other.run.id).collect();
            around.key_held_by.sort();
        }
        let ahead = resident.places.iter().filter_map(|place| match place {
            Place::Ready(lane, order) => Some(self.ready.ahead(*lane, order)),
            Place::Running(_) | Place::None => None,
        });
        around.ahead = ahead.min().unwrap_or(0);
        let gate = resident.gate();
        let hidden =
            |place: &Place| matches!(place, Place::Ready(lane, order) if self.ready.is_hidden(*lane, order, gate));
        around.more_ahead = resident.places.iter().any(hidden);
        around.dead_letter_at = self.orphan_until(id);
        around.queue_paused = throttle.is_paused(&resident.lane_key());
        around.hold = throttle.hold(&resident.lane_key(), self.now);
        around
    }

    fn refresh_lanes(&mut self, id: WorkerId) {
        let worker = &mut self.workers[id.0 as usize];
        if worker.lanes_seen == self.ready.lane_count() {
            return;
        }
        self.tally.learn(&self.ready);
        for index in worker.lanes_seen..self.ready.lane_count() {
            let lane = self.ready.lane_at(index);
            if let Some(definition) = worker.definition_for(self.ready.lane_key(lane)) {
                worker.lanes.push((lane, definition));
            }
        }
        worker.lanes_seen = self.ready.lane_count();
    }

    /// The attempt that is next for a worker, its lane, and which of the worker's definitions it is of.
    fn next_for(&self, now: Timestamp, id: WorkerId, throttle: &mut Throttle) -> Option<(Order, LaneId, usize)> {
        let worker = &self.workers[id.0 as usize];
        let firsts = worker.lanes.iter().filter_map(|(lane, definition)| {
            let order = self.ready.first(*lane)?;
            throttle.admits(self.tally.rules(*lane), now).then_some((order, *lane, *definition))
        });
        firsts.min_by_key(|(order, ..)| *order).filter(|(order, ..)| !self.ready.must_wait(order))
    }

    fn claim_next(&mut self, now: Timestamp, id: WorkerId, by: &Arc<Claimant>, throttle: &mut Throttle) -> bool {
        let Some((order, lane, definition)) = self.next_for(now, id, throttle) else {
            return false;
        };
        let worker = &self.workers[id.0 as usize];
        let (run, cursor) = (order.run, order.cursor);
        let Some(resident) = self.runs.get(&run) else {
            return false;
        };
        let decided = claim::decide(&resident.run, cursor, by, &worker.definitions[definition], self.now);
        let Ok(transition) = decided else {
            self.bug = Some(alloc::format!("{run}: an attempt in the ready work cannot be claimed: {decided:?}"));
            return false;
        };
        throttle.begin(self.tally.rules(lane));
        self.transact_merged(run, transition.facts);
        self.dispatch(id, by, &order);
        true
    }

    fn dispatch(&mut self, worker: WorkerId, by: &Arc<Claimant>, order: &Order) {
        let cursor = order.cursor;
        let Some(resident) = self.runs.get(&order.run) else {
            return;
        };
        let run = &resident.run;
        let at = &run.cursors[usize::from(cursor)];
        let (Phase::Claimed(claim), Some(step)) = (&at.phase, &at.step) else {
            return;
        };
        let dispatch = Dispatch {
            worker,
            by: by.clone(),
            claim: ClaimId { run: run.id, number: claim.number },
            started: run.started.clone(),
            epoch: run.epoch,
            step: step.clone(),
            visit: at.visit,
            turn: at.turn,
            cursor,
            retries: at.retries,
            reclaims: at.reclaims,
            woken_by: at.woken_by,
            state: run.state.clone(),
            published: run.published.clone(),
            progress: run.progress.iter().flat_map(|known| known.of_visit(cursor, at.visit)).cloned().collect(),
            signals: run.inbox.clone(),
            children: run.children.clone(),
            ops: run.ops.clone(),
            ops_dropped: run.ops_dropped,
            ops_ended: run.ops_ended,
            begun_at: run.begun_at,
            cancelling: run.cancelling.is_some(),
            eligible_at: order.eligible_at,
            lease_until: claim.lease_until,
        };
        self.emit(Output::Dispatch(Box::new(dispatch)));
    }

    /// A dispatch leaves for its worker: the lease starts now, not when the claim was written.
    pub(super) fn delivered(&mut self, dispatch: &mut Dispatch) {
        let now = self.now;
        let Some(resident) = self.runs.get_mut(&dispatch.claim.run) else {
            return;
        };
        let lease_ms = resident.run.cursors[usize::from(dispatch.cursor)].claimant.as_ref().map_or(0, |by| by.lease_ms);
        dispatch.lease_until = now.after(lease_ms);
        heartbeat::extend(&mut resident.run, dispatch.claim.number, dispatch.lease_until);
    }
}
