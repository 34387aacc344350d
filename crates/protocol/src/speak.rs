//! What a worker in Rust has to say, in the words of the network: the kernel's outcomes, entries and starts, and so every
//! command that speaks for a claim.

use std::sync::Arc;

use abide_kernel as kernel;
use abide_kernel::shard::Command;
use abide_kernel::transition::record;
use abide_kernel::{ClaimId, Effect, OnTimeout, OpKind, OpState, StartSpec, Status, StatusSet, Timestamp};

use crate::{
    Backoff, Concurrency, Entered, Entry, Error, Join, LedgerEntry, Moment, OnConflict, Otherwise, Outcome, Report,
    Retry, Say, Start, Wanted,
};

impl Report {
    /// What a command says of an attempt; `None` when it says nothing of one. Deadlines count from `now`.
    #[must_use]
    pub fn of(command: Command, now: Timestamp) -> Option<Self> {
        let claim = |run, number| ClaimId { run, number };
        let entries = |entries: Vec<record::Entry>| entries.into_iter().map(|entry| Entry::of(entry, now)).collect();
        let (claim, say) = match command {
            Command::Heartbeat { claim, .. } => (claim, Say::Heartbeat {}),
            Command::Progress { claim, progressing, .. } => {
                let say = Say::Progress { name: progressing.name.to_string(), value: progressing.value };
                (claim, say)
            }
            Command::GiveBack { claim, .. } => (claim, Say::GiveBack {}),
            Command::Record { run, recording } => {
                (claim(run, recording.claim), Say::Record { entries: entries(recording.entries) })
            }
            Command::Complete { run, completing } => {
                let outcome = Arc::unwrap_or_clone(completing.outcome);
                let say = Say::Complete {
                    outcome: Outcome::of(outcome, now),
                    entries: entries(completing.entries),
                    consume: completing.consume,
                    handled: completing.error.as_deref().map(Into::into),
                    compact_after: completing.compact_after,
                };
                (claim(run, completing.claim), say)
            }
            Command::Fail { run, failing } => {
                let say = Say::Fail {
                    error: (&*failing.error).into(),
                    retry: failing.retry.map(Into::into),
                    entries: entries(failing.entries),
                    reopen: failing.reopen,
                    set_aside: failing.set_aside,
                };
                (claim(run, failing.claim), say)
            }
            Command::StartChild { run, starting } => {
                let start = Box::new(Start::of(starting.spec, now));
                (claim(run, starting.claim), Say::StartChild { key: starting.key.to_string(), start })
            }
            _ => return None,
        };
        Some(Self { claim, say })
    }
}

impl From<kernel::RetryPolicy> for Retry {
    fn from(policy: kernel::RetryPolicy) -> Self {
        Self {
            backoff: match policy.backoff {
                kernel::Backoff::Constant => Backoff::Constant,
                kernel::Backoff::Linear => Backoff::Linear,
                kernel::Backoff::Exponential => Backoff::Exponential,
            },
            delay_ms: policy.delay_ms,
            delay_ms_max: Some(policy.delay_ms_max),
            jitter_percent: policy.jitter_percent,
            retries_max: policy.retries_max,
        }
    }
}

impl From<kernel::Moment> for Moment {
    fn from(moment: kernel::Moment) -> Self {
        match moment {
            kernel::Moment::In(ms) => Self::InMs(ms),
            kernel::Moment::At(at) => Self::At(at.into()),
        }
    }
}

impl From<kernel::Join> for Join {
    fn from(join: kernel::Join) -> Self {
        match join {
            kernel::Join::AllTerminal => Self::AllTerminal,
            kernel::Join::AllSucceeded => Self::AllSucceeded,
            kernel::Join::Any => Self::Any,
            kernel::Join::Quorum(count) => Self::Quorum(count),
        }
    }
}

/// The version of a start of which nobody said one: versions begin at 1.
pub const UNSAID: u32 = 0;

impl Start {
    /// A start as the kernel has it. Which namespace it is in, the path says. [`UNSAID`] leaves the version to the server,
    /// which takes the newest that it knows.
    #[must_use]
    pub fn of(spec: StartSpec, now: Timestamp) -> Self {
        let version = (spec.version != UNSAID).then_some(spec.version);
        let (key, on_conflict, occupied) = match spec.key {
            None => (None, OnConflict::Reject, Vec::new()),
            Some(unique) => {
                let occupies = |status: &Status| unique.occupied.contains(*status);
                let occupied = (unique.occupied != StatusSet::OPEN).then(|| Status::ALL.into_iter().filter(occupies));
                let on_conflict = match unique.on_conflict {
                    kernel::OnConflict::Reject => OnConflict::Reject,
                    kernel::OnConflict::Reuse => OnConflict::Reuse,
                };
                (Some(unique.key.to_string()), on_conflict, occupied.into_iter().flatten().collect())
            }
        };
        Self {
            version,
            key,
            on_conflict,
            occupied,
            queue: (&*spec.queue != crate::limits::QUEUE).then(|| spec.queue.to_string()),
            priority: spec.priority,
            concurrency: spec.concurrency.map(|known| Concurrency { key: known.key.to_string(), limit: known.limit }),
            eligible_at: spec.eligible_at.map(Into::into),
            deadline_ms: spec.deadline.map(|at| at.since(now)),
            labels: spec.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            deliveries_max: spec.deliveries_max,
            traceparent: spec.trace,
            ..Self::new(&spec.workflow, spec.input)
        }
    }
}

impl Outcome {
    /// As the kernel has it.
    #[must_use]
    pub fn of(outcome: kernel::Outcome, now: Timestamp) -> Self {
        use kernel::Outcome as From;
        let then = |step: Option<kernel::Str>| step.map(|step| step.to_string());
        match outcome {
            From::Next { step, state } => Self::Next { step: step.to_string(), state },
            From::Replay { state, delay_ms } => Self::Replay { state, delay_ms },
            From::Await { signals, then: step, deadline, state } => Self::Await {
                signals: signals.iter().map(ToString::to_string).collect(),
                then: then(step),
                deadline: deadline.map(Into::into),
                state,
            },
            From::Sleep { until, then: step, state } => Self::Sleep { until: until.into(), then: then(step), state },
            From::Spawn { children, then, join, deadline, state } => Self::Spawn {
                children: children.into_iter().map(|child| Start::of(child.spec, now)).collect(),
                then: then.to_string(),
                join: join.into(),
                deadline: deadline.map(Into::into),
                state,
            },
            From::Suspend { seen } => Self::Suspend { seen },
            From::Done { result } => Self::Done { result },
            From::Cancelled => Self::Cancelled {},
            From::Stop { error } => Self::Stop { error: Error::from(&error) },
            From::ContinueAsNew { input } => Self::ContinueAsNew { input },
        }
    }
}

impl Entry {
    /// As the kernel has it.
    #[must_use]
    pub fn of(entry: record::Entry, now: Timestamp) -> Self {
        use record::Entry as From;
        match entry {
            From::Intend { op, key, input, what } => {
                let input = (input != 0).then(|| format!("{input:016x}"));
                Self::Intend { op, key: key.to_string(), input, what: Wanted::of(what, now) }
            }
            From::End { op, outcome: Ok(value), at } => Self::Done { op, value, at: at.into() },
            From::End { op, outcome: Err(error), at } => Self::Failed { op, error: (&*error).into(), at: at.into() },
            From::Again { op, error, delay_ms } => Self::Again { op, error: (&*error).into(), delay_ms },
            From::See { op } => Self::See { op },
            From::Withdraw { op } => Self::Withdraw { op },
            From::WaitAgain { op } => Self::WaitAgain { op },
            From::Answer { op, reply, unread } => {
                let (value, rejected) = match reply {
                    kernel::Reply::Value(value) => (Some(value), None),
                    kernel::Reply::Rejected(error) => (None, Some((&*error).into())),
                };
                Self::Answer { op, value, rejected, unread }
            }
            From::Publish { state } => Self::Publish { state },
        }
    }
}

impl Wanted {
    fn of(wanted: record::Wanted, now: Timestamp) -> Self {
        use record::Wanted as From;
        match wanted {
            From::Effect(policy) => Self::Effect { policy, review: None },
            From::Reviewed { policy, review } => Self::Effect { policy, review: Some(review) },
            From::Undo(policy) => Self::Undo { policy },
            From::Timer(until) => Self::Timer { until: until.into() },
            From::Signal { name, deadline } => {
                Self::Signal { name: name.to_string(), deadline: deadline.map(Into::into) }
            }
            From::Update { name, deadline } => {
                Self::Update { name: name.to_string(), deadline: deadline.map(Into::into) }
            }
            From::Child(spec) => Self::Child { start: Box::new(Start::of(*spec, now)) },
            From::Patch { at } => Self::Patch { at: at.into() },
            From::Manual(asking) => Self::Manual {
                kind: asking.kind,
                payload: asking.payload,
                roles: asking.roles.iter().map(ToString::to_string).collect(),
                assignee: asking.assignee.map(|assignee| assignee.to_string()),
                deadline: asking.deadline.map(Into::into),
                otherwise: match asking.on_timeout {
                    OnTimeout::Elapse => None,
                    OnTimeout::Decide { choice, payload } => Some(Otherwise { choice, payload }),
                },
            },
        }
    }
}

impl From<LedgerEntry> for kernel::Op {
    fn from(entry: LedgerEntry) -> Self {
        let instant = |at: Option<crate::Instant>| at.map(|at| at.0);
        let kind = match entry.what {
            Entered::Effect { policy, claim, failures, retry_at, undo } => {
                let untold = || kernel::ErrorInfo::retryable("untold", "how it failed is in the run's journal");
                let retries = (failures > 0).then(|| {
                    let until = instant(retry_at);
                    Arc::new(kernel::Retries { failures, error: Arc::new(untold()), until })
                });
                OpKind::Effect(Effect { policy, claim, approval: None, retries, undo })
            }
            Entered::Timer { until } => OpKind::Timer { until: until.0 },
            Entered::Signal { name, until } => OpKind::Signal { name: name.into(), until: instant(until), got: None },
            Entered::Update { name, until, answered } => {
                OpKind::Update { name: name.into(), until: instant(until), answered }
            }
            Entered::Child { run } => OpKind::Child { run },
            Entered::Patch {} => OpKind::Patch,
            Entered::Manual { kind, until } => OpKind::Manual { kind, until: instant(until) },
        };
        let state = entry.end.map_or(OpState::Open, |end| {
            let when = kernel::EndedAt { ended: end.ended, seen: end.seen, at: end.at.0 };
            match (end.error, end.elapsed) {
                (Some(error), _) => OpState::Failed { when, error: Arc::new(error.into()) },
                (None, Some(_)) => OpState::Elapsed { when },
                (None, None) => OpState::Done { when, value: end.value.unwrap_or_default() },
            }
        });
        let input = entry.input.and_then(|input| u64::from_str_radix(&input, 16).ok()).unwrap_or_default();
        Self { key: entry.key.into(), cursor: 0, visit: entry.visit, kind, input, at: entry.at.0, state }
    }
}
