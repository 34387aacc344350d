//! Explain: why a run does not move, in one sentence, with what it was read from and what can be done.
//!
//! It looks at the run and at what the runtime knows of its surroundings, and decides nothing.

mod decision;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::shard::Hold;
use crate::transition::claim::Definition;
use crate::{
    BoundaryId, Claim, ClaimId, Cursor, DeadLetter, Fingerprint, OpKind, Phase, Run, RunId, Status, Str, Timestamp,
    Wait, WaitKind,
};

/// What the run itself cannot know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether somebody could execute the run's next attempt.
    pub service: Service,
    /// Runs that execute under the run's concurrency key now.
    pub key_held_by: Vec<RunId>,
    /// Whether the run's queue is paused.
    pub queue_paused: bool,
    /// The cap or rate that keeps the run's attempts from beginning.
    pub hold: Option<Hold>,
    /// When the run becomes a dead letter, because live workers of its queue lack its definition.
    pub dead_letter_at: Option<Timestamp>,
    /// Ready attempts that the picker would take before this one, as far as they are in memory.
    pub ahead: usize,
    /// Whether there may be more of them in the store.
    pub more_ahead: bool,
}

/// Whether live workers serve a run, and what is missing if they do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Some worker has the queue, the workflow, the version and the definition.
    #[default]
    Served,
    /// No live worker has the queue.
    NoQueue,
    /// Workers have the queue, and none has the workflow.
    NoWorkflow,
    /// Workers have the workflow in these versions only.
    OtherVersions(Vec<u32>),
    /// Workers have the version with these definitions only.
    OtherDefinitions(Vec<Fingerprint>),
}

impl Service {
    /// Whether live workers serve the run, given the queues and the definitions of each.
    pub fn of<'a>(run: &Run, workers: impl IntoIterator<Item = (&'a [Str], &'a [Definition])>) -> Self {
        let spec = &run.started.spec;
        let mut found = Self::NoQueue;
        let mut versions = Vec::new();
        let mut fingerprints = Vec::new();
        for (queues, definitions) in workers {
            if !queues.contains(&spec.queue) {
                continue;
            }
            if found == Self::NoQueue {
                found = Self::NoWorkflow;
            }
            for definition in definitions.iter().filter(|d| d.workflow == spec.workflow) {
                versions.push(definition.version);
                if definition.version != spec.version {
                    continue;
                }
                if run.fingerprint.is_none_or(|pinned| pinned == definition.fingerprint) {
                    return Self::Served;
                }
                fingerprints.push(definition.fingerprint);
            }
        }
        versions.sort_unstable();
        versions.dedup();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        match (versions.is_empty(), fingerprints.is_empty()) {
            (_, false) => Self::OtherDefinitions(fingerprints),
            (false, true) => Self::OtherVersions(versions),
            (true, true) => found,
        }
    }
}

/// Why a run stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// What an engine in another process says, by its code.
    Told(Str),
    /// It has ended.
    Ended(Status),
    /// A worker executes it.
    Executing(ClaimId),
    /// It is ready, and nobody can execute it.
    NoWorker(Service),
    /// It is ready, and its queue is paused.
    QueuePaused,
    /// It is ready, and its concurrency key is taken.
    KeySaturated(Vec<RunId>),
    /// It is ready, and a cap or a rate is reached.
    Throttled(Hold),
    /// It is ready, behind so many others.
    Behind(usize),
    /// It is tried again later.
    BackingOff(Timestamp),
    /// It may not begin before this instant.
    NotYetEligible(Timestamp),
    /// It waits for a signal of one of these names.
    WaitingForSignal(Vec<Str>),
    /// It waits to be asked for one of these updates.
    WaitingForUpdate(Vec<Str>),
    /// It sleeps.
    Sleeping(Timestamp),
    /// It waits for these children.
    WaitingForChildren(Vec<RunId>),
    /// It waits for a person to decide.
    AwaitingDecision(BoundaryId),
    /// It waits until someone says whether this effect happened.
    InDoubt(Str),
    /// Its attempt was set aside.
    DeadLettered,
    /// A step waits for others of the run.
    NeedsNotMet(Vec<Str>),
    /// What a step returned is recorded and not applied: a torn state.
    NotApplied,
    /// It only holds a business key for a run that lives elsewhere.
    HoldsKey(RunId),
}

impl Reason {
    /// The stable word for the reason.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Told(code) => code,
            Self::Ended(_) => "ended",
            Self::Executing(_) => "executing",
            Self::NoWorker(Service::OtherVersions(_)) => "no_worker_version",
            Self::NoWorker(Service::OtherDefinitions(_)) => "no_worker_definition",
            Self::NoWorker(Service::NoWorkflow) => "no_worker_workflow",
            Self::NoWorker(Service::NoQueue | Service::Served) => "no_worker",
            Self::QueuePaused => "queue_paused",
            Self::KeySaturated(_) => "key_saturated",
            Self::Throttled(Hold { free_at: None, .. }) => "cap_reached",
            Self::Throttled(Hold { free_at: Some(_), .. }) => "rate_reached",
            Self::Behind(_) => "behind",
            Self::BackingOff(_) => "backing_off",
            Self::NotYetEligible(_) => "not_yet_eligible",
            Self::WaitingForSignal(_) => "waiting_for_signal",
            Self::WaitingForUpdate(_) => "waiting_for_update",
            Self::Sleeping(_) => "sleeping",
            Self::WaitingForChildren(_) => "waiting_for_children",
            Self::AwaitingDecision(_) => "awaiting_decision",
            Self::InDoubt(_) => "in_doubt",
            Self::DeadLettered => "dead_lettered",
            Self::NeedsNotMet(_) => "needs_not_met",
            Self::NotApplied => "not_applied",
            Self::HoldsKey(_) => "holds_key",
        }
    }
}

/// Why a run does not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reason, typed.
    pub reason: Reason,
    /// One sentence with the chain of causes.
    pub sentence: String,
    /// What it was read from, as name and value.
    pub evidence: Vec<(String, String)>,
    /// What can be done about it.
    pub next_actions: Vec<String>,
}

/// Explains where the run stands at `now`.
#[must_use]
pub fn explain(run: &Run, around: &Surroundings, now: Timestamp) -> Explanation {
    let mut explanation = if let Some(end) = &run.end {
        ended(run, end.status, end.at, now)
    } else if let Some(holds_for) = run.started.reserves {
        told(
            Reason::HoldsKey(holds_for),
            format!("this record only holds a business key for {holds_for}"),
            [format!("abide run explain {holds_for}")],
        )
    } else {
        match leading(run) {
            Some((index, cursor)) => open(run, index, cursor, around, now),
            None => told(Reason::NotApplied, "the run has no open step".into(), [recover(run)]),
        }
    };
    let mut facts = vec![
        ("status".to_string(), run.status().to_string()),
        ("rev".to_string(), run.rev.0.to_string()),
        ("workflow".to_string(), format!("{} v{}", run.started.spec.workflow, run.started.spec.version)),
        ("queue".to_string(), run.started.spec.queue.to_string()),
    ];
    facts.append(&mut explanation.evidence);
    explanation.evidence = facts;
    explanation
}

/// The cursor that says most: one that executes, is ready, is set aside, waits, or needs others, in this order.
fn leading(run: &Run) -> Option<(usize, &Cursor)> {
    let rank = |cursor: &Cursor| match &cursor.phase {
        Phase::Claimed(_) => 0,
        Phase::Completed { .. } | Phase::Failed => 1,
        Phase::Scheduled { .. } => 2,
        Phase::DeadLettered(_) => 3,
        Phase::Waiting(_) => 4,
        Phase::Planned { .. } => 5,
        Phase::Finished { .. } | Phase::Closed => 6,
    };
    run.cursors.iter().enumerate().min_by_key(|(_, cursor)| rank(cursor)).filter(|(_, cursor)| rank(cursor) < 6)
}

fn open(run: &Run, index: usize, cursor: &Cursor, around: &Surroundings, now: Timestamp) -> Explanation {
    match &cursor.phase {
        Phase::Claimed(claim) => executing(run, cursor, claim, now),
        Phase::Scheduled { visible_at, .. } if *visible_at > now => later(run, cursor, *visible_at, now),
        Phase::Scheduled { visible_at, .. } => ready(run, cursor, around, *visible_at, now),
        Phase::DeadLettered(letter) => dead(run, cursor, letter, now),
        Phase::Waiting(wait) => waiting(run, cursor, wait, now),
        Phase::Planned { .. } => needs(run, index, cursor),
        Phase::Completed { .. } | Phase::Failed | Phase::Finished { .. } | Phase::Closed => told(
            Reason::NotApplied,
            format!("what step {} returned is recorded and was not applied", step(cursor)),
            [recover(run)],
        ),
    }
}

fn ended(run: &Run, status: Status, at: Timestamp, now: Timestamp) -> Explanation {
    let error = run.last_error.as_ref().filter(|_| status != Status::Done);
    let why = error.map_or(String::new(), |error| format!(": {error}"));
    let actions = match status {
        Status::Done => vec![format!("abide run show {}", run.id)],
        _ => vec![format!("abide run show {}", run.id), format!("abide run history {}", run.id)],
    };
    let mut explanation =
        told(Reason::Ended(status), format!("it ended as {status} {} ago{why}", duration(now.since(at))), actions);
    explanation.note("ended_at_ms", at.0);
    explanation
}

fn executing(run: &Run, cursor: &Cursor, claim: &Claim, now: Timestamp) -> Explanation {
    let by = cursor.claimant.as_ref().map_or("somebody", |by| &*by.owner);
    let since = claim.until().0.saturating_sub(cursor.claimant.as_ref().map_or(0, |by| by.lease_ms as i64));
    let lease = if claim.until() <= now {
        format!("its lease ended {} ago", duration(now.since(claim.until())))
    } else {
        format!("its lease lasts {} more", duration(claim.until().since(now)))
    };
    let id = ClaimId { run: run.id, number: claim.number };
    let mut explanation = told(
        Reason::Executing(id),
        format!(
            "{by} executes step {}, last heard of {} ago, and {lease}",
            step(cursor),
            duration(now.since(Timestamp(since)))
        ),
        ["wait: if the worker is gone, the step runs again when its lease ends".to_string()],
    );
    explanation.note("worker", by);
    explanation.note("claim", claim.number);
    explanation.note("lease_until_ms", claim.until().0);
    explanation
}

/// An attempt that is not visible yet: the run's own start, or a retry.
fn later(run: &Run, cursor: &Cursor, at: Timestamp, now: Timestamp) -> Explanation {
    let wait = duration(at.since(now));
    let mut explanation = if cursor.retries + cursor.reclaims == 0 {
        told(Reason::NotYetEligible(at), format!("it may not begin for another {wait}"), ["wait".to_string()])
    } else {
        let after = run.last_error.as_ref().map_or(String::new(), |error| format!(" after {error}"));
        told(
            Reason::BackingOff(at),
            format!(
                "attempt {} of step {} backs off for another {wait}{after}",
                cursor.retries + cursor.reclaims,
                step(cursor)
            ),
            ["wait".to_string(), format!("abide run cancel {}", run.id)],
        )
    };
    explanation.note("visible_at_ms", at.0);
    explanation.note("retries", cursor.retries);
    explanation.note("reclaims", cursor.reclaims);
    explanation
}

fn ready(run: &Run, cursor: &Cursor, around: &Surroundings, since: Timestamp, now: Timestamp) -> Explanation {
    let spec = &run.started.spec;
    let what = format!("step {} is ready since {}", step(cursor), duration(now.since(since)));
    let limit = spec.concurrency.as_ref().map_or(u32::MAX, |c| c.limit);
    let mut explanation = if around.service != Service::Served {
        unserved(run, &around.service, &what)
    } else if around.queue_paused {
        told(
            Reason::QueuePaused,
            format!("{what}, but queue {} is paused", spec.queue),
            [format!("resume queue {}", spec.queue)],
        )
    } else if around.key_held_by.len() >= limit as usize {
        let key = spec.concurrency.as_ref().map_or("", |c| &*c.key);
        let holders: Vec<String> = around.key_held_by.iter().map(ToString::to_string).collect();
        let mut saturated = told(
            Reason::KeySaturated(around.key_held_by.clone()),
            format!("{what}, but concurrency key {key:?} is taken by {}", holders.join(", ")),
            holders.iter().map(|holder| format!("abide run explain {holder}")),
        );
        saturated.note("key_limit", limit);
        saturated
    } else if let Some(hold) = &around.hold {
        throttled(hold, &what, now)
    } else {
        told(
            Reason::Behind(around.ahead),
            match (around.ahead, around.more_ahead) {
                (0, false) => format!("{what} and next in line: a worker takes it when it has room"),
                (n, false) => format!("{what}, behind {n} others"),
                (n, true) => format!("{what}, behind at least {n} others"),
            },
            ["start more workers, or raise their concurrency".to_string()],
        )
    };
    around.dead_letter_at.iter().for_each(|at| explanation.note("dead_letter_at_ms", at.0));
    explanation.note("visible_at_ms", since.0);
    explanation.note("ahead", around.ahead);
    explanation
}

fn throttled(hold: &Hold, what: &str, now: Timestamp) -> Explanation {
    let Hold { rule, running, free_at } = hold;
    let why = match (free_at, rule.rate, rule.at_most) {
        (Some(at), Some(rate), _) => format!(
            "{} begins {} attempts in {} at most: the next may begin in {}",
            rule.scope,
            rate.count,
            duration(rate.per_ms),
            duration(at.since(now))
        ),
        (_, _, most) => format!("{} executes {running} attempts, and {} at most", rule.scope, most.unwrap_or(*running)),
    };
    let mut explanation = told(
        Reason::Throttled(hold.clone()),
        format!("{what}, but {why}"),
        ["wait".to_string(), format!("raise the limit of {}", rule.scope)],
    );
    explanation.note("limit_scope", &rule.scope);
    explanation.note("limit_running", running);
    rule.at_most.iter().for_each(|most| explanation.note("limit_at_most", most));
    if let Some(rate) = &rule.rate {
        explanation.note("limit_rate", format!("{} per {} ms", rate.count, rate.per_ms));
    }
    free_at.iter().for_each(|at| explanation.note("limit_free_at_ms", at.0));
    explanation
}

fn unserved(run: &Run, service: &Service, what: &str) -> Explanation {
    let spec = &run.started.spec;
    let (workflow, version, queue) = (&spec.workflow, spec.version, &spec.queue);
    let missing = match service {
        Service::Served | Service::NoQueue => format!("no live worker serves queue {queue}"),
        Service::NoWorkflow => format!("no live worker of queue {queue} has workflow {workflow}"),
        Service::OtherVersions(versions) => {
            format!("it needs {workflow} v{version}, and live workers have v{}", list(versions))
        }
        Service::OtherDefinitions(found) => format!(
            "it is pinned to definition {} of {workflow} v{version}, and live workers have {}",
            run.fingerprint.map_or("none".into(), |pinned| pinned.to_string()),
            list(found)
        ),
    };
    told(
        Reason::NoWorker(service.clone()),
        format!("{what}, but {missing}"),
        [format!("start a worker that has {workflow} v{version} on queue {queue}")],
    )
}

fn waiting(run: &Run, cursor: &Cursor, wait: &Wait, now: Timestamp) -> Explanation {
    let since = duration(now.since(run.last_executed.as_ref().map_or(run.created_at, |last| last.at)));
    let until =
        wait.until.map_or(String::new(), |until| format!(", for {} more at the longest", duration(until.since(now))));
    let mut explanation = match &wait.kind {
        WaitKind::Signal { names, .. } => told(
            Reason::WaitingForSignal(names.clone()),
            format!("step {} waits for signal {} since {since}{until}", step(cursor), names.join(" or ")),
            names.iter().map(|name| format!("abide run signal {} {name}", run.id)),
        ),
        WaitKind::Timer => {
            let at = wait.until.unwrap_or(now);
            told(
                Reason::Sleeping(at),
                format!("step {} sleeps for another {}", step(cursor), duration(at.since(now))),
                ["wait".to_string()],
            )
        }
        WaitKind::Children(barrier) => {
            let open: Vec<RunId> = run
                .children
                .iter()
                .filter(|child| child.end.is_none() && child.barrier == Some(wait.token))
                .map(|child| child.id)
                .collect();
            let mut joined = told(
                Reason::WaitingForChildren(open.clone()),
                format!(
                    "step {} waits for {} of its children since {since}{until}: {}",
                    step(cursor),
                    barrier.pending,
                    list(&open[..open.len().min(5)])
                ),
                open.iter().take(5).map(|child| format!("abide run explain {child}")),
            );
            joined.note("children_pending", barrier.pending);
            joined.note("children_succeeded", barrier.succeeded);
            joined.note("children_failed", barrier.failed);
            joined
        }
        WaitKind::Ledger => ledger(run, cursor, &since, now),
    };
    explanation.note("wait_token", wait.token);
    if let Some(until) = wait.until {
        explanation.note("wait_until_ms", until.0);
    }
    explanation
}

/// A function waits for its ledger: an effect in doubt before all else, then a person, signals, children and timers.
fn ledger(run: &Run, cursor: &Cursor, since: &str, now: Timestamp) -> Explanation {
    let at = step(cursor);
    let doubted = run.open_ops().find(|(id, _)| run.standing(*id) == Some(crate::Standing::InDoubt));
    if let Some((id, op)) = doubted {
        let mut explanation = told(
            Reason::InDoubt(op.key.clone()),
            format!("effect {:?} may or may not have happened, and is not repeated by itself", op.key),
            ["--result", "--retry", "--fail"].map(|how| format!("abide effect resolve {} {} {how}", run.id, op.key)),
        );
        explanation.note("effect", id);
        return explanation;
    }
    if let Some(manual) = run.boundary() {
        return decision::explain(run, manual, now);
    }
    let (mut signals, mut updates) = (Vec::new(), Vec::new());
    let mut children = Vec::new();
    for (_, op) in run.open_ops() {
        match &op.kind {
            OpKind::Signal { name, .. } if !signals.contains(name) => signals.push(name.clone()),
            OpKind::Child { run } => children.push(*run),
            OpKind::Update { name, .. } if !updates.contains(name) => updates.push(name.clone()),
            OpKind::Signal { .. }
            | OpKind::Update { .. }
            | OpKind::Effect(_)
            | OpKind::Timer { .. }
            | OpKind::Patch
            | OpKind::Manual { .. } => {}
        }
    }
    let due = run.open_ops().filter_map(|(_, op)| op.due()).min();
    let until = due.map_or(String::new(), |due| format!(", for {} more at the longest", duration(due.since(now))));
    if !signals.is_empty() || !updates.is_empty() {
        let told_of = |what: &str, names: &[Str]| (!names.is_empty()).then(|| format!("{what} {}", names.join(" or ")));
        let awaited: Vec<String> =
            [told_of("signal", &signals), told_of("update", &updates)].into_iter().flatten().collect();
        let sentence = format!("{at} waits for {} since {since}{until}", awaited.join(" or "));
        let signal = signals.iter().map(|name| format!("abide run signal {} {name}", run.id));
        let update = updates.iter().map(|name| format!("abide run update {} {name}", run.id));
        let actions: Vec<String> = signal.chain(update).collect();
        let none = signals.is_empty();
        let reason = if none { Reason::WaitingForUpdate(updates) } else { Reason::WaitingForSignal(signals) };
        return told(reason, sentence, actions);
    }
    if !children.is_empty() {
        let actions: Vec<String> = children.iter().take(5).map(|child| format!("abide run explain {child}")).collect();
        let shown = list(&children[..children.len().min(5)]);
        let sentence = format!("{at} waits for {} of its children since {since}{until}: {shown}", children.len());
        return told(Reason::WaitingForChildren(children), sentence, actions);
    }
    let until = due.unwrap_or(now);
    let left = duration(until.since(now));
    let mut first = run.open_ops().filter(|(_, op)| op.due() == due);
    let sentence = match first.find_map(|(_, op)| Some((&op.key, op.effect()?.retries.as_ref()?))) {
        Some((key, retries)) => format!("effect {key:?} failed ({}) and is tried again in {left}", retries.error),
        None => format!("{at} sleeps for another {left}"),
    };
    told(Reason::Sleeping(until), sentence, ["wait".to_string()])
}

fn dead(run: &Run, cursor: &Cursor, letter: &DeadLetter, now: Timestamp) -> Explanation {
    let mut explanation = told(
        Reason::DeadLettered,
        format!(
            "step {} was set aside as a dead letter {} ago: {}",
            step(cursor),
            duration(now.since(letter.at)),
            letter.reason
        ),
        [format!("abide dead-letter requeue {}", run.id), format!("abide dead-letter discard {}", run.id)],
    );
    explanation.note("node", &letter.node);
    explanation.note("turn", letter.envelope.turn);
    explanation
}

fn needs(run: &Run, index: usize, cursor: &Cursor) -> Explanation {
    if run.needs_met(cursor) {
        return told(
            Reason::NotApplied,
            format!("step {} is planned, and no attempt was scheduled", step(cursor)),
            [recover(run)],
        );
    }
    let finished = |need: &&Str| {
        let mut planned = run.started.spec.steps.iter().zip(&run.cursors);
        planned.any(|(plan, at)| plan.step == **need && matches!(at.phase, Phase::Finished { .. }))
    };
    let open: Vec<Str> = cursor.needs.iter().filter(|need| !finished(need)).cloned().collect();
    let mut explanation = told(
        Reason::NeedsNotMet(open.clone()),
        format!("step {} needs {}, not finished yet", step(cursor), open.join(" and ")),
        [format!("abide run show {}", run.id)],
    );
    explanation.note("cursor", index);
    explanation
}

impl Explanation {
    fn note(&mut self, name: &str, value: impl ToString) {
        self.evidence.push((name.to_string(), value.to_string()));
    }
}

fn told(reason: Reason, sentence: String, next_actions: impl IntoIterator<Item = String>) -> Explanation {
    Explanation { reason, sentence, evidence: Vec::new(), next_actions: next_actions.into_iter().collect() }
}

fn recover(run: &Run) -> String {
    format!("open the store with an engine: it brings {} in order", run.id)
}

fn step(cursor: &Cursor) -> &str {
    cursor.step.as_deref().unwrap_or("(the first)")
}

fn list<T: ToString>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// A length of time for a person: the two largest units.
fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
    let largest = UNITS.iter().position(|(unit, _)| ms >= *unit).unwrap_or(4);
    let (unit, name) = UNITS[largest];
    let mut text = format!("{} {name}", ms / unit);
    if let Some((next, name)) = UNITS.get(largest + 1).filter(|(next, _)| *next >= 1_000 && ms % unit >= *next) {
        text.push_str(&format!(" {} {name}", ms % unit / next));
    }
    text
}
