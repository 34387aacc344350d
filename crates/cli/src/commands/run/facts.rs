//! Facts in words: one line for what one transition made true.

use abide_kernel::{
    After, ChildAnswer, Cursor, Fact, Intended, Meta, OpEnd, OpKind, Outcome, Progressed, Reply, Resolution, Resolved,
    Resulted, Row, Run, Scheduled, Started, Str, Timestamp, Wait, WaitKind, WakeReason,
};

use super::history::brief;
use crate::text::span;

/// What a row says, given the run before it.
pub(crate) fn words(before: Option<&Run>, row: &Row) -> String {
    let meta = Meta { seq: row.seq, at: row.at };
    let mut run = before.cloned();
    let mut parts: Vec<String> = Vec::new();
    for (index, fact) in row.facts.iter().enumerate() {
        let said = if is_said_elsewhere(&row.facts, index) { String::new() } else { say(run.as_ref(), fact, row.at) };
        if !said.is_empty() {
            parts.push(said);
        }
        match &mut run {
            Some(run) => run.apply(fact, meta),
            None => run = Run::begin(row).ok(),
        }
    }
    if parts.is_empty() {
        let kinds: Vec<&str> = row.facts.iter().map(Fact::kind).collect();
        return if kinds.is_empty() { "emptied".into() } else { kinds.join(", ") };
    }
    parts.join("; ")
}

/// An attempt that is claimed in the same row was due, and a failure says when it is tried again.
fn is_said_elsewhere(facts: &[Fact], index: usize) -> bool {
    matches!(facts[index], Fact::Scheduled(_))
        && facts.iter().enumerate().any(|(other, fact)| match fact {
            Fact::Claimed(_) => other > index,
            Fact::Failed(_) => other < index,
            _ => false,
        })
}

fn say(run: Option<&Run>, fact: &Fact, at: Timestamp) -> String {
    match fact {
        Fact::Started(started) => say_started(started),
        Fact::Intended(intended) => say_intended(intended, at),
        Fact::Resulted(resulted) => say_resulted(run, resulted),
        Fact::Retrying(retrying) => {
            let key = run.and_then(|run| run.op(retrying.op)).map_or("an effect", |op| &*op.key);
            format!("{key} failed: {}; tried again in {}", retrying.error, span(retrying.until.since(at)))
        }
        Fact::Seen(seen) => {
            format!("{} was seen", run.and_then(|run| run.op(seen.op)).map_or("an entry", |op| &*op.key))
        }
        Fact::Resolved(resolved) => say_resolved(run, resolved),
        Fact::Cancelling(cancelling) => {
            format!("is to be cancelled, and undoes what it did first: {}", cancelling.reason)
        }
        Fact::Pinned(pinned) => {
            format!("pinned to definition {}, which begins with {}", pinned.fingerprint, pinned.step)
        }
        Fact::Scheduled(scheduled) => say_scheduled(run, scheduled, at),
        Fact::Notified(_) => "the notifier was told".into(),
        Fact::Claimed(claimed) => {
            let again = cursor(run, claimed.cursor).and_then(|cursor| cursor.claimant.as_ref());
            let by = claimed.by.as_ref().or(again).map_or("somebody", |by| &*by.owner);
            format!("{} is claimed by {by} (claim {})", step(run, claimed.cursor), claimed.claim)
        }
        Fact::Heartbeat(beat) => {
            format!("lease of claim {} lasts {} more", beat.claim, span(beat.lease_until.since(at)))
        }
        Fact::Progressed(said) => say_progressed(run, said),
        Fact::Expired(lost) => format!("claim {} was lost with its worker", lost.claim),
        Fact::Returned(back) => format!("claim {} was given back unused", back.claim),
        Fact::Completed(completed) => {
            let handled = completed.error.as_ref().map(|error| format!(" after {error}")).unwrap_or_default();
            format!("{} returned {}{handled}", step(run, completed.cursor), say_outcome(&completed.outcome))
        }
        Fact::Failed(failed) => {
            let again = match failed.retry_at {
                Some(retry_at) => format!("tried again in {}", span(retry_at.since(at))),
                None => "not tried again".into(),
            };
            format!("{} failed: {}; {again}", step(run, failed.cursor), failed.error)
        }
        Fact::Applied(applied) => match &applied.then {
            After::Wait(wait) => say_wait(wait, at),
            After::Arrived => "the signal had arrived already".into(),
            After::Step | After::Replay | After::Continue | After::Finished => String::new(),
        },
        Fact::SignalReceived(signal) => format!("signal {} arrived: {}", signal.name, brief(&signal.payload)),
        Fact::Woken(woken) => format!("woken by {}", say_reason(woken.by)),
        Fact::ChildStarted(_) | Fact::ChildAnswered(_) | Fact::ChildEnded(_) => say_child(fact),
        Fact::ParentPurged => "the parent's record is gone".into(),
        Fact::Begun => "the run that it holds the key for has begun".into(),
        Fact::Ended(ended) => {
            let why = ended.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("ended as {}{why}", ended.status)
        }
        Fact::DeadLettered(dead) => format!("set aside as a dead letter: {}", dead.reason),
        Fact::Requeued(_) => "the dead letter was put back".into(),
        Fact::Asked(_) | Fact::Assigned(_) | Fact::Decided(_) => say_manual(run, fact, at),
        Fact::Published(published) => format!("the state is {}", brief(&published.state)),
        Fact::Requested(_) | Fact::Answered(_) => say_update(run, fact),
        Fact::Anomaly(anomaly) => format!("anomaly {}: {}", anomaly.kind, anomaly.detail),
        Fact::Purged => "its record was removed".into(),
        Fact::Compacted(whole) => match run {
            None => format!("the journal begins here: compacted at {} with {}", whole.status(), brief(&whole.state)),
            Some(_) => "compacted".into(),
        },
    }
}

/// What a run learns of its children.
fn say_child(fact: &Fact) -> String {
    match fact {
        Fact::ChildStarted(child) => {
            format!("asked for child {} of {} v{}", child.child, child.workflow, child.version)
        }
        Fact::ChildAnswered(answered) => match &answered.answer {
            ChildAnswer::Existing(other) => {
                format!("child {} was not started: {other} has its key", answered.child)
            }
            ChildAnswer::Rejected(reason) => format!("child {} was not started: {reason}", answered.child),
        },
        Fact::ChildEnded(ended) => format!("child {} ended as {}", ended.child, ended.status),
        other => other.kind().into(),
    }
}

/// What a run asks of people, and what they do about it.
fn say_manual(run: Option<&Run>, fact: &Fact, at: Timestamp) -> String {
    let known = |op: u32| run.and_then(|run| run.manual(op));
    let key = |op: u32| known(op).map_or("a boundary", |manual| &*manual.asked.key).to_owned();
    let noted = |note: &Option<Str>| note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    match fact {
        Fact::Asked(asked) => {
            let until = asked.until.map(|until| format!(", at most {}", span(until.since(at)))).unwrap_or_default();
            format!("{} waits for {} {}{until}: {}", asked.step, asked.kind, asked.key, brief(&asked.payload))
        }
        Fact::Assigned(assigned) => {
            let (key, actor, note) = (key(assigned.op), &assigned.actor, noted(&assigned.note));
            match &assigned.to {
                None => format!("{key} was given back by {actor}{note}"),
                Some(to) if to == actor => format!("{key} was taken by {actor}{note}"),
                Some(to) => format!("{key} was given to {to} by {actor}{note}"),
            }
        }
        Fact::Decided(decided) => {
            let actor = decided.actor.as_deref().unwrap_or("its deadline");
            let (key, note) = (key(decided.op), noted(&decided.note));
            format!("{key}: {} by {actor}{note} {}", decided.choice, brief(&decided.payload))
        }
        other => other.kind().into(),
    }
}

/// What a run is asked to do, and what it answers.
fn say_update(run: Option<&Run>, fact: &Fact) -> String {
    match fact {
        Fact::Requested(asked) => format!("update {} is asked for: {}", asked.name, brief(&asked.input)),
        Fact::Answered(answered) => {
            let known = run.and_then(|run| run.update(answered.update));
            let name = known.map_or("", |update| &*update.name);
            match &answered.reply {
                Reply::Value(value) => format!("update {name} is answered: {}", brief(value)),
                Reply::Rejected(error) => format!("update {name} is rejected: {error}"),
            }
        }
        other => other.kind().into(),
    }
}

fn say_intended(intended: &Intended, at: Timestamp) -> String {
    let key = &intended.key;
    match &intended.kind {
        OpKind::Effect(effect) => {
            let by = effect.approval.as_ref().map(|approval| format!(", approved by {}", approval.actor));
            format!("effect {key} begins ({}{})", effect.policy, by.unwrap_or_default())
        }
        OpKind::Timer { until } => format!("{key} waits {}", span(until.since(at))),
        OpKind::Signal { name, until: None, .. } => format!("{key} waits for signal {name}"),
        OpKind::Signal { name, until: Some(until), .. } => {
            format!("{key} waits for signal {name}, at most {}", span(until.since(at)))
        }
        OpKind::Update { name, until: None, .. } => format!("{key} waits for update {name}"),
        OpKind::Update { name, until: Some(until), .. } => {
            format!("{key} waits for update {name}, at most {}", span(until.since(at)))
        }
        OpKind::Child { run } => format!("{key} waits for child {run}"),
        OpKind::Patch => format!("goes the new way at {key}"),
        // The fact before has said what is asked.
        OpKind::Manual { .. } => String::new(),
    }
}

fn say_resolved(run: Option<&Run>, resolved: &Resolved) -> String {
    let key = run.and_then(|run| run.op(resolved.op)).map_or("an effect", |op| &*op.key);
    let how = match &resolved.how {
        Resolution::Value(value) => format!("took place and returned {}", brief(value)),
        Resolution::Failed(error) => format!("failed: {error}"),
        Resolution::Retry => "may be tried once more".into(),
        Resolution::Compensated => "was undone by hand".into(),
    };
    let note = resolved.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
    format!("{} says that {key} {how}{note}", resolved.actor)
}

fn say_resulted(run: Option<&Run>, resulted: &Resulted) -> String {
    let key = run.and_then(|run| run.op(resulted.op)).map_or("an entry", |op| &*op.key);
    let marks = run.and_then(|run| run.op(resulted.op)).is_some_and(|op| op.kind == OpKind::Patch);
    match &resulted.end {
        OpEnd::Value(_) if marks => String::new(),
        OpEnd::Value(value) => format!("{key} returned {}", brief(value)),
        OpEnd::Error(error) => format!("{key} failed: {error}"),
        OpEnd::Signal(id) => format!("{key} got signal {id}"),
        OpEnd::Update(id) => format!("{key} got update {id}"),
        OpEnd::Elapsed => format!("{key}: the time has come"),
        OpEnd::Child => format!("{key}: the child has ended"),
        OpEnd::Decision => String::new(),
        OpEnd::Withdrawn => format!("{key} is waited for no more"),
        OpEnd::Reopened => format!("{key} is tried again"),
    }
}

fn say_started(started: &Started) -> String {
    let spec = &started.spec;
    if let Some(run) = started.reserves {
        return format!("holds a key for {run}");
    }
    let mut said = format!("started {} v{}", spec.workflow, spec.version);
    if let Some(key) = &spec.key {
        said.push_str(&format!(" as {}", key.key));
    }
    if let Some(parent) = &started.parent {
        said.push_str(&format!(" by {} at {}", parent.run, parent.step));
    }
    said.push_str(&format!(" with {}", brief(&spec.input)));
    said
}

fn say_progressed(run: Option<&Run>, said: &Progressed) -> String {
    let last = said.events.last().map(|event| format!("{} {}", event.name, brief(&event.value)));
    format!("{} said {}", step(run, said.cursor), last.unwrap_or_default())
}

/// Only what is not plain from the rest: an attempt that may be claimed at once is claimed or waits in line.
fn say_scheduled(run: Option<&Run>, scheduled: &Scheduled, at: Timestamp) -> String {
    let name = scheduled.step.as_deref().map(str::to_owned).unwrap_or_else(|| step(run, scheduled.cursor));
    match scheduled.visible_at {
        Some(visible_at) if visible_at > at => format!("{name} is due in {}", span(visible_at.since(at))),
        _ => format!("{name} is due"),
    }
}

fn say_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Next { step, .. } => format!("next {step}"),
        Outcome::Replay { delay_ms, .. } => format!("replay in {}", span(*delay_ms)),
        Outcome::Await { .. } => "await".into(),
        Outcome::Sleep { .. } => "sleep".into(),
        Outcome::Spawn { children, then, .. } => format!("spawn {} children, then {then}", children.len()),
        Outcome::Suspend { .. } => "suspend".into(),
        Outcome::Done { result } => format!("done {}", brief(result)),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Stop { error } => format!("stop: {error}"),
        Outcome::ContinueAsNew { .. } => "continue_as_new".into(),
    }
}

fn say_wait(wait: &Wait, at: Timestamp) -> String {
    let until = wait.until.map(|until| span(until.since(at)));
    match (&wait.kind, until) {
        (WaitKind::Signal { names, .. }, None) => format!("waits for signal {}", names.join(" or ")),
        (WaitKind::Signal { names, .. }, Some(until)) => {
            format!("waits for signal {}, at most {until}", names.join(" or "))
        }
        (WaitKind::Timer, until) => format!("sleeps {}", until.unwrap_or_default()),
        (WaitKind::Children(barrier), _) => format!("waits for {} children", barrier.pending),
        (WaitKind::Ledger, _) => "waits".into(),
    }
}

fn say_reason(reason: WakeReason) -> &'static str {
    match reason {
        WakeReason::Signal => "a signal",
        WakeReason::Timer => "its timer",
        WakeReason::Children => "its children",
        WakeReason::Deadline => "the wait's deadline",
        WakeReason::Ledger => "what it waited for",
    }
}

fn cursor(run: Option<&Run>, index: u16) -> Option<&Cursor> {
    run.and_then(|run| run.cursors.get(usize::from(index)))
}

fn step(run: Option<&Run>, index: u16) -> String {
    let name = cursor(run, index).and_then(|cursor| cursor.step.as_deref());
    name.unwrap_or("the first step").to_owned()
}
