//! Ready work, in two levels: a lane holds attempts that can be claimed now; an attempt with a concurrency key
//! enters its lane only while the key has room, in strict order within the key.
//!
//! Attempts wait in lines: one for each key, and one for those without a key of each lane.
//! Of a long line only the front is in memory. What stands behind its edge is in the store, or hidden here, and
//! comes forward a page at a time: the picker never passes an edge, because it cannot see who waits behind it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;
use smallvec::SmallVec;

use super::hash::Map;
use crate::limits::{DUE_WINDOW_MAX, KEY_WINDOW_MAX, READY_PAGE_MAX, READY_WINDOW_MAX, VISITORS_MAX};
use crate::{Concurrency, Fingerprint, RunId, Seq, Str, Timestamp};

/// The order in which attempts are claimed: priority, then when they became eligible, then arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// Lower comes first.
    pub priority: i32,
    /// When it became eligible.
    pub eligible_at: Timestamp,
    /// Its place in the log.
    pub arrival: Seq,
    /// The run, which settles what is left.
    pub run: RunId,
    /// The run's cursor.
    pub cursor: u16,
}

/// What attempts of one lane have in common: who may claim them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneKey {
    /// The tenant.
    pub namespace: Str,
    /// The queue.
    pub queue: Str,
    /// The workflow.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// The definition the runs are pinned to; `None` before the first claim.
    pub fingerprint: Option<Fingerprint>,
}

impl LaneKey {
    /// The line in which its attempts without a concurrency key wait, as the store has it.
    pub(crate) fn line(&self) -> String {
        let pinned = self.fingerprint.map(|fingerprint| fingerprint.0);
        line_text("lane", &(&*self.namespace, &*self.queue, &*self.workflow, self.version, pinned))
    }
}

/// The line in which the attempts of a concurrency key wait, as the store has it.
pub(crate) fn key_line(namespace: &str, concurrency: &Concurrency) -> String {
    line_text(KEY, &(namespace, &*concurrency.key))
}

const KEY: &str = "key";

fn line_text(kind: &str, names: &impl serde::Serialize) -> String {
    // Names are plain texts and numbers, which can always be written.
    alloc::format!("{kind} {}", serde_json::to_string(names).unwrap_or_default())
}

/// A lane, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u32);

impl LaneId {
    /// Its number, counted from zero.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A line of lanes, by its number.
#[derive(Clone, Copy, Debug)]
struct LineId(u32);

#[derive(Clone, Debug)]
struct Lane {
    key: LaneKey,
    line: LineId,
    waiting: BTreeSet<Order>,
}

/// Lanes that differ only in the definition their runs are pinned to: the store does not tell them apart.
#[derive(Clone, Debug)]
struct Line {
    identity: String,
    lanes: SmallVec<[LaneId; 1]>,
    edge: Edge,
}

#[derive(Clone, Debug, Default)]
struct Gate {
    limit: u32,
    running: u32,
    waiting: BTreeMap<Order, LaneId>,
    /// The waiting attempts that stand in their lanes now: the first of them, as many as there is room for.
    exposed: SmallVec<[Order; 2]>,
    edge: Edge,
}

impl Gate {
    fn window(&self, windows: Windows) -> usize {
        windows.key.max(self.limit as usize)
    }

    /// How many more attempts may execute. Before any attempt is known, so is how many may.
    fn room(&self) -> usize {
        self.limit.max(1).saturating_sub(self.running) as usize
    }
}

/// How far a line is in memory.
#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    /// The last place that is in memory for certain; `None`: the whole line is.
    last: Option<Order>,
    /// Whether the page behind it was asked for.
    paging: bool,
    /// Whether the line has become long, and is to be cut.
    crowded: bool,
}

impl Edge {
    fn hides(&self, order: &Order) -> bool {
        self.last.is_some_and(|last| *order > last)
    }
}

/// How much of each line, and of what is due, is kept in memory; up to twice as much before the rest is left to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Attempts without a concurrency key, of one queue, workflow and version.
    pub lane: usize,
    /// Attempts of one concurrency key; at least as many as may execute at once.
    pub key: usize,
    /// Deadlines of runs outside memory.
    pub due: usize,
    /// Waiting attempts that are read at a time.
    pub page: usize,
    /// Runs that were only looked at.
    pub visitors: usize,
}

impl Default for Windows {
    fn default() -> Self {
        let (lane, key, due) = (READY_WINDOW_MAX, KEY_WINDOW_MAX, DUE_WINDOW_MAX);
        Self { lane, key, due, page: READY_PAGE_MAX, visitors: VISITORS_MAX }
    }
}

/// All ready work of a shard.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    windows: Windows,
    lanes: Vec<Lane>,
    lane_ids: Map<LaneKey, LaneId>,
    lines: Vec<Line>,
    line_ids: Map<String, LineId>,
    gates: Map<String, Gate>,
    /// Lines whose next page is wanted, and the place it begins behind.
    wanted: Vec<(String, Order)>,
    /// The edges of lines whose page is under way: nothing that comes after the first of them may be claimed, because
    /// someone with a better place may be on the way.
    starving: BTreeSet<Order>,
    /// Lines that have become long, to be cut at the next flush.
    crowded: Vec<String>,
}

impl Ready {
    /// Ready work of which so much is kept in memory.
    pub fn new(windows: Windows) -> Self {
        Self { windows, ..Self::default() }
    }

    /// The lane of `key`, made if it is new.
    pub fn lane(&mut self, key: &LaneKey) -> LaneId {
        if let Some(id) = self.lane_ids.get(key) {
            return *id;
        }
        let id = LaneId(self.lanes.len() as u32);
        let line = self.line(key.line());
        self.lines[line.0 as usize].lanes.push(id);
        self.lanes.push(Lane { key: key.clone(), line, waiting: BTreeSet::new() });
        self.lane_ids.insert(key.clone(), id);
        id
    }

    /// How many lanes there are; lanes are never removed.
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// What the attempts of a lane have in common.
    pub fn lane_key(&self, lane: LaneId) -> &LaneKey {
        &self.lanes[lane.0 as usize].key
    }

    /// The lane with the given number.
    pub fn lane_at(&self, index: usize) -> LaneId {
        debug_assert!(index < self.lanes.len(), "lanes are counted from zero");
        LaneId(index as u32)
    }

    fn line(&mut self, identity: String) -> LineId {
        let next = LineId(self.lines.len() as u32);
        let id = *self.line_ids.entry(identity.clone()).or_insert(next);
        if id.0 == next.0 {
            self.lines.push(Line { identity, lanes: SmallVec::new(), edge: Edge::default() });
        }
        id
    }

    /// Whether nothing waits, in any lane.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting.is_empty())
    }

    /// The first attempt of a lane that can be claimed now.
    pub fn first(&self, lane: LaneId) -> Option<Order> {
        let lane = &self.lanes[lane.0 as usize];
        let edge = &self.lines[lane.line.0 as usize].edge;
        lane.waiting.first().copied().filter(|order| !edge.hides(order))
    }

    /// Whether someone with a better place than `order` may be on the way from the store.
    pub fn must_wait(&self, order: &Order) -> bool {
        self.starving.first().is_some_and(|edge| order > edge)
    }

    /// Whether an attempt waits behind the edge of its line, so that its run may leave memory.
    pub fn is_hidden(&self, lane: LaneId, order: &Order, concurrency: Option<(&str, &Concurrency)>) -> bool {
        match concurrency {
            Some((namespace, concurrency)) => {
                self.gates.get(&key_line(namespace, concurrency)).is_some_and(|gate| gate.edge.hides(order))
            }
            None => self.lines[self.lanes[lane.0 as usize].line.0 as usize].edge.hides(order),
        }
    }

    /// Takes the lines whose next page is wanted, and the place it begins behind.
    pub fn take_wanted(&mut self) -> Vec<(String, Order)> {
        mem::take(&mut self.wanted)
    }

    /// A page of a line is in memory: up to `last`, or to the end.
    pub fn paged(&mut self, identity: &str, last: Option<Order>) {
        let edge = |before: Edge| Edge { last, paging: false, ..before };
        let before = match (self.gates.get(identity), self.line_ids.get(identity)) {
            (Some(gate), _) => gate.edge.last,
            (None, Some(line)) => self.lines[line.0 as usize].edge.last,
            (None, None) => None,
        };
        before.iter().for_each(|edge| {
            self.starving.remove(edge);
        });
        if identity.starts_with(KEY) {
            let gate = self.gates.entry(identity.into()).or_default();
            gate.edge = edge(gate.edge);
            expose(gate, &mut self.lanes);
            self.look_behind_gate(identity);
            self.forget_if_idle(identity);
        } else {
            let line = self.line(identity.into());
            let at = &mut self.lines[line.0 as usize].edge;
            *at = edge(*at);
            self.look_behind_lane(line);
        }
    }

    /// Cuts lines that have become long, and gives the runs that now wait behind an edge.
    pub fn cut(&mut self) -> Vec<RunId> {
        let mut behind = Vec::new();
        for identity in mem::take(&mut self.crowded) {
            if let Some(gate) = self.gates.get_mut(&identity) {
                gate.edge.crowded = false;
                if gate.edge.paging {
                    continue;
                }
                if let Some(last) = cut(|| gate.waiting.keys(), gate.edge, gate.window(self.windows)) {
                    gate.edge.last = Some(last);
                    expose(gate, &mut self.lanes);
                }
                behind.extend(gate.waiting.keys().filter(|order| gate.edge.hides(order)).map(|order| order.run));
            } else if let Some(line) = self.line_ids.get(&identity) {
                let line = &mut self.lines[line.0 as usize];
                line.edge.crowded = false;
                // What is on its way is counted from the edge as it stands.
                if line.edge.paging {
                    continue;
                }
                for lane in &line.lanes {
                    let orders = || self.lanes[lane.0 as usize].waiting.iter();
                    if let Some(last) = cut(orders, line.edge, self.windows.lane) {
                        line.edge.last = Some(last);
                    }
                }
                let all = line.lanes.iter().flat_map(|lane| &self.lanes[lane.0 as usize].waiting);
                behind.extend(all.filter(|order| line.edge.hides(order)).map(|order| order.run));
            }
        }
        behind
    }

    /// The attempt of a lane that is ready for longest, whatever its priority.
    pub fn oldest(&self, lane: LaneId) -> Option<Order> {
        let waiting = &self.lanes[lane.index()].waiting;
        let mut oldest = *waiting.first()?;
        let mut priority = oldest.priority;
        // Within a priority the first is the oldest, so one look at each will do.
        while let Some(next) = priority.checked_add(1).and_then(|from| waiting.range(first_of(from)..).next()) {
            priority = next.priority;
            if next.eligible_at < oldest.eligible_at {
                oldest = *next;
            }
        }
        Some(oldest)
    }

    /// Adds a ready attempt.
    pub fn insert(&mut self, lane: LaneId, order: Order, concurrency: Option<(&str, &Concurrency)>) {
        let Some((namespace, concurrency)) = concurrency else {
            let lane = &mut self.lanes[lane.0 as usize];
            lane.waiting.insert(order);
            let line = &mut self.lines[lane.line.0 as usize];
            if lane.waiting.len() > 2 * self.windows.lane && !mem::replace(&mut line.edge.crowded, true) {
                self.crowded.push(line.identity.clone());
            }
            return;
        };
        let identity = key_line(namespace, concurrency);
        let gate = self.gates.entry(identity.clone()).or_default();
        gate.limit = concurrency.limit;
        gate.waiting.insert(order, lane);
        expose(gate, &mut self.lanes);
        if gate.waiting.len() > 2 * gate.window(self.windows) && !mem::replace(&mut gate.edge.crowded, true) {
            self.crowded.push(identity.clone());
        }
        self.look_behind_gate(&identity);
    }

    /// Takes a ready attempt away, claimed or not.
    pub fn remove(&mut self, lane: LaneId, order: Order, concurrency: Option<(&str, &Concurrency)>) {
        self.lanes[lane.0 as usize].waiting.remove(&order);
        if let Some((namespace, concurrency)) = concurrency {
            let key = key_line(namespace, concurrency);
            if let Some(gate) = self.gates.get_mut(&key) {
                gate.waiting.remove(&order);
                gate.exposed.retain(|exposed| *exposed != order);
                expose(gate, &mut self.lanes);
                self.look_behind_gate(&key);
                self.forget_if_idle(&key);
            }
        }
        self.look_behind_lane(self.lanes[lane.0 as usize].line);
    }

    /// An attempt of this key began to execute.
    pub fn enter(&mut self, namespace: &str, concurrency: &Concurrency) {
        let gate = self.gates.entry(key_line(namespace, concurrency)).or_default();
        gate.limit = concurrency.limit;
        gate.running += 1;
        expose(gate, &mut self.lanes);
    }

    /// An attempt of this key no longer executes.
    pub fn leave(&mut self, namespace: &str, concurrency: &Concurrency) {
        let key = key_line(namespace, concurrency);
        if let Some(gate) = self.gates.get_mut(&key) {
            gate.running = gate.running.saturating_sub(1);
            expose(gate, &mut self.lanes);
            self.look_behind_gate(&key);
            self.forget_if_idle(&key);
        }
    }

    /// How many attempts of the lane come before `order`.
    pub fn ahead(&self, lane: LaneId, order: &Order) -> usize {
        self.lanes[lane.0 as usize].waiting.range(..order).count()
    }

    fn forget_if_idle(&mut self, key: &str) {
        let idle = |gate: &Gate| gate.running == 0 && gate.waiting.is_empty() && gate.edge.last.is_none();
        if self.gates.get(key).is_some_and(idle) {
            self.gates.remove(key);
        }
    }

    /// Wants the next page of a line of which nothing is left before its edge.
    fn look_behind_lane(&mut self, line: LineId) {
        let line = &mut self.lines[line.0 as usize];
        let Some(last) = line.edge.last.filter(|_| !line.edge.paging) else {
            return;
        };
        let first = |lane: &LaneId| self.lanes[lane.0 as usize].waiting.first().copied();
        if line.lanes.iter().filter_map(first).all(|order| order > last) {
            line.edge.paging = true;
            self.starving.insert(last);
            self.wanted.push((line.identity.clone(), last));
        }
    }

    /// Wants the next page of a key that has room for more than what is before its edge.
    fn look_behind_gate(&mut self, key: &str) {
        let Some(gate) = self.gates.get_mut(key) else {
            return;
        };
        let room = gate.room();
        if let Some(last) = gate.edge.last.filter(|_| !gate.edge.paging)
            && gate.exposed.len() < room
        {
            gate.edge.paging = true;
            self.starving.insert(last);
            self.wanted.push((key.into(), last));
        }
    }
}

/// Where a line of more than two windows is cut: after the first window.
fn cut<'a, I: Iterator<Item = &'a Order>>(orders: impl Fn() -> I, edge: Edge, window: usize) -> Option<Order> {
    let seen = || orders().take_while(|order| !edge.hides(order));
    seen().nth(2 * window)?;
    // All attempts of that run: the store knows a run by its first.
    seen().nth(window - 1).map(|last| Order { cursor: u16::MAX, ..*last })
}

/// What no attempt of a priority comes before.
fn first_of(priority: i32) -> Order {
    Order { priority, eligible_at: Timestamp(i64::MIN), arrival: Seq(0), run: RunId(0), cursor: 0 }
}

/// Brings the lanes in line with the gate: exactly the first `limit - running` waiting attempts stand there.
fn expose(gate: &mut Gate, lanes: &mut [Lane]) {
    let room = gate.room();
    let wanted: SmallVec<[(Order, LaneId); 2]> = gate
        .waiting
        .iter()
        .take(room)
        .map(|(order, lane)| (*order, *lane))
        .filter(|(order, _)| !gate.edge.hides(order))
        .collect();
    for order in &gate.exposed {
        if !wanted.iter().any(|(kept, _)| kept == order)
            && let Some(lane) = gate.waiting.get(order)
        {
            lanes[lane.0 as usize].waiting.remove(order);
        }
    }
    for (order, lane) in &wanted {
        lanes[lane.0 as usize].waiting.insert(*order);
    }
    gate.exposed = wanted.into_iter().map(|(order, _)| order).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    fn order(priority: i32, arrival: u64) -> Order {
        let run = RunId::new(Timestamp(1), Slot(1), u128::from(arrival));
        Order { priority, eligible_at: Timestamp(1), arrival: Seq(arrival), run, cursor: 0 }
    }

    fn lane(ready: &mut Ready) -> LaneId {
        ready.lane(&LaneKey {
            namespace: "n".into(),
            queue: "q".into(),
            workflow: "w".into(),
            version: 1,
            fingerprint: None,
        })
    }

    /// D25: patience is counted from the oldest attempt of a lane, which need not be the first to be claimed.
    #[test]
    fn the_oldest_attempt_may_stand_behind_others() {
        let mut ready = Ready::default();
        let lane = lane(&mut ready);
        let at = |priority, at, arrival| Order { eligible_at: Timestamp(at), ..order(priority, arrival) };
        assert_eq!(ready.oldest(lane), None);
        for order in [at(-7, 50, 2), at(-7, 60, 1), at(0, 40, 3), at(i32::MAX, 30, 4), at(9, 70, 5)] {
            ready.insert(lane, order, None);
        }
        assert_eq!(ready.oldest(lane), Some(at(i32::MAX, 30, 4)));
        ready.remove(lane, at(i32::MAX, 30, 4), None);
        assert_eq!(ready.oldest(lane), Some(at(0, 40, 3)));
    }

    /// GD-37: at most K of a key at once, in strict order, and a saturated key blocks no other.
    #[test]
    fn a_key_exposes_only_as_many_attempts_as_it_has_room_for() {
        let mut ready = Ready::default();
        let lane = lane(&mut ready);
        let one = Concurrency { key: "k".into(), limit: 1 };
        let keyed = Some(("n", &one));
        ready.insert(lane, order(0, 2), keyed);
        ready.insert(lane, order(0, 3), keyed);
        ready.insert(lane, order(5, 4), None);
        assert_eq!(ready.first(lane), Some(order(0, 2)));
        // A better one that arrives later takes the place of the exposed one.
        ready.insert(lane, order(-1, 5), keyed);
        assert_eq!(ready.first(lane), Some(order(-1, 5)));
        ready.remove(lane, order(-1, 5), keyed);
        ready.enter("n", &one);
        assert_eq!(ready.first(lane), Some(order(5, 4)), "the saturated key does not block the unkeyed attempt");
        ready.leave("n", &one);
        assert_eq!(ready.first(lane), Some(order(0, 2)));
    }

    /// A key of which nothing waits and nothing executes takes no memory, whichever of the two was the last.
    #[test]
    fn an_idle_key_is_forgotten() {
        let mut ready = Ready::default();
        let lane = lane(&mut ready);
        let one = Concurrency { key: "k".into(), limit: 1 };
        let keyed = Some(("n", &one));
        ready.insert(lane, order(0, 2), keyed);
        ready.remove(lane, order(0, 2), keyed);
        assert!(ready.gates.is_empty(), "what waited was taken away");
        ready.insert(lane, order(0, 3), keyed);
        ready.enter("n", &one);
        ready.remove(lane, order(0, 3), keyed);
        assert_eq!(ready.gates.len(), 1, "it executes");
        ready.leave("n", &one);
        assert!(ready.gates.is_empty(), "it has ended");
        ready.paged(&key_line("n", &one), None);
        assert!(ready.gates.is_empty(), "nothing came from the store");
    }
}
