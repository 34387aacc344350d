//! Queues: how much waits in them; they are paused, resumed and limited.

use abide_kernel::limits::NAME_BYTES_MAX;
use abide_kernel::{Str, Timestamp};
use abide_protocol::{Instant, Problem, Queue, QueueHeld, QueueLimits, QueueRate, Queues, Scope};
use abide_runtime::{QueueRule, SeenQueue};

use crate::answer::{Answered, Refused, json};
use crate::call::{Call, check_name};

pub(crate) async fn list(call: Call) -> Answered {
    let namespace = call.namespace();
    let seen = call.blocking(move |engine| engine.queues(&namespace)).await??;
    let now = call.engine.now();
    json(&Queues { queues: seen.iter().map(|seen| shown_queue(seen, now)).collect() })
}

/// A queue as it is shown.
#[must_use]
pub fn shown_queue(seen: &SeenQueue, now: Timestamp) -> Queue {
    Queue {
        held: shown_rule(&seen.rule),
        depth: seen.depth.waiting,
        oldest_at: seen.depth.oldest.map(Instant),
        oldest_age_ms: seen.depth.oldest.map(|at| now.since(at)),
        running: seen.depth.running,
    }
}

pub(crate) async fn pause(call: Call) -> Answered {
    change(&call, |rule| rule.paused = true).await
}

pub(crate) async fn resume(call: Call) -> Answered {
    change(&call, |rule| rule.paused = false).await
}

pub(crate) async fn limit(call: Call) -> Answered {
    let QueueLimits { at_most, rate } = call.body()?;
    if at_most == Some(0) {
        let problem = Problem::new("invalid", "at_most: nothing could begin; pause the queue instead");
        return Err(problem.but("a number from 1 on, or none", "0").into());
    }
    let rate = rate.map(|rate| (rate.count, rate.per_ms));
    change(&call, move |rule| (rule.at_most, rule.rate) = (at_most, rate)).await
}

async fn change(call: &Call, change: impl FnOnce(&mut QueueRule) + Send + 'static) -> Answered {
    let (namespace, queue) = (call.namespace(), named(call)?);
    let rule = call.blocking(move |engine| engine.change_queue(&namespace, &queue, change)).await??;
    json(&shown_rule(&rule))
}

fn named(call: &Call) -> Result<Str, Refused> {
    let queue = call.word("queue");
    if queue.chars().any(char::is_control) {
        check_name("queue", queue)?;
    }
    if queue.len() > NAME_BYTES_MAX || queue == Scope::ANY {
        let found: String = queue.chars().take(80).collect();
        let expected = format!("a name of 1 to {NAME_BYTES_MAX} bytes other than *");
        return Err(Problem::new("bad_id", format!("queue: expected {expected}, found {found:?}"))
            .but(expected, found)
            .into());
    }
    Ok(queue.into())
}

/// What holds for a queue, as it is shown.
#[must_use]
pub fn shown_rule(rule: &QueueRule) -> QueueHeld {
    let rate = rule.rate.map(|(count, per_ms)| QueueRate { count, per_ms });
    QueueHeld {
        queue: rule.queue.to_string(),
        paused: rule.paused,
        limits: QueueLimits { at_most: rule.at_most, rate },
    }
}
