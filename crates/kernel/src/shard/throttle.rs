//! Throttle: caps and rates on claims, shared by all shards of a process.
//!
//! A rule counts the attempts of a queue, a workflow or a namespace that execute, and how fast they begin. Shards
//! keep a tally of what began and what ended, and hand it over before they claim; the picker passes by lanes with a
//! saturated rule and goes on with the others. Rates live in memory only: a process that begins anew has used up none.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use smallvec::SmallVec;

use super::ready::{LaneId, LaneKey, Ready};
use crate::limits::{DELAY_MS_MAX, NAME_BYTES_MAX, THROTTLE_RULES_MAX};
use crate::{Str, Timestamp};

/// Whose attempts a rule counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of a queue.
    Queue(Str),
    /// Those of a workflow, in all its versions.
    Workflow(Str),
    /// Those of a namespace.
    Namespace(Str),
    /// Those of a queue in one namespace.
    QueueOf {
        /// The namespace.
        namespace: Str,
        /// The queue.
        queue: Str,
    },
}

impl Scope {
    fn name(&self) -> &Str {
        match self {
            Self::Queue(name) | Self::Workflow(name) | Self::Namespace(name) | Self::QueueOf { queue: name, .. } => {
                name
            }
        }
    }

    fn covers(&self, lane: &LaneKey) -> bool {
        match self {
            Self::Queue(name) => *name == lane.queue,
            Self::Workflow(name) => *name == lane.workflow,
            Self::Namespace(name) => *name == lane.namespace,
            Self::QueueOf { namespace, queue } => *namespace == lane.namespace && *queue == lane.queue,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Queue(_) => "queue",
            Self::Workflow(_) => "workflow",
            Self::Namespace(_) => "namespace",
            Self::QueueOf { namespace, queue } => return write!(f, "queue {queue} of namespace {namespace}"),
        };
        write!(f, "{kind} {}", self.name())
    }
}

/// How fast attempts may begin: `count` at once, and after that one in every `per_ms / count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many attempts.
    pub count: u32,
    /// In how many milliseconds.
    pub per_ms: u64,
}

/// What a queue, a workflow or a namespace may do at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whose attempts it counts.
    pub scope: Scope,
    /// How many of them may execute at once. None at all may of a queue in a namespace that is paused.
    pub at_most: Option<u32>,
    /// How fast they may begin.
    pub rate: Option<Rate>,
}

/// A rule that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule {
    /// Whose rule it is.
    pub scope: Scope,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the limit of {}: {}", self.scope, self.problem)
    }
}

impl core::error::Error for BadRule {}

/// Rules that were looked at: each has a scope of its own and limits something.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<[Rule]>);

impl Rules {
    /// Looks at every rule.
    ///
    /// # Errors
    /// When a rule has an empty name, limits nothing or to nothing, or when a scope has two.
    pub fn new(rules: Vec<Rule>) -> Result<Self, BadRule> {
        for (index, rule) in rules.iter().enumerate() {
            let before = &rules[..index];
            let problem = problem(rule).or_else(|| {
                let twice = before.iter().any(|other| other.scope == rule.scope);
                twice.then_some("expected one limit, found two; say both things in one")
            });
            let problem = problem.or((index == THROTTLE_RULES_MAX).then_some("there are too many limits"));
            if let Some(problem) = problem {
                return Err(BadRule { scope: rule.scope.clone(), problem });
            }
        }
        Ok(Self(rules.into()))
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    fn of(&self, lane: &LaneKey) -> Applied {
        let covering = self.0.iter().enumerate().filter(|(_, rule)| rule.scope.covers(lane));
        covering.map(|(index, _)| index as u16).collect()
    }
}

fn problem(rule: &Rule) -> Option<&'static str> {
    let name = rule.scope.name();
    match (rule.at_most, rule.rate) {
        _ if name.is_empty() => Some("expected a name, found none"),
        _ if name.len() > NAME_BYTES_MAX => Some("its name is too long"),
        (None, None) => Some("expected a cap or a rate, found neither"),
        (Some(0), _) if !matches!(rule.scope, Scope::QueueOf { .. }) => {
            Some("expected a cap of at least one, found zero")
        }
        (_, Some(rate)) if rate.count == 0 => Some("expected a rate of at least one, found zero"),
        (_, Some(rate)) if rate.per_ms == 0 => Some("expected a rate per millisecond or longer, found less"),
        (_, Some(rate)) if rate.per_ms > DELAY_MS_MAX => Some("expected a rate per hundred years at most, found more"),
        _ => None,
    }
}

/// Why an attempt that is ready may not begin yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The rule in its way.
    pub rule: Rule,
    /// How many attempts of the rule's scope execute.
    pub running: u32,
    /// When the rate lets the next one begin; `None` when the cap is reached, which ends when one of them does.
    pub free_at: Option<Timestamp>,
}

/// Which rules apply to a lane, by their numbers.
type Applied = SmallVec<[u16; 4]>;

/// One rule at work.
#[derive(Debug)]
struct Meter {
    rule: Rule,
    running: u32,
    /// When what began so far is used up, in parts of a millisecond: as many parts as the rate's count, so that
    /// nothing is rounded.
    used_until: i128,
}

impl Meter {
    fn is_full(&self) -> bool {
        self.rule.at_most.is_some_and(|most| self.running >= most)
    }

    /// When the rate lets the next attempt begin, if that is after `now`.
    fn free_at(&self, now: Timestamp) -> Option<Timestamp> {
        let Rate { count, per_ms } = self.rule.rate?;
        let (count, per_ms) = (i128::from(count), i128::from(per_ms));
        // As much as `count` attempts use up may lie ahead; one more must fit in.
        let excess = self.used_until - i128::from(now.0) * count - (count - 1) * per_ms;
        (excess > 0).then(|| now.after((excess + count - 1).div_euclid(count) as u64))
    }

    fn begin(&mut self, now: Timestamp) {
        if let Some(Rate { count, per_ms }) = self.rule.rate {
            self.used_until = self.used_until.max(i128::from(now.0) * i128::from(count)) + i128::from(per_ms);
        }
    }
}

/// All rules at work.
#[derive(Debug, Default)]
pub struct Throttle {
    meters: Vec<Meter>,
    now: Timestamp,
    wake: Option<Timestamp>,
}

impl Throttle {
    /// Rules under which nothing executes and nothing began yet.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        // Low enough for every instant to come after it, and far from the end of the numbers.
        let used_until = i128::MIN / 2;
        let meters = rules.0.iter().map(|rule| Meter { rule: rule.clone(), running: 0, used_until }).collect();
        Self { meters, now: Timestamp::default(), wake: None }
    }

    /// Goes by other rules from now on. What a rate has used up stays, where it stays the same; what executes is told anew
    /// by all shards.
    pub fn go_by(&mut self, rules: &Rules) {
        let before = core::mem::replace(self, Self { now: self.now, ..Self::new(rules) }).meters;
        for meter in &mut self.meters {
            let same = |other: &&Meter| other.rule.scope == meter.rule.scope && other.rule.rate == meter.rule.rate;
            if let Some(known) = before.iter().find(same) {
                meter.used_until = known.used_until;
            }
        }
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.meters.is_empty()
    }

    /// Forgets what executes, because shards are opened anew and tell it again. What a rate has used up stays.
    pub fn forget_running(&mut self) {
        self.meters.iter_mut().for_each(|meter| meter.running = 0);
        self.wake = None;
    }

    /// Forgets who was held up: a new round of claims begins, and meets them again.
    pub fn begin_round(&mut self) {
        self.wake = None;
    }

    /// When a rate lets the first of those begin that it held up in this round.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.wake
    }

    /// Whether nothing of a lane may begin until somebody says so.
    #[must_use]
    pub(super) fn is_paused(&self, lane: &LaneKey) -> bool {
        self.meters.iter().any(|meter| meter.rule.at_most == Some(0) && meter.rule.scope.covers(lane))
    }

    /// The rule that keeps attempts of a lane from beginning, if there is one.
    #[must_use]
    pub(super) fn hold(&self, lane: &LaneKey, now: Timestamp) -> Option<Hold> {
        let now = self.now.max(now);
        let holding = |meter: &&Meter| meter.is_full() || meter.free_at(now).is_some();
        let meter = self.meters.iter().filter(|meter| meter.rule.scope.covers(lane)).find(holding)?;
        let free_at = meter.free_at(now).filter(|_| !meter.is_full());
        Some(Hold { rule: meter.rule.clone(), running: meter.running, free_at })
    }

    /// Whether an attempt under these rules may begin now. If only rates are in its way, it is remembered when they
    /// let it; a cap needs no reminder, because whoever makes room claims anew.
    pub(super) fn admits(&mut self, rules: &[u16], now: Timestamp) -> bool {
        if rules.is_empty() {
            return true;
        }
        // Time never runs backwards here, as in a shard: a rate would hold up for as long as the clock was set back.
        self.now = self.now.max(now);
        let meters = rules.iter().map(|rule| &self.meters[usize::from(*rule)]);
        if meters.clone().any(Meter::is_full) {
            return false;
        }
        let Some(free_at) = meters.filter_map(|meter| meter.free_at(self.now)).max() else {
            return true;
        };
        self.wake = Some(self.wake.map_or(free_at, |wake| wake.min(free_at)));
        false
    }

    /// An attempt under these rules begins.
    pub(super) fn begin(&mut self, rules: &[u16]) {
        for rule in rules {
            self.meters[usize::from(*rule)].begin(self.now);
        }
    }
}

/// What began and what ended in one shard since it was last handed over, by rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    rules: Rules,
    lanes: Vec<Applied>,
    changes: Vec<i32>,
    /// What was handed over so far.
    reported: Vec<i32>,
}

impl Tally {
    pub(super) fn new(rules: Rules) -> Self {
        let changes: Vec<i32> = rules.0.iter().map(|_| 0).collect();
        Self { rules, lanes: Vec::new(), reported: changes.clone(), changes }
    }

    /// Looks up which rules apply to lanes that are new.
    pub(super) fn learn(&mut self, ready: &Ready) {
        if self.rules.0.is_empty() {
            return;
        }
        for index in self.lanes.len()..ready.lane_count() {
            self.lanes.push(self.rules.of(ready.lane_key(ready.lane_at(index))));
        }
    }

    /// The rules of a lane.
    pub(super) fn rules(&self, lane: LaneId) -> &[u16] {
        self.lanes.get(lane.index()).map_or(&[], |rules| rules)
    }

    /// An attempt of the lane executes.
    pub(super) fn enter(&mut self, ready: &Ready, lane: LaneId) {
        self.count(ready, lane, 1);
    }

    /// An attempt of the lane no longer executes.
    pub(super) fn leave(&mut self, ready: &Ready, lane: LaneId) {
        self.count(ready, lane, -1);
    }

    fn count(&mut self, ready: &Ready, lane: LaneId, by: i32) {
        self.learn(ready);
        if let Some(rules) = self.lanes.get(lane.index()) {
            rules.iter().for_each(|rule| self.changes[usize::from(*rule)] += by);
        }
    }

    /// Hands over what changed.
    pub(super) fn report(&mut self, throttle: &mut Throttle) {
        assert_eq!(self.changes.len(), throttle.meters.len(), "shards and throttle go by the same rules");
        let changes = self.changes.iter_mut().zip(&mut self.reported);
        for ((change, reported), meter) in changes.zip(&mut throttle.meters) {
            *reported += *change;
            let running = meter.running.checked_add_signed(core::mem::take(change));
            debug_assert!(running.is_some(), "what ends was counted when it began");
            meter.running = running.unwrap_or(0);
        }
    }

    /// Takes back all that was handed over.
    pub(super) fn withdraw(&mut self, throttle: &mut Throttle) {
        for ((change, reported), meter) in self.changes.iter_mut().zip(&mut self.reported).zip(&mut throttle.meters) {
            *change = 0;
            meter.running = meter.running.saturating_add_signed(-core::mem::take(reported));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(at_most: Option<u32>, rate: Option<(u32, u64)>) -> Rule {
        let rate = rate.map(|(count, per_ms)| Rate { count, per_ms });
        Rule { scope: Scope::Queue("q".into()), at_most, rate }
    }

    /// How many attempts may begin at each of the instants.
    fn begun(rate: (u32, u64), instants: impl IntoIterator<Item = i64>) -> Vec<u32> {
        let mut throttle = Throttle::new(&Rules::new(alloc::vec![queue(None, Some(rate))]).unwrap());
        let begin_all = |at| {
            let mut count = 0;
            while throttle.admits(&[0], Timestamp(at)) {
                throttle.begin(&[0]);
                count += 1;
            }
            count
        };
        instants.into_iter().map(begin_all).collect()
    }

    /// D23: a rate lets its count begin at once and the rest evenly, and a long rest saves up no more than that.
    #[test]
    fn a_rate_saves_up_no_more_than_its_count() {
        assert_eq!(begun((3, 300), [0, 99, 100, 101, 250, 300]), [3, 0, 1, 0, 1, 1]);
        assert_eq!(begun((3, 300), [0, 1_000_000, 1_000_001]), [3, 3, 0]);
        assert_eq!(begun((1, 1_000), [0, 999, 1_000, 1_001]), [1, 0, 1, 0]);
    }

    /// D23: nothing is lost by rounding: a rate that does not divide into milliseconds is kept over any time.
    #[test]
    fn a_rate_is_kept_to_the_attempt() {
        let odd: u32 = begun((7, 1_000), 0..10_000).iter().sum();
        assert_eq!(odd, 7 + 69, "seven at once, and one for each of the sevenths of a second that have passed");
        let many: u32 = begun((3_000, 1_000), 0..1_000).iter().sum();
        assert_eq!(many, 3_000 + 999 * 3);
    }

    /// D23: a held-up attempt is told the first instant at which it may begin, and may begin then.
    #[test]
    fn the_wake_is_the_first_free_instant() {
        let rules = Rules::new(alloc::vec![queue(None, Some((3, 1_000)))]).unwrap();
        let mut throttle = Throttle::new(&rules);
        for _ in 0..3 {
            assert!(throttle.admits(&[0], Timestamp(50)));
            throttle.begin(&[0]);
        }
        assert_eq!(throttle.next_wake(), None);
        assert!(!throttle.admits(&[0], Timestamp(50)));
        // A third of a second, in whole milliseconds, and never too early.
        assert_eq!(throttle.next_wake(), Some(Timestamp(384)));
        throttle.begin_round();
        assert!(!throttle.admits(&[0], Timestamp(383)));
        assert!(throttle.admits(&[0], Timestamp(384)));
        // A clock that is set back holds nobody up for longer.
        throttle.begin_round();
        assert!(throttle.admits(&[0], Timestamp(0)));
        assert_eq!(throttle.next_wake(), None);
    }

    /// D23: a rule that cannot be meant is refused by name.
    #[test]
    fn silly_rules_are_refused() {
        let unnamed = Rule { scope: Scope::Workflow("".into()), at_most: Some(1), rate: None };
        let cases = [
            (alloc::vec![unnamed], "the limit of workflow : expected a name, found none"),
            (alloc::vec![queue(None, None)], "the limit of queue q: expected a cap or a rate, found neither"),
            (alloc::vec![queue(Some(0), None)], "the limit of queue q: expected a cap of at least one, found zero"),
            (
                alloc::vec![queue(Some(1), Some((0, 5)))],
                "the limit of queue q: expected a rate of at least one, found zero",
            ),
            (
                alloc::vec![queue(None, Some((1, 0)))],
                "the limit of queue q: expected a rate per millisecond or longer, found less",
            ),
            (
                alloc::vec![queue(None, Some((1, DELAY_MS_MAX + 1)))],
                "the limit of queue q: expected a rate per hundred years at most, found more",
            ),
            (
                alloc::vec![queue(Some(1), None), queue(Some(2), None)],
                "the limit of queue q: expected one limit, found two; say both things in one",
            ),
        ];
        for (rules, expected) in cases {
            let found = Rules::new(rules).map(|_| ()).unwrap_err();
            assert_eq!(alloc::format!("{found}"), expected);
        }
        let named = |scope| Rule { scope, at_most: Some(1), rate: None };
        let long = |bytes: usize| named(Scope::Queue("q".repeat(bytes).into()));
        assert!(Rules::new(alloc::vec![long(NAME_BYTES_MAX), queue(None, Some((1, DELAY_MS_MAX)))]).is_ok());
        assert!(Rules::new(alloc::vec![long(NAME_BYTES_MAX + 1)]).is_err());
        let apart = [Scope::Queue("x".into()), Scope::Workflow("x".into()), Scope::Namespace("x".into())];
        assert!(Rules::new(apart.into_iter().map(named).collect()).is_ok(), "three scopes may share a name");
    }

    /// D23: rules that change forget nothing of a rate that stays the same, and keep nothing of one that does not.
    #[test]
    fn what_a_rate_has_used_up_stays_with_it() {
        let other = |name: &str, per_ms: u64| Rule {
            scope: Scope::Queue(name.into()),
            at_most: None,
            rate: Some(Rate { count: 1, per_ms }),
        };
        for (rule, used_up) in [(other("q", 100), true), (other("q", 200), false), (other("p", 100), false)] {
            let mut throttle = Throttle::new(&Rules::new(alloc::vec![other("q", 100)]).unwrap());
            assert!(throttle.admits(&[0], Timestamp(50)));
            throttle.begin(&[0]);
            throttle.go_by(&Rules::new(alloc::vec![rule]).unwrap());
            assert_eq!(throttle.now, Timestamp(50));
            assert_eq!(throttle.admits(&[0], Timestamp(50)), !used_up);
        }
    }
}
