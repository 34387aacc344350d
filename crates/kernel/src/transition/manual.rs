//! Manual: a step asks for a person; a person takes, gives back or decides what was asked; a deadline may decide too.
//!
//! A decision names the boundary it is for. One that comes twice, too late or for another boundary changes nothing.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, record};
use serde::{Deserialize, Serialize};

use crate::limits::{MANUAL_EVENTS_MAX, MANUALS_MAX, NOTE_BYTES_MAX, ROLES_MAX};
use crate::spec::{check_count, check_name, check_payload};
use crate::{
    Approval, Asked, Assigned, Choice, Decided, EndedAt, Fact, Interrupt, Manual, ManualEnd, ManualEvent,
    ManualEventKind, ManualKind, Meta, Moment, OnTimeout, Op, OpEnd, OpId, OpKind, OpState, Payload, Refusal,
    RequestId, Resulted, Run, Str, Timestamp, review_key,
};

/// What a step asks of a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asking {
    /// What kind of boundary.
    pub kind: ManualKind,
    /// What the person is shown, or the form of the work.
    pub payload: Payload,
    /// Who decides acts in one of these roles; empty means anybody.
    pub roles: Vec<Str>,
    /// Whose it is from the beginning.
    pub assignee: Option<Str>,
    /// Until when.
    pub deadline: Option<Moment>,
    /// What follows then.
    pub on_timeout: OnTimeout,
}

impl Asking {
    /// A boundary of this kind, for anybody, without a deadline.
    #[must_use]
    pub fn new(kind: ManualKind) -> Self {
        Self {
            kind,
            payload: Payload::null(),
            roles: Vec::new(),
            assignee: None,
            deadline: None,
            on_timeout: OnTimeout::Elapse,
        }
    }

    /// Checks names and sizes before anything is written.
    ///
    /// # Errors
    /// The first thing that is not acceptable.
    pub fn validate(&self) -> Result<(), Refusal> {
        check_payload("payload of the boundary", &self.payload)?;
        check_roles(&self.roles)?;
        self.assignee.iter().try_for_each(|assignee| check_name("assignee", assignee))?;
        if let OnTimeout::Decide { choice, payload } = &self.on_timeout {
            check_choice(self.kind, *choice)?;
            check_payload("payload of the default decision", payload)?;
        }
        Ok(())
    }
}

/// What a person says who decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deciding {
    /// The boundary's entry in the ledger.
    pub op: OpId,
    /// What they choose.
    pub choice: Choice,
    /// Who they are.
    pub actor: Str,
    /// The roles in which they act.
    pub roles: Vec<Str>,
    /// Why, in their words.
    pub note: Option<Str>,
    /// What they hand in.
    pub payload: Payload,
    /// The request.
    pub request: RequestId,
}

/// What a person says who gives a boundary to somebody, or gives it back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assigning {
    /// The boundary's entry in the ledger.
    pub op: OpId,
    /// Whose it becomes; `None` gives it back.
    pub to: Option<Str>,
    /// Who they are.
    pub actor: Str,
    /// The roles in which they act.
    pub roles: Vec<Str>,
    /// Why, in their words.
    pub note: Option<Str>,
    /// Whether it may be taken from whoever has it.
    pub take_over: bool,
    /// The request.
    pub request: RequestId,
}

/// Decides a boundary: its entry of the ledger ends, and the step that waits for it wakes. An empty transition means:
/// this request had decided it before.
///
/// # Errors
/// When the boundary is not open, its time is over, it is somebody else's, or the decision does not fit it.
pub fn decide(run: &Run, deciding: &Deciding, now: Timestamp) -> Result<Transition, Refusal> {
    check_person(&deciding.actor, &deciding.roles, deciding.note.as_deref())?;
    check_payload("payload of the decision", &deciding.payload)?;
    let before = run.manual(deciding.op).and_then(Manual::decided);
    if before.is_some_and(|decided| decided.request == Some(deciding.request)) {
        return Ok(Transition::default());
    }
    let manual = current(run, deciding.op, now)?;
    check_choice(manual.asked.kind, deciding.choice)?;
    check_role(manual, &deciding.roles)?;
    if let Some(assignee) = manual.assignee.as_ref().filter(|assignee| **assignee != deciding.actor) {
        return Err(Refusal::NotAssignee { op: deciding.op, assignee: assignee.clone() });
    }
    let mut transition = Transition::of([Fact::Decided(Arc::new(Decided {
        op: deciding.op,
        choice: deciding.choice,
        actor: Some(deciding.actor.clone()),
        roles: deciding.roles.clone(),
        note: deciding.note.clone(),
        payload: deciding.payload.clone(),
        request: Some(deciding.request),
    }))]);
    record::end(run, deciding.op, OpEnd::Decision, &mut transition);
    Ok(transition)
}

/// Gives a boundary to somebody, or gives it back. An empty transition means: it is so already.
///
/// # Errors
/// When the boundary is not open, its time is over, or it is somebody else's.
pub fn assign(run: &Run, assigning: &Assigning, now: Timestamp) -> Result<Transition, Refusal> {
    check_person(&assigning.actor, &assigning.roles, assigning.note.as_deref())?;
    assigning.to.iter().try_for_each(|to| check_name("assignee", to))?;
    let op = assigning.op;
    let same = |event: &ManualEvent| event.request == Some(assigning.request);
    if run.manual(op).is_some_and(|manual| manual.events.iter().any(same)) {
        return Ok(Transition::default());
    }
    let manual = current(run, op, now)?;
    check_role(manual, &assigning.roles)?;
    if manual.assignee == assigning.to {
        return Ok(Transition::default());
    }
    let theirs = manual.assignee.as_ref().filter(|assignee| **assignee != assigning.actor);
    if let Some(assignee) = theirs.filter(|_| !assigning.take_over) {
        return Err(Refusal::NotAssignee { op, assignee: assignee.clone() });
    }
    // Room is kept for the event that ends it.
    if manual.events.len() + 1 >= MANUAL_EVENTS_MAX {
        return Err(Refusal::Busy { what: "the boundary's events".into(), limit: MANUAL_EVENTS_MAX as u64 });
    }
    Ok(Transition::of([Fact::Assigned(Box::new(Assigned {
        op,
        to: assigning.to.clone(),
        actor: assigning.actor.clone(),
        roles: assigning.roles.clone(),
        note: assigning.note.clone(),
        request: assigning.request,
    }))]))
}

/// The boundary at which the run waits now, if it is the one that is meant.
fn current(run: &Run, op: OpId, now: Timestamp) -> Result<&Manual, Refusal> {
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    let found = run.manual(op);
    match found.map(|manual| (manual, &manual.end)) {
        Some((manual, None)) => match manual.asked.until {
            Some(until) if until <= now => Err(Refusal::DecisionLate { op, until }),
            _ => Ok(manual),
        },
        Some((_, Some(end @ ManualEnd::Decided(decided)))) => {
            Err(Refusal::AlreadyDecided { op, decided: end.name().into(), by: decided.actor.clone() })
        }
        Some((manual, Some(ManualEnd::TimedOut))) => {
            Err(Refusal::DecisionLate { op, until: manual.asked.until.unwrap_or(now) })
        }
        Some((_, Some(ManualEnd::Withdrawn | ManualEnd::RunEnded))) | None => {
            Err(Refusal::StaleBoundary { op, current: run.boundary().map(|open| open.asked.op) })
        }
    }
}

/// The fact of a boundary that a step opens.
pub(super) fn ask(
    run: &Run,
    index: u16,
    op: OpId,
    key: &Str,
    asking: &Asking,
    now: Timestamp,
    transition: &mut Transition,
) -> Result<Arc<Asked>, Refusal> {
    asking.validate()?;
    if let Some(open) = open_after(run, transition) {
        return Err(Refusal::SecondBoundary { op, open });
    }
    let step = run.cursors.get(usize::from(index)).and_then(|cursor| cursor.step.clone());
    let asked = Arc::new(Asked {
        op,
        kind: asking.kind,
        key: key.clone(),
        step: step.unwrap_or_default(),
        payload: asking.payload.clone(),
        roles: asking.roles.clone(),
        assignee: asking.assignee.clone(),
        until: asking.deadline.map(|moment| moment.from(now)),
        on_timeout: asking.on_timeout.clone(),
    });
    transition.facts.push(Fact::Asked(asked.clone()));
    Ok(asked)
}

/// A step asks for what it has asked for: nothing new, unless it is something else.
pub(super) fn ask_again(known: &Op, op: OpId, key: &Str, asking: &Asking, run: &Run) -> Result<(), Refusal> {
    let same = matches!(known.kind, OpKind::Manual { kind, .. } if kind == asking.kind) && known.key == *key;
    if same {
        return Ok(());
    }
    match run.boundary() {
        Some(open) => Err(Refusal::SecondBoundary { op, open: open.asked.op }),
        None => Err(Refusal::invalid("ledger entry", &record::describe(known), format!("{} {key:?}", asking.kind))),
    }
}

/// The boundary that is open once the transition's facts are folded.
fn open_after(run: &Run, transition: &Transition) -> Option<OpId> {
    let asked = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Asked(asked) => Some(asked.op),
        _ => None,
    });
    let ended = |op: &OpId| {
        let ends = |fact: &Fact| matches!(fact, Fact::Resulted(resulted) if resulted.op == *op);
        transition.facts.iter().any(ends)
    };
    run.boundary().map(|open| open.asked.op).into_iter().chain(asked).find(|op| !ended(op))
}

/// The deadline of a boundary has come: how its entry of the ledger ends, and the fact of a default decision.
pub(super) fn elapse(asked: &Asked, transition: &mut Transition) -> OpEnd {
    let OnTimeout::Decide { choice, payload } = &asked.on_timeout else {
        return OpEnd::Elapsed;
    };
    transition.facts.push(Fact::Decided(Arc::new(Decided {
        op: asked.op,
        choice: *choice,
        actor: None,
        roles: Vec::new(),
        note: None,
        payload: payload.clone(),
        request: None,
    })));
    OpEnd::Decision
}

/// The step does not wait for a boundary any more. Of one that is over there is nothing new to say.
pub(super) fn withdraw(run: &Run, op: OpId, transition: &mut Transition) -> Result<(), Refusal> {
    let intended = |fact: &Fact| matches!(fact, Fact::Asked(asked) if asked.op == op);
    let known = run.op(op).map(|entry| matches!(entry.kind, OpKind::Manual { .. }));
    if !known.unwrap_or_else(|| transition.facts.iter().any(intended)) {
        return Err(Refusal::invalid("ledger entry", "a manual boundary of this step", format!("entry {op}")));
    }
    if open_after(run, transition) == Some(op) {
        transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Withdrawn, at: None })));
    }
    Ok(())
}

/// The cursor leaves the step: what it asks of people is withdrawn.
pub(super) fn leave(run: &Run, index: u16, transition: &mut Transition) {
    let Some(op) = open_after(run, transition) else {
        return;
    };
    let intends =
        |fact: &Fact| matches!(fact, Fact::Intended(intended) if intended.op == op && intended.cursor == index);
    if run.op(op).map_or_else(|| transition.facts.iter().any(intends), |entry| entry.cursor == index) {
        transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Withdrawn, at: None })));
    }
}

/// The word that lets a reviewed effect begin: a person approved its review, in this visit of the step.
pub(super) fn approval(run: &Run, index: u16, review: OpId, key: &str) -> Result<Arc<Approval>, Refusal> {
    let visit = run.cursors.get(usize::from(index)).map(|cursor| cursor.visit);
    let its = |op: &&Op| op.cursor == index && Some(op.visit) == visit && op.key == review_key(key);
    let decided = run.op(review).filter(its).and_then(|op| match (&op.kind, &op.state) {
        (OpKind::Manual { kind: ManualKind::Approval, .. }, OpState::Done { value, when }) => {
            value.decode::<Decided>().ok().map(|decided| (decided, when.at))
        }
        _ => None,
    });
    match decided {
        Some((Decided { choice: Choice::Approve, actor: Some(actor), note, .. }, at)) => {
            Ok(Arc::new(Approval { interrupt: Interrupt::Review(review), actor, note, at }))
        }
        _ => Err(Refusal::NotApproved { op: review, key: key.into() }),
    }
}

/// Whoever lets an effect begin once more that was reviewed acts in a role that its review asked for.
pub(super) fn check_reviewer(run: &Run, effect: &str, roles: &[Str]) -> Result<(), Refusal> {
    let review = run.manual.iter().rev().find(|manual| manual.asked.reviews() == Some(effect));
    review.map_or(Ok(()), |review| check_role(review, roles))
}

pub(super) fn check_person(actor: &str, roles: &[Str], note: Option<&str>) -> Result<(), Refusal> {
    check_name("actor", actor)?;
    check_roles(roles)?;
    note.map_or(Ok(()), |note| check_count("note", note.len(), NOTE_BYTES_MAX))
}

fn check_roles(roles: &[Str]) -> Result<(), Refusal> {
    check_count("roles", roles.len(), ROLES_MAX)?;
    roles.iter().try_for_each(|role| check_name("role", role))
}

fn check_choice(kind: ManualKind, choice: Choice) -> Result<(), Refusal> {
    if kind.choices().contains(&choice) {
        return Ok(());
    }
    let words: Vec<&str> = kind.choices().iter().map(|choice| choice.name()).collect();
    let expected: String = format!("{}, for {kind}", words.join(" or "));
    Err(Refusal::invalid("decision", &expected, choice.name()))
}

fn check_role(manual: &Manual, roles: &[Str]) -> Result<(), Refusal> {
    let asked = &manual.asked;
    if asked.roles.is_empty() || asked.roles.iter().any(|role| roles.contains(role)) {
        return Ok(());
    }
    Err(Refusal::WrongRole { op: asked.op, roles: asked.roles.clone() })
}

/// How the entry of a boundary ended that was decided: with the decision, whole.
pub(super) fn op_state(run: &Run, op: OpId, when: EndedAt) -> OpState {
    let decided = run.manual(op).and_then(Manual::decided);
    let value = decided.and_then(|decided| Payload::encode(decided).ok()).unwrap_or_default();
    OpState::Done { when, value }
}

pub(super) fn apply_asked(run: &mut Run, asked: &Arc<Asked>, meta: Meta) {
    let known = Arc::make_mut(&mut run.manual);
    if known.len() >= MANUALS_MAX
        && let Some(oldest) = known.iter().position(|manual| manual.end.is_some())
    {
        known.remove(oldest);
    }
    let mut created = event(ManualEventKind::Created, meta);
    created.to.clone_from(&asked.assignee);
    let assignee = asked.assignee.clone();
    known.push(Manual { asked: asked.clone(), assignee, events: Vec::from([created]), end: None });
}

pub(super) fn apply_assigned(run: &mut Run, assigned: &Assigned, meta: Meta) {
    let Some(manual) = open_mut(run, Some(assigned.op)) else {
        return;
    };
    let kind = match (&manual.assignee, &assigned.to) {
        (_, None) => ManualEventKind::Released,
        (None, Some(_)) => ManualEventKind::Assigned,
        (Some(_), Some(_)) => ManualEventKind::Reassigned,
    };
    manual.assignee.clone_from(&assigned.to);
    manual.events.push(ManualEvent {
        actor: Some(assigned.actor.clone()),
        to: assigned.to.clone(),
        note: assigned.note.clone(),
        request: Some(assigned.request),
        ..event(kind, meta)
    });
}

pub(super) fn apply_decided(run: &mut Run, decided: &Arc<Decided>, meta: Meta) {
    let Some(manual) = open_mut(run, Some(decided.op)) else {
        return;
    };
    manual.end = Some(ManualEnd::Decided(decided.clone()));
    manual.events.push(ManualEvent {
        actor: decided.actor.clone(),
        note: decided.note.clone(),
        request: decided.request,
        ..event(ManualEventKind::Completed, meta)
    });
}

/// A boundary ends without a decision: the one given, or whichever is open.
pub(super) fn close(run: &mut Run, op: Option<OpId>, end: ManualEnd, meta: Meta) {
    if let Some(manual) = open_mut(run, op) {
        manual.end = Some(end);
        manual.events.push(event(ManualEventKind::Closed, meta));
    }
}

/// The boundary that is open, if it is the one given. Nothing is copied when there is none.
fn open_mut(run: &mut Run, op: Option<OpId>) -> Option<&mut Manual> {
    let open = |manual: &Manual| manual.end.is_none() && op.is_none_or(|op| manual.asked.op == op);
    let index = run.manual.iter().rposition(open)?;
    Arc::make_mut(&mut run.manual).get_mut(index)
}

fn event(kind: ManualEventKind, meta: Meta) -> ManualEvent {
    ManualEvent { kind, at: meta.at, actor: None, to: None, note: None, request: None }
}
