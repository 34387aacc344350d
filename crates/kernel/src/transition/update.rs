//! Update: a run is asked to do something and to answer. The request waits until the code waits for its name; the code
//! gets it as the end of that wait, and its answer is a fact of its own.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Transition;
use super::wait::{self, Awaited};
use serde::{Deserialize, Serialize};

use crate::limits::{ANSWERS_MAX, UPDATES_MAX};
use crate::spec::{check_key, check_name, check_payload};
use crate::{
    Answered, EndedAt, ErrorInfo, Fact, Meta, OpId, OpKind, OpState, Payload, Refusal, Reply, RequestId, Requested,
    Run, Str, Update, UpdateState,
};

/// What a caller asks of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    wait::arrive(run, Awaited::Update, &asked.name, update, &mut transition);
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
pub(super) fn open_after<'a>(run: &'a Run, transition: &Transition) -> Vec<(&'a Update, Option<OpId>)> {
    let answered =
        |id: u64| transition.facts.iter().any(|fact| matches!(fact, Fact::Answered(told) if told.update == id));
    let with = |update: &'a Update| match update.state {
        UpdateState::Waiting { .. } => Some((update, None)),
        UpdateState::Given { op } => Some((update, Some(op))),
        UpdateState::Answered { .. } => None,
    };
    let open: Vec<(&Update, Option<OpId>)> =
        run.updates.iter().filter_map(with).filter(|(update, _)| !answered(update.id)).collect();
    let arrived = open.iter().map(|(update, with)| (update.id, *with)).collect();
    let with = wait::after(Awaited::Update, arrived, transition).into_iter().map(|(_, with)| with);
    open.iter().map(|(update, _)| *update).zip(with).collect()
}

/// The cursor leaves the step: what it was asked, has seen and has not answered is answered so.
pub(super) fn leave(run: &Run, index: u16, transition: &mut Transition) {
    for (update, with) in open_after(run, transition) {
        let ours = |op: &OpId| run.op(*op).is_none_or(|entry| entry.cursor == index);
        if with.filter(ours).is_some_and(|op| wait::is_seen(run, op, transition)) {
            let error = ErrorInfo::terminal("unanswered", "the run began again without answering; ask again");
            let reply = Reply::Rejected(Arc::new(error));
            transition.facts.push(Fact::Answered(Box::new(Answered { update: update.id, reply, unread: false })));
        }
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
