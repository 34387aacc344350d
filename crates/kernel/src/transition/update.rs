//! Update: a run is asked to do something and to answer. The request waits until the code waits for its name; the code
//! gets it as the end of that wait, and its answer is a fact of its own.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, record};
use crate::limits::{ANSWERS_MAX, UPDATES_MAX};
use crate::spec::{check_key, check_name, check_payload};
use crate::{
    Answered, EndedAt, ErrorInfo, Fact, Meta, Moment, Op, OpEnd, OpId, OpKind, OpState, Payload, Refusal, Reply,
    RequestId, Requested, Resulted, Run, Str, Timestamp, Update, UpdateState,
};

/// What a caller asks of a run.
#[derive(Clone, Debug)]
pub struct Requesting {
    /// The update's name.
    pub name: Str,
    /// What is asked.
    pub input: Payload,
    /// A key under which it is asked once.
    pub dedup: Option<Str>,
    /// The request.
    pub request: RequestId,
}

/// What a caller is told whose update is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The update's number within the run.
    pub update: u64,
    /// Whether it had been accepted before, under the same key or request.
    pub duplicate: bool,
}

/// Accepts an update. An empty transition means: it had been accepted before.
///
/// # Errors
/// When the run has ended or is about to, too many updates wait, the key was used for something else, or the update is
/// not acceptable.
pub fn decide(run: &Run, asked: &Requesting) -> Result<(Accepted, Transition), Refusal> {
    check_name("update name", &asked.name)?;
    check_payload("update input", &asked.input)?;
    asked.dedup.iter().try_for_each(|key| check_key("dedup key", key))?;
    let input_hash = asked.dedup.as_ref().map_or(0, |_| asked.input.canonical_hash());
    // The duplicate is looked for first: whoever asks again gets the first answer, also after the end.
    let same =
        |known: &&Update| known.request == asked.request || (known.dedup.is_some() && known.dedup == asked.dedup);
    if let Some(known) = run.updates.iter().find(same) {
        check_same(known, asked, input_hash)?;
        return Ok((Accepted { update: known.id, duplicate: true }, Transition::default()));
    }
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    if run.cancelling.is_some() {
        return Err(Refusal::Cancelling { run: run.id });
    }
    if run.updates.iter().filter(|update| update.reply().is_none()).count() >= UPDATES_MAX {
        return Err(Refusal::Busy { what: "the run's list of updates".into(), limit: UPDATES_MAX as u64 });
    }
    let update = run.updates_seen + 1;
    // The request is recorded before the wait ends, so that the woken code gets it.
    let mut transition = Transition::of([Fact::Requested(Box::new(Requested {
        update,
        name: asked.name.clone(),
        input: asked.input.clone(),
        dedup: asked.dedup.clone(),
        input_hash,
        request: asked.request,
    }))]);
    if let Some(op) = open_wait(run, &asked.name, 0, &transition) {
        give(run, op, update, &mut transition);
    }
    Ok((Accepted { update, duplicate: false }, transition))
}

fn check_same(known: &Update, asked: &Requesting, input_hash: u64) -> Result<(), Refusal> {
    if known.name != asked.name {
        let expected = format!("the update it was used for, {:?}", known.name);
        return Err(Refusal::invalid("dedup key", &expected, format!("{:?}", asked.name)));
    }
    if known.dedup.is_some() && known.input_hash != input_hash {
        let expected = format!("what was asked with it before (hash {:016x})", known.input_hash);
        return Err(Refusal::invalid("dedup key", &expected, format!("something else ({input_hash:016x})")));
    }
    Ok(())
}

/// Open updates as they stand once the transition's facts are folded, in their order: which entry has each, if one has.
fn open_after<'a>(run: &'a Run, transition: &Transition) -> Vec<(&'a Update, Option<OpId>)> {
    let with = |update: &'a Update| match update.state {
        UpdateState::Waiting { .. } => Some((update, None)),
        UpdateState::Given { op } => Some((update, Some(op))),
        UpdateState::Answered { .. } => None,
    };
    let mut open: Vec<(&Update, Option<OpId>)> = run.updates.iter().filter_map(with).collect();
    for fact in &transition.facts {
        match fact {
            Fact::Resulted(resulted) => match resulted.end {
                OpEnd::Update(id) => open
                    .iter_mut()
                    .filter(|(update, _)| update.id == id)
                    .for_each(|(_, with)| *with = Some(resulted.op)),
                OpEnd::Withdrawn => {
                    open.iter_mut().filter(|(_, with)| *with == Some(resulted.op)).for_each(|(_, with)| *with = None)
                }
                _ => {}
            },
            Fact::Answered(answered) => open.retain(|(update, _)| update.id != answered.update),
            _ => {}
        }
    }
    open
}

/// The first wait for an update of this name that is open once the transition's facts are folded, other than `but`, and
/// that is of a visit which its cursor has not left.
fn open_wait(run: &Run, name: &str, but: OpId, transition: &Transition) -> Option<OpId> {
    let waits = |kind: &OpKind| matches!(kind, OpKind::Update { name: awaited, .. } if **awaited == *name);
    let current = |op: &Op| run.cursors.get(usize::from(op.cursor)).is_some_and(|cursor| cursor.visit == op.visit);
    let ended = |id: OpId| transition.facts.iter().any(|fact| matches!(fact, Fact::Resulted(ended) if ended.op == id));
    let known = run.open_ops().filter(|(_, op)| waits(&op.kind) && current(op)).map(|(id, _)| id);
    let begun = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Intended(intended) if waits(&intended.kind) => Some(intended.op),
        _ => None,
    });
    known.chain(begun).find(|id| *id != but && !ended(*id))
}

/// A new wait for an update of this name, and how it ends at once, if it does: with the oldest that no wait has, or because
/// its time is over.
pub(super) fn wait(
    run: &Run,
    name: &Str,
    deadline: Option<Moment>,
    now: Timestamp,
    transition: &Transition,
) -> Result<(OpKind, Option<OpEnd>), Refusal> {
    check_name("update name", name)?;
    let until = deadline.map(|moment| moment.from(now));
    let free = |(update, with): &(&Update, Option<OpId>)| with.is_none() && update.name == *name;
    let waiting = open_after(run, transition).into_iter().find(free).map(|(update, _)| OpEnd::Update(update.id));
    let late = until.filter(|until| *until <= now).map(|_| OpEnd::Elapsed);
    Ok((OpKind::Update { name: name.clone(), until, answered: false }, waiting.or(late)))
}

/// Whether the entry is a wait for an update, known before or begun by the transition.
pub(super) fn is_wait(run: &Run, op: OpId, transition: &Transition) -> bool {
    let begun = transition.facts.iter().find_map(|fact| match fact {
        Fact::Intended(intended) if intended.op == op => Some(&intended.kind),
        _ => None,
    });
    matches!(run.op(op).map(|entry| &entry.kind).or(begun), Some(OpKind::Update { .. }))
}

/// Whether the step has taken notice of the entry's end, once the transition's facts are folded.
fn is_seen(run: &Run, op: OpId, transition: &Transition) -> bool {
    let before = run.op(op).and_then(|entry| entry.state.when()).is_some_and(|when| when.seen > 0);
    before || transition.facts.iter().any(|fact| matches!(fact, Fact::Seen(seen) if seen.op == op))
}

/// The step does not wait for an update any more. One that the wait has got and the code has not seen goes to the next
/// wait for its name, or waits for that. Of a wait that is over there is nothing new to say.
pub(super) fn withdraw(run: &Run, op: OpId, transition: &mut Transition) {
    let ends = |fact: &Fact| matches!(fact, Fact::Resulted(resulted) if resulted.op == op);
    let was_open = run.op(op).is_none_or(|entry| entry.state == OpState::Open);
    let got = open_after(run, transition).into_iter().find(|(_, with)| *with == Some(op)).map(|(update, _)| update);
    let got = got.filter(|_| !is_seen(run, op, transition));
    if got.is_none() && (!was_open || transition.facts.iter().any(ends)) {
        return;
    }
    transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Withdrawn, at: None })));
    if let Some(update) = got
        && let Some(next) = open_wait(run, &update.name, op, transition)
    {
        give(run, next, update.id, transition);
    }
}

fn give(run: &Run, op: OpId, update: u64, transition: &mut Transition) {
    let end = OpEnd::Update(update);
    match run.op(op) {
        Some(_) => record::end(run, op, end, transition),
        None => transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end, at: None }))),
    }
}

/// The cursor leaves the step: what it was asked and has not answered is answered so. What it has not seen waits on.
pub(super) fn leave(run: &Run, index: u16, transition: &mut Transition) {
    for (update, with) in open_after(run, transition) {
        let ours = |op: &OpId| run.op(*op).is_none_or(|entry| entry.cursor == index);
        let Some(op) = with.filter(ours) else { continue };
        transition.facts.push(if is_seen(run, op, transition) {
            let error = ErrorInfo::terminal("unanswered", "the run began again without answering; ask again");
            let reply = Reply::Rejected(Arc::new(error));
            Fact::Answered(Box::new(Answered { update: update.id, reply, unread: false }))
        } else {
            Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Withdrawn, at: None }))
        });
    }
}

/// The fact of an answer that the step at `index` gives to what its entry `op` got.
pub(super) fn answer(
    run: &Run,
    index: u16,
    op: OpId,
    reply: &Reply,
    unread: bool,
    transition: &mut Transition,
) -> Result<(), Refusal> {
    match reply {
        Reply::Value(value) => check_payload("answer", value)?,
        Reply::Rejected(error) => error.validate()?,
    }
    let given = open_after(run, transition).into_iter().find(|(_, with)| *with == Some(op));
    let ours = run.op(op).is_some_and(|entry| entry.cursor == index);
    let Some((update, _)) = given.filter(|_| ours) else {
        return Err(Refusal::invalid("answer", "an update of this step that is not answered", format!("entry {op}")));
    };
    let (update, reply) = (update.id, reply.clone());
    transition.facts.push(Fact::Answered(Box::new(Answered { update, reply, unread })));
    Ok(())
}

pub(super) fn apply_requested(run: &mut Run, requested: &Requested, meta: Meta) {
    run.updates_seen = requested.update;
    run.updates.push(Update {
        id: requested.update,
        name: requested.name.clone(),
        dedup: requested.dedup.clone(),
        input_hash: requested.input_hash,
        request: requested.request,
        at: meta.at,
        state: UpdateState::Waiting { input: requested.input.clone() },
    });
}

/// A wait got an update: how its entry ended.
pub(super) fn apply_given(run: &mut Run, op: OpId, update: u64, when: EndedAt) -> OpState {
    let Some(known) = run.update_mut(update) else {
        return OpState::Done { when, value: Payload::null() };
    };
    match core::mem::replace(&mut known.state, UpdateState::Given { op }) {
        UpdateState::Waiting { input } => OpState::Done { when, value: input },
        // It was not there to be given, which `decide` never writes.
        before => {
            known.state = before;
            OpState::Done { when, value: Payload::null() }
        }
    }
}

/// A wait was withdrawn: an update that it had got waits again.
pub(super) fn apply_withdrawn(run: &mut Run, op: OpId) {
    let Some(OpState::Done { value, .. }) = run.op(op).map(|entry| &entry.state) else {
        return;
    };
    let input = value.clone();
    if let Some(update) = run.updates.iter_mut().find(|update| update.is_given_to(op)) {
        update.state = UpdateState::Waiting { input };
    }
}

pub(super) fn apply_answered(run: &mut Run, answered: &Answered, meta: Meta) {
    let Some(index) = run.updates.iter().position(|update| update.id == answered.update) else {
        return;
    };
    // Those that are answered stand in the order of their answers, so that the oldest answer is forgotten first.
    let mut update = run.updates.remove(index);
    let answer = UpdateState::Answered { at: meta.at, reply: answered.reply.clone() };
    let before = core::mem::replace(&mut update.state, answer);
    run.updates.push(update);
    if let UpdateState::Given { op } = before
        && let Some(entry) = run.op_mut(op)
    {
        if let OpKind::Update { answered, .. } = &mut entry.kind {
            *answered = true;
        }
        if let (true, Reply::Rejected(error), Some(when)) = (answered.unread, &answered.reply, entry.state.when()) {
            entry.state = OpState::Failed { when, error: error.clone() };
        }
    }
    let closed = |update: &Update| update.reply().is_some();
    if run.updates.iter().filter(|update| closed(update)).count() > ANSWERS_MAX
        && let Some(oldest) = run.updates.iter().position(closed)
    {
        run.updates.remove(oldest);
    }
}
