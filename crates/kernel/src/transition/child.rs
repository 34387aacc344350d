//! Children: started by an outcome and joined, or started inside a step under a key and awaited on demand.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, record, start, wake};
use serde::{Deserialize, Serialize};

use crate::envelope::Message;
use crate::limits::CHILDREN_MAX;
use crate::outcome::{ChildSpec, validate_child_key};
use crate::payload::present;
use crate::{
    Barrier, Child, ChildAnswer, ChildAnswered, ChildEnd, ChildEnded, ChildStarted, Cursor, EndedAt, ErrorInfo, Fact,
    Join, OpEnd, OpId, OpState, Outcome, Parent, Payload, Phase, Refusal, RequestId, Row, Run, RunId, StartSpec,
    Started, Status, Str, Timestamp, TokenHash, TraceContext, WaitKind, WakeReason, stable_hash,
};

/// What a worker says when its step starts a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartingChild {
    /// The claim's number.
    pub claim: u32,
    /// The hash of the claim's token.
    pub token: TokenHash,
    /// The child's key: its identity within the parent's step.
    pub key: Str,
    /// What to start.
    pub spec: StartSpec,
    /// Anything the caller wants to keep with the link.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub metadata: Option<Payload>,
}

/// Starts a child inside a step. The same key gives the same child, also after a crash between the two.
///
/// # Errors
/// When the fence is not the current one, the key is missing, or belongs to a child with other work.
pub fn decide_start(run: &Run, starting: &StartingChild, now: Timestamp) -> Result<(RunId, Transition), Refusal> {
    let index = super::fenced(run, starting.claim, starting.token, now)?;
    validate_child_key(&starting.key)?;
    starting.spec.validate()?;
    let cursor = &run.cursors[usize::from(index)];
    let input_hash = starting.spec.input.canonical_hash();
    let step = step_name(cursor);
    let known = run.children.iter().find(|child| child.key.as_ref() == Some(&starting.key) && child.step == step);
    if let Some(child) = known {
        if child.workflow != starting.spec.workflow || child.input_hash != input_hash {
            return Err(Refusal::ChildConflict { key: starting.key.clone(), child: child.id });
        }
        let mut transition = Transition::default();
        if child.end.is_none() {
            // A crash may have come between the link and the child: asking again begins it under the same id,
            // and changes nothing if it has begun.
            let parent = parent_of(run, cursor, Some(starting.key.clone()));
            let started = start::started(of_parent(run, &starting.spec), request_of(child.id), Some(parent));
            transition.messages.push(begin_message(child.id, started));
        }
        return Ok((child.id, transition));
    }
    if run.children.len() >= CHILDREN_MAX {
        return Err(Refusal::Busy { what: "the run's list of children".into(), limit: CHILDREN_MAX as u64 });
    }
    let label = format!("start\u{0}{}\u{0}{}\u{0}{}", step, starting.spec.workflow, starting.key);
    let (child, started) = identify(run, cursor, &starting.spec, &label, Some(starting.key.clone()), now);
    let mut transition = Transition::of([Fact::ChildStarted(Box::new(ChildStarted {
        child,
        key: Some(starting.key.clone()),
        workflow: starting.spec.workflow.clone(),
        version: starting.spec.version,
        input_hash,
        step,
        turn: cursor.turn,
        barrier: None,
        op: None,
        admission: admission(child, &started),
        metadata: starting.metadata.clone(),
    }))]);
    transition.messages.push(begin_message(child, started));
    Ok((child, transition))
}

/// Starts a child for an entry of the ledger, whose key is the child's identity within the step's visit.
pub(super) fn begin_op(
    run: &Run,
    index: u16,
    op: OpId,
    key: &Str,
    spec: &StartSpec,
    now: Timestamp,
    transition: &mut Transition,
) -> Result<RunId, Refusal> {
    if run.children.len() >= CHILDREN_MAX {
        return Err(Refusal::Busy { what: "the run's list of children".into(), limit: CHILDREN_MAX as u64 });
    }
    let cursor = &run.cursors[usize::from(index)];
    let label = format!("ledger\u{0}{index}\u{0}{}\u{0}{key}", cursor.visit);
    let (child, started) = identify(run, cursor, spec, &label, None, now);
    transition.facts.push(Fact::ChildStarted(Box::new(ChildStarted {
        child,
        key: None,
        workflow: spec.workflow.clone(),
        version: spec.version,
        input_hash: spec.input.canonical_hash(),
        step: step_name(cursor),
        turn: cursor.turn,
        barrier: None,
        op: Some(op),
        admission: admission(child, &started),
        metadata: None,
    })));
    transition.messages.push(begin_message(child, started));
    Ok(child)
}

/// How the child of an entry of the ledger ended, as the entry keeps it.
pub(super) fn op_state(run: &Run, op: OpId, when: EndedAt) -> OpState {
    let end = run.children.iter().find(|child| child.op == Some(op)).and_then(|child| child.end.as_ref());
    let failed =
        |code: &str, message: &str| OpState::Failed { when, error: Arc::new(ErrorInfo::terminal(code, message)) };
    match end {
        Some(ChildEnd::Ended { status: Status::Done, result, .. }) => {
            OpState::Done { when, value: result.clone().unwrap_or_default() }
        }
        Some(ChildEnd::Ended { error: Some(error), .. }) => OpState::Failed { when, error: error.clone() },
        Some(ChildEnd::Ended { status, .. }) => failed("child_ended", &format!("the child ended as {status}")),
        Some(ChildEnd::Answered(ChildAnswer::Existing(by))) => {
            failed("child_exists", &format!("the child's key is taken by {by}"))
        }
        Some(ChildEnd::Answered(ChildAnswer::Rejected(reason))) => failed("child_rejected", reason),
        None => failed("child_unknown", "the child is not known to its parent"),
    }
}

/// The facts and messages of a spawn. `None` when there is nothing to wait for.
pub(super) fn spawn(
    run: &Run,
    index: u16,
    cursor: &Cursor,
    children: &[ChildSpec],
    join: Join,
    now: Timestamp,
    transition: &mut Transition,
) -> Result<Option<WaitKind>, Refusal> {
    let room = CHILDREN_MAX.saturating_sub(run.children.len());
    if children.len() > room {
        return Err(Refusal::TooLarge { what: "children".into(), limit: room as u64, found: children.len() as u64 });
    }
    if children.is_empty() {
        return Ok(None);
    }
    let barrier = run.tokens + 1;
    for (number, child) in children.iter().enumerate() {
        let label = format!("spawn\u{0}{index}\u{0}{}\u{0}{number}", cursor.turn);
        let (id, started) = identify(run, cursor, &child.spec, &label, None, now);
        transition.facts.push(Fact::ChildStarted(Box::new(ChildStarted {
            child: id,
            key: None,
            workflow: child.spec.workflow.clone(),
            version: child.spec.version,
            input_hash: child.spec.input.canonical_hash(),
            step: step_name(cursor),
            turn: cursor.turn,
            barrier: Some(barrier),
            op: None,
            admission: admission(id, &started),
            metadata: None,
        })));
        transition.messages.push(begin_message(id, started));
    }
    Ok(Some(WaitKind::Children(Barrier { join, pending: children.len() as u32, succeeded: 0, failed: 0 })))
}

/// A child's identity: derived from the parent, its epoch and step, and the child's own key. It lives where its
/// keys say, and without keys beside its parent.
fn identify(
    run: &Run,
    cursor: &Cursor,
    spec: &StartSpec,
    label: &str,
    key: Option<Str>,
    now: Timestamp,
) -> (RunId, Started) {
    let text = format!("{}\u{0}{}\u{0}{label}", run.id, run.epoch);
    let entropy = u128::from(stable_hash(text.as_bytes()));
    let request = RequestId::new(now, entropy);
    let spec = of_parent(run, spec);
    let homeless = spec.concurrency.is_none() && spec.key.is_none();
    let slot = if homeless { run.id.slot() } else { spec.home_slot(request) };
    let started = start::started(spec, request, Some(parent_of(run, cursor, key)));
    (RunId::new(now, slot, entropy), started)
}

/// What to start, for the tenant of the parent, as no run begins anything for another, and in its trace.
fn of_parent(run: &Run, spec: &StartSpec) -> StartSpec {
    let trace = Some(TraceContext::of_run(run.id, &run.started));
    StartSpec { namespace: run.started.spec.namespace.clone(), trace, ..spec.clone() }
}

/// The slot that admits the child by its key, when that is not the child's own.
fn admission(child: RunId, started: &Started) -> Option<u16> {
    let slot = started.spec.admission_slot(started.request);
    (started.spec.key.is_some() && slot != child.slot()).then_some(slot.0)
}

fn parent_of(run: &Run, cursor: &Cursor, key: Option<Str>) -> Parent {
    let attempt = cursor.retries + cursor.reclaims;
    Parent { run: run.id, epoch: run.epoch, step: step_name(cursor), attempt, key }
}

/// The request under which a child was started, read back from its id.
fn request_of(child: RunId) -> RequestId {
    RequestId::new(child.made_at(), u128::from(child.0 as u64))
}

fn begin_message(child: RunId, started: Started) -> Message {
    let started = Box::new(started);
    if started.spec.key.is_some() {
        let slot = started.spec.admission_slot(started.request).0;
        Message::AdmitChild { child, started, slot }
    } else {
        Message::Begin { run: child, started }
    }
}

fn step_name(cursor: &Cursor) -> Str {
    cursor.step.clone().unwrap_or_else(|| "".into())
}

/// Word from a child that it was not inserted. An empty transition means: that was known.
#[must_use]
pub fn decide_answered(run: &Run, answered: ChildAnswered) -> Transition {
    let Some(child) = run.children.iter().find(|child| child.id == answered.child && child.end.is_none()) else {
        return Transition::default();
    };
    let (barrier, op) = (child.barrier, child.op);
    let mut transition = Transition::of([Fact::ChildAnswered(Box::new(answered))]);
    release(run, barrier, None, &mut transition);
    release_op(run, op, &mut transition);
    transition
}

/// Word from a child that it ended. An empty transition means: that was known.
#[must_use]
pub fn decide_ended(run: &Run, ended: ChildEnded) -> Transition {
    let Some(child) = run.children.iter().find(|child| child.id == ended.child && child.end.is_none()) else {
        return Transition::default();
    };
    let (barrier, op, status) = (child.barrier, child.op, ended.status);
    let mut transition = Transition::of([Fact::ChildEnded(Box::new(ended))]);
    release(run, barrier, Some(status), &mut transition);
    release_op(run, op, &mut transition);
    transition
}

/// Ends the entry of the ledger that waits for the child.
fn release_op(run: &Run, op: Option<OpId>, transition: &mut Transition) {
    if let Some(op) = op.filter(|_| run.end.is_none()) {
        record::end(run, op, OpEnd::Child, transition);
    }
}

/// Wakes the cursor whose barrier the child's end satisfies.
fn release(run: &Run, barrier: Option<u64>, status: Option<Status>, transition: &mut Transition) {
    if run.end.is_some() {
        return;
    }
    for (index, cursor) in run.cursors.iter().enumerate() {
        if let Phase::Waiting(wait) = &cursor.phase
            && Some(wait.token) == barrier
            && let WaitKind::Children(mut counted) = wait.kind
        {
            count_down(&mut counted, status);
            if counted.satisfied() {
                wake::push(index as u16, cursor, wait, WakeReason::Children, transition);
            }
        }
    }
}

fn count_down(barrier: &mut Barrier, status: Option<Status>) {
    barrier.pending = barrier.pending.saturating_sub(1);
    match status {
        Some(Status::Done) => barrier.succeeded += 1,
        Some(_) => barrier.failed += 1,
        None => {}
    }
}

/// Messages that begin again every child that `rows` say was spawned and that is open, for a torn state.
/// A child that has begun ignores it.
#[must_use]
pub fn begin_again(run: &Run, rows: &[Row]) -> Vec<Message> {
    let mut messages = Vec::new();
    for row in rows {
        let spawned = row.facts.iter().find_map(|fact| match fact {
            Fact::Completed(completed) => match &*completed.outcome {
                Outcome::Spawn { children, .. } => Some(children),
                _ => None,
            },
            _ => None,
        });
        let asked = row.facts.iter().filter_map(|fact| match fact {
            Fact::ChildStarted(child) => Some(child),
            _ => None,
        });
        for (child, link) in spawned.into_iter().flatten().zip(asked) {
            if run.children.iter().any(|known| known.id == link.child && known.end.is_none()) {
                let parent = Parent { run: run.id, epoch: run.epoch, step: link.step.clone(), attempt: 0, key: None };
                let started = start::started(of_parent(run, &child.spec), request_of(link.child), Some(parent));
                messages.push(begin_message(link.child, started));
            }
        }
    }
    messages
}

pub(super) fn apply_started(run: &mut Run, started: &ChildStarted) {
    run.children.push(Child {
        id: started.child,
        key: started.key.clone(),
        workflow: started.workflow.clone(),
        input_hash: started.input_hash,
        step: started.step.clone(),
        barrier: started.barrier,
        op: started.op,
        admission: started.admission,
        end: None,
    });
}

pub(super) fn apply_answered(run: &mut Run, answered: &ChildAnswered) {
    close(run, answered.child, ChildEnd::Answered(answered.answer.clone()), None);
}

pub(super) fn apply_ended(run: &mut Run, ended: &ChildEnded) {
    let end = ChildEnd::Ended {
        status: ended.status,
        state: ended.state.clone(),
        result: ended.result.clone(),
        error: ended.error.clone(),
    };
    close(run, ended.child, end, Some(ended.status));
}

fn close(run: &mut Run, id: RunId, end: ChildEnd, status: Option<Status>) {
    let Some(child) = run.children.iter_mut().find(|child| child.id == id) else {
        return;
    };
    child.end = Some(end);
    let barrier = child.barrier;
    for cursor in &mut run.cursors {
        if let Phase::Waiting(wait) = &mut cursor.phase
            && Some(wait.token) == barrier
            && let WaitKind::Children(counted) = &mut Arc::make_mut(wait).kind
        {
            count_down(counted, status);
        }
    }
}
