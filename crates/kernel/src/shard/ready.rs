//! Ready work, in two levels: a lane holds attempts that can be claimed now; an attempt with a concurrency key
//! enters its lane only while the key has room, in strict order within the key.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use smallvec::SmallVec;

use super::hash::Map;
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

/// A lane, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u32);

impl LaneId {
    /// Its number, counted from zero.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct Lane {
    key: LaneKey,
    waiting: BTreeSet<Order>,
}

#[derive(Debug, Default)]
struct Gate {
    limit: u32,
    running: u32,
    waiting: BTreeMap<Order, LaneId>,
    /// The waiting attempts that stand in their lanes now: the first of them, as many as there is room for.
    exposed: SmallVec<[Order; 2]>,
}

/// All ready work of a shard.
#[derive(Debug, Default)]
pub struct Ready {
    lanes: Vec<Lane>,
    lane_ids: Map<LaneKey, LaneId>,
    gates: Map<String, Gate>,
}

impl Ready {
    /// The lane of `key`, made if it is new.
    pub fn lane(&mut self, key: &LaneKey) -> LaneId {
        if let Some(id) = self.lane_ids.get(key) {
            return *id;
        }
        let id = LaneId(self.lanes.len() as u32);
        self.lanes.push(Lane { key: key.clone(), waiting: BTreeSet::new() });
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

    /// The first attempt of a lane that can be claimed now.
    pub fn first(&self, lane: LaneId) -> Option<Order> {
        self.lanes[lane.0 as usize].waiting.first().copied()
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
            self.lanes[lane.0 as usize].waiting.insert(order);
            return;
        };
        let gate = self.gates.entry(gate_key(namespace, &concurrency.key)).or_default();
        gate.limit = concurrency.limit;
        gate.waiting.insert(order, lane);
        expose(gate, &mut self.lanes);
    }

    /// Takes a ready attempt away, claimed or not.
    pub fn remove(&mut self, lane: LaneId, order: Order, concurrency: Option<(&str, &Concurrency)>) {
        self.lanes[lane.0 as usize].waiting.remove(&order);
        if let Some((namespace, concurrency)) = concurrency {
            let key = gate_key(namespace, &concurrency.key);
            if let Some(gate) = self.gates.get_mut(&key) {
                gate.waiting.remove(&order);
                gate.exposed.retain(|exposed| *exposed != order);
                expose(gate, &mut self.lanes);
                self.forget_if_idle(&key);
            }
        }
    }

    /// An attempt of this key began to execute.
    pub fn enter(&mut self, namespace: &str, concurrency: &Concurrency) {
        let gate = self.gates.entry(gate_key(namespace, &concurrency.key)).or_default();
        gate.limit = concurrency.limit;
        gate.running += 1;
        expose(gate, &mut self.lanes);
    }

    /// An attempt of this key no longer executes.
    pub fn leave(&mut self, namespace: &str, concurrency: &Concurrency) {
        let key = gate_key(namespace, &concurrency.key);
        if let Some(gate) = self.gates.get_mut(&key) {
            gate.running = gate.running.saturating_sub(1);
            expose(gate, &mut self.lanes);
            self.forget_if_idle(&key);
        }
    }

    /// How many attempts of the lane come before `order`.
    pub fn ahead(&self, lane: LaneId, order: &Order) -> usize {
        self.lanes[lane.0 as usize].waiting.range(..order).count()
    }

    fn forget_if_idle(&mut self, key: &str) {
        if self.gates.get(key).is_some_and(|gate| gate.running == 0 && gate.waiting.is_empty()) {
            self.gates.remove(key);
        }
    }
}

/// What no attempt of a priority comes before.
fn first_of(priority: i32) -> Order {
    Order { priority, eligible_at: Timestamp(i64::MIN), arrival: Seq(0), run: RunId(0), cursor: 0 }
}

fn gate_key(namespace: &str, key: &str) -> String {
    alloc::format!("{namespace}\u{0}{key}")
}

/// Brings the lanes in line with the gate: exactly the first `limit - running` waiting attempts stand there.
fn expose(gate: &mut Gate, lanes: &mut [Lane]) {
    let room = gate.limit.saturating_sub(gate.running) as usize;
    let wanted: SmallVec<[(Order, LaneId); 2]> =
        gate.waiting.iter().take(room).map(|(order, lane)| (*order, *lane)).collect();
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
}
