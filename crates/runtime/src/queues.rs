//! Queues: whether a queue of a namespace is paused, and what it may do at most, by the word of whoever looks after it. It
//! is kept in the store, all nodes go by it, and it changes while attempts execute.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use abide_kernel::shard::{Rate, Rule, Rules, Scope};
use abide_kernel::{Phase, Refusal, Run, Shard, Status, Str, Timestamp, stable_hash};
use abide_store::{Depth, Fault, FaultKind, Kept, Reader};
use serde::{Deserialize, Serialize};

use crate::admission::Unanswered;
use crate::commit::Releasing;
use crate::core::Core;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::link::Letter;
use crate::snapshot::{ChangedRun, Snapshot};

/// Under which kind the store keeps it.
const KIND: &str = "queue";
/// Queues of one namespace for which something may hold: a process goes by so many rules and no more, and none of its
/// namespaces takes all of them.
const RULES_MAX: usize = 100;
/// More than there may be.
const ALL: usize = usize::MAX / 2;

/// What holds for a queue of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRule {
    /// The namespace.
    pub namespace: Str,
    /// The queue.
    pub queue: Str,
    /// Whether nothing of it begins until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// How many of its attempts may execute at once.
    #[serde(default)]
    pub at_most: Option<u32>,
    /// How fast they may begin: so many in so many milliseconds.
    #[serde(default)]
    pub rate: Option<(u32, u64)>,
}

impl QueueRule {
    fn new(namespace: &Str, queue: &Str) -> Self {
        Self { namespace: namespace.clone(), queue: queue.clone(), paused: false, at_most: None, rate: None }
    }

    fn says_nothing(&self) -> bool {
        !self.paused && self.at_most.is_none() && self.rate.is_none()
    }

    fn rule(&self) -> Rule {
        let scope = Scope::QueueOf { namespace: self.namespace.clone(), queue: self.queue.clone() };
        let rate = self.rate.map(|(count, per_ms)| Rate { count, per_ms });
        Rule { scope, at_most: if self.paused { Some(0) } else { self.at_most }, rate }
    }

    fn kept(&self) -> Kept {
        let body = serde_json::to_string(self).expect("a rule is plain data with text keys");
        Kept { kind: KIND.into(), id: id(&self.namespace, &self.queue), body }
    }
}

/// No name contains a line end beside what it is told apart by: its length goes before it.
fn id(namespace: &str, queue: &str) -> String {
    format!("{}:{namespace}:{queue}", namespace.len())
}

/// A queue as it is seen.
#[derive(Clone, Debug)]
pub struct SeenQueue {
    /// How much waits in it, and how much executes.
    pub depth: Depth,
    /// What holds for it.
    pub rule: QueueRule,
}

/// What is kept of queues. A rule that is damaged is reported, and the others hold.
fn read(reader: &mut dyn Reader) -> Result<Vec<QueueRule>, Fault> {
    let kept = match reader.kept(KIND, None, ALL) {
        Ok(kept) => kept,
        Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => {
            tracing::error!(%fault, "pauses and limits of queues cannot be read, and do not hold");
            return Ok(Vec::new());
        }
        Err(fault) => return Err(fault),
    };
    let parse = |kept: Kept| {
        let corrupt = |error| Fault::new(FaultKind::Unusable, format!("what is kept of queue {}: {error}", kept.id));
        serde_json::from_str(&kept.body).map_err(corrupt)
    };
    kept.into_iter().map(parse).collect()
}

/// Nothing waits in a queue, and nothing of it executes.
fn empty(queue: &str) -> Depth {
    Depth { queue: queue.to_owned(), waiting: 0, oldest: None, running: 0 }
}

/// Queues of a namespace, by name: what waits in them, and what holds for them.
fn seen(namespace: &Str, mut depths: BTreeMap<String, Depth>, rules: Vec<QueueRule>) -> Vec<SeenQueue> {
    let mut seen = BTreeMap::new();
    for rule in rules.into_iter().filter(|rule| rule.namespace == *namespace) {
        let depth = depths.remove(&*rule.queue).unwrap_or_else(|| empty(&rule.queue));
        seen.insert(depth.queue.clone(), SeenQueue { depth, rule });
    }
    for (queue, depth) in depths.into_iter().filter(|(_, depth)| depth.waiting + depth.running > 0) {
        let rule = QueueRule::new(namespace, &queue.as_str().into());
        seen.insert(queue, SeenQueue { depth, rule });
    }
    seen.into_values().collect()
}

impl Snapshot {
    /// The queues of a namespace in which something waits or executes, or for which something holds, by name. Since when the
    /// oldest waits may be a moment old.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn queues(&mut self, namespace: &Str, now: Timestamp) -> Result<Vec<SeenQueue>, Fault> {
        let depths = self.reader.depths(Some(namespace))?;
        let mut depths: BTreeMap<String, Depth> =
            depths.into_iter().map(|depth| (depth.queue.clone(), depth)).collect();
        // What the log says after the index rows takes their place.
        for ChangedRun { before, after } in self.changed_runs()? {
            if let Some(run) = before.filter(|run| run.started.spec.namespace == *namespace)
                && let Some(depth) = depths.get_mut(&*run.started.spec.queue)
            {
                depth.waiting = depth.waiting.saturating_sub(u64::from(claimable(&run, now).is_some()));
                depth.running = depth.running.saturating_sub(u64::from(run.status() == Status::Executing));
            }
            if let Some(run) = after.filter(|run| run.started.spec.namespace == *namespace) {
                let queue = &run.started.spec.queue;
                let depth = depths.entry(queue.to_string()).or_insert_with(|| empty(queue));
                let since = claimable(&run, now);
                depth.waiting += u64::from(since.is_some());
                depth.running += u64::from(run.status() == Status::Executing);
                depth.oldest = depth.oldest.into_iter().chain(since).min();
            }
        }
        depths.values_mut().filter(|depth| depth.waiting == 0).for_each(|depth| depth.oldest = None);
        Ok(seen(namespace, depths, read(self.reader.as_mut())?))
    }
}

/// Since when an attempt of the run can be claimed.
fn claimable(run: &Run, now: Timestamp) -> Option<Timestamp> {
    run.cursors.iter().find_map(|cursor| match cursor.phase {
        Phase::Scheduled { visible_at, .. } if visible_at <= now => Some(visible_at),
        _ => None,
    })
}

/// The rules of the configuration and those of queues together.
fn combined(base: &Rules, queues: &[QueueRule]) -> Result<Rules, Refusal> {
    let all = base.iter().cloned().chain(queues.iter().map(QueueRule::rule)).collect();
    Rules::new(all).map_err(|bad| Refusal::Invalid {
        what: "limits".into(),
        expected: "limits that can be kept".into(),
        found: bad.to_string(),
    })
}

/// By which nodes know whether they go by the same.
fn mark(queues: &[QueueRule]) -> u64 {
    let mut texts: Vec<String> = queues.iter().map(|rule| rule.kept().body).collect();
    texts.sort_unstable();
    stable_hash(texts.join("\n").as_bytes())
}

/// The rules that hold when an engine opens, and their mark. Those of queues that make no sense beside the configuration do
/// not hold.
pub(crate) fn rules(base: &Rules, reader: &mut dyn Reader) -> Result<(Rules, u64), Fault> {
    let queues = read(reader)?;
    let rules = combined(base, &queues).unwrap_or_else(|refusal| {
        tracing::error!(%refusal, "limits of queues make no sense here, and do not hold");
        base.clone()
    });
    Ok((rules, mark(&queues)))
}

impl Engine {
    /// The queues of a namespace in which something waits or executes, or for which something holds, by name. It blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn queues(&self, namespace: &Str) -> Result<Vec<SeenQueue>, Fault> {
        let shared = &self.shared;
        // What changed a moment ago is counted, too.
        shared.commit_next(true, Releasing::Here);
        let (depths, rules) = shared.views.count(|reader| Ok((reader.depths(Some(namespace))?, read(reader)?)))?;
        let depths = depths.into_iter().map(|depth| (depth.queue.clone(), depth)).collect();
        Ok(seen(namespace, depths, rules))
    }

    /// Changes what holds for a queue, here at once and elsewhere soon. It blocks until that is durable.
    ///
    /// # Errors
    /// When it cannot be meant, or the store cannot be written.
    pub fn change_queue(
        &self,
        namespace: &Str,
        queue: &Str,
        change: impl FnOnce(&mut QueueRule),
    ) -> Result<QueueRule, Unanswered> {
        let shared = &self.shared;
        let _alone = shared.changing_queues.lock();
        let mut all = read(shared.reader.lock().as_mut())?;
        let place = all.iter().position(|known| known.namespace == *namespace && known.queue == *queue);
        let mut rule = place.map_or_else(|| QueueRule::new(namespace, queue), |place| all.remove(place));
        change(&mut rule);
        if !rule.says_nothing() {
            if all.iter().filter(|known| known.namespace == *namespace).count() >= RULES_MAX {
                let what = format!("what holds for queues of namespace {namespace:?}");
                return Err(Refusal::Busy { what, limit: RULES_MAX as u64 }.into());
            }
            all.push(rule.clone());
        }
        let rules = combined(&shared.limits, &all)?;
        if rule.says_nothing() {
            shared.visit().forget(KIND, &id(namespace, queue))?;
        } else {
            shared.visit().keep(&[rule.kept()])?;
        }
        shared.rules_mark.store(mark(&all), Ordering::Release);
        shared.go_by(rules);
        shared.tell_rules(&shared.core.lock());
        Ok(rule)
    }
}

impl Shared {
    /// Goes by other rules from now on.
    fn go_by(&self, rules: Rules) {
        let now = self.now();
        let mut core = self.core.lock();
        core.throttle.go_by(&rules);
        core.served_mut().for_each(|shard: &mut Shard| shard.go_by(&rules));
        *self.rules.lock() = rules;
        core.fill(now);
        drop(core);
        self.bell.ring();
    }

    /// Tells other nodes what this one goes by: with every change, and with every renewal, because a letter may be lost.
    pub(crate) fn tell_rules(&self, core: &Core) {
        if let Some(ring) = &core.ring {
            ring.tell_all(&Letter::Rules { mark: self.rules_mark.load(Ordering::Acquire) });
        }
    }

    /// Another node says what it goes by. Whichever of the two is behind reads the store.
    pub(crate) fn heard_rules(&self, mark: u64) {
        if self.rules_mark.load(Ordering::Acquire) != mark {
            self.rules_changed.store(true, Ordering::Release);
        }
    }

    /// Reads what holds for queues anew, if another node goes by something else.
    pub(crate) fn read_rules_if_told(&self) {
        if !self.rules_changed.swap(false, Ordering::AcqRel) {
            return;
        }
        // Whoever inspects may take long; the driver has a lease to renew meanwhile.
        let Some(mut reader) = self.reader.try_lock() else {
            self.rules_changed.store(true, Ordering::Release);
            return;
        };
        let read = read(reader.as_mut());
        drop(reader);
        read.iter().for_each(|queues| self.rules_mark.store(mark(queues), Ordering::Release));
        match read.map(|queues| combined(&self.limits, &queues)) {
            Ok(Ok(rules)) => self.go_by(rules),
            Ok(Err(refusal)) => tracing::error!(%refusal, "limits of queues make no sense here, and do not hold"),
            Err(fault) => {
                tracing::warn!(%fault, "limits of queues could not be read; they are with the next renewal");
                self.rules_changed.store(true, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use abide_store::memory::MemoryStore;

    use super::*;
    use crate::{Config, Crank};

    #[test]
    fn queues_of_namespaces_have_ids_of_their_own() {
        assert_ne!(id("a:b", "c"), id("a", "b:c"));
        let rule = QueueRule { paused: true, at_most: Some(3), ..QueueRule::new(&"n".into(), &"q".into()) };
        assert_eq!(rule.rule().at_most, Some(0));
        assert_eq!(serde_json::from_str::<QueueRule>(&rule.kept().body).ok(), Some(rule));
    }

    /// AB-17: one tenant has so many rules, and the others keep theirs; what it has it may change and lift.
    #[test]
    fn one_namespace_does_not_use_up_the_rules_of_all() {
        let engine = Crank::open(Box::new(MemoryStore::new(1)), Config::default()).unwrap();
        let pause = |namespace: &str, queue: String, paused: bool| {
            let change = |rule: &mut QueueRule| rule.paused = paused;
            engine.engine().change_queue(&namespace.into(), &queue.as_str().into(), change)
        };
        for number in 0..RULES_MAX {
            pause("greedy", format!("q{number}"), true).unwrap();
        }
        let refused = pause("greedy", "more".into(), true).unwrap_err();
        assert!(matches!(refused, Unanswered::Refused(Refusal::Busy { limit: 100, .. })), "{refused}");
        pause("modest", "q".into(), true).unwrap();
        pause("greedy", "q0".into(), true).unwrap();
        pause("greedy", "q0".into(), false).unwrap();
        pause("greedy", "more".into(), true).unwrap();
    }
}
