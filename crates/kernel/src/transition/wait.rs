//! Wait: an entry of the ledger waits for an instant, or for what is sent to the run by name: a signal or an update. What a
//! wait got that is given up before the code has seen it goes to the next wait for its name, in its old place.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Transition, record, signal, update};
use crate::{Fact, Op, OpEnd, OpId, OpKind, OpState, Resulted, Run, Str, Timestamp};

/// What is sent to a run by name, and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Signal,
    Update,
}

impl Awaited {
    /// What an entry waits for that is sent by name, and by which.
    fn of(kind: &OpKind) -> Option<(Self, &Str)> {
        match kind {
            OpKind::Signal { name, .. } => Some((Self::Signal, name)),
            OpKind::Update { name, .. } => Some((Self::Update, name)),
            OpKind::Effect(_) | OpKind::Timer { .. } | OpKind::Child { .. } | OpKind::Patch | OpKind::Manual { .. } => {
                None
            }
        }
    }

    /// How a wait ends that gets what has this number.
    fn end(self, id: u64) -> OpEnd {
        match self {
            Self::Signal => OpEnd::Signal(id),
            Self::Update => OpEnd::Update(id),
        }
    }

    fn id(self, end: &OpEnd) -> Option<u64> {
        match (self, end) {
            (Self::Signal, OpEnd::Signal(id)) | (Self::Update, OpEnd::Update(id)) => Some(*id),
            _ => None,
        }
    }
}

/// Something that was sent to the run, by its number, and the entry that has got it, if one has.
pub(super) type Arrived = (u64, Option<OpId>);

/// What was sent, as it stands once the transition's facts are folded.
pub(super) fn after(awaited: Awaited, mut arrived: Vec<Arrived>, transition: &Transition) -> Vec<Arrived> {
    for fact in &transition.facts {
        let Fact::Resulted(resulted) = fact else { continue };
        if let Some(id) = awaited.id(&resulted.end) {
            arrived.iter_mut().filter(|known| known.0 == id).for_each(|known| known.1 = Some(resulted.op));
        } else if resulted.end == OpEnd::Withdrawn {
            arrived.iter_mut().filter(|known| known.1 == Some(resulted.op)).for_each(|known| known.1 = None);
        }
    }
    arrived
}

/// What was sent by this name and is with nobody, or with `op` or an entry that the transition gives up; in the order it
/// came. It is not looked for in the whole ledger, because a long one would make each of its waits slow.
pub(super) fn arrived(run: &Run, awaited: Awaited, name: &str, op: OpId, transition: &Transition) -> Vec<Arrived> {
    if awaited == Awaited::Update {
        let named =
            |(update, with): (&crate::Update, Option<OpId>)| (*update.name == *name).then_some((update.id, with));
        return update::open_after(run, transition).into_iter().filter_map(named).collect();
    }
    let waiting = run.inbox.iter().filter(|signal| *signal.name == *name).map(|signal| (signal.id, None));
    let given_up = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Resulted(resulted) if resulted.end == OpEnd::Withdrawn => Some(resulted.op),
        _ => None,
    });
    let with = given_up.chain([op]).filter_map(|id| match &run.op(id)?.kind {
        OpKind::Signal { name: awaited, got: Some(got), .. } if **awaited == *name => Some((got.id, Some(id))),
        _ => None,
    });
    let mut arrived: Vec<Arrived> = waiting.chain(with).collect();
    arrived.sort_unstable();
    arrived.dedup();
    after(awaited, arrived, transition)
}

/// What the entry is, known before or begun by the transition.
fn kind<'a>(run: &'a Run, op: OpId, transition: &'a Transition) -> Option<&'a OpKind> {
    let begun = transition.facts.iter().find_map(|fact| match fact {
        Fact::Intended(intended) if intended.op == op => Some(&intended.kind),
        _ => None,
    });
    run.op(op).map(|entry| &entry.kind).or(begun)
}

/// Whether the entry waits for an instant, a signal or an update.
pub(super) fn is_wait(run: &Run, op: OpId, transition: &Transition) -> bool {
    kind(run, op, transition).is_some_and(waits)
}

fn waits(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Timer { .. } | OpKind::Signal { .. } | OpKind::Update { .. })
}

/// Whether the entry is open once the transition's facts are folded.
fn is_open(run: &Run, op: OpId, transition: &Transition) -> bool {
    let last = transition.facts.iter().rev().find_map(|fact| match fact {
        Fact::Resulted(resulted) if resulted.op == op => Some(resulted.end == OpEnd::Reopened),
        _ => None,
    });
    last.unwrap_or_else(|| run.op(op).is_none_or(|entry| entry.state == OpState::Open))
}

/// Whether the step has taken notice of the entry's end, once the transition's facts are folded.
pub(super) fn is_seen(run: &Run, op: OpId, transition: &Transition) -> bool {
    let before = run.op(op).and_then(|entry| entry.state.when()).is_some_and(|when| when.seen > 0);
    before || transition.facts.iter().any(|fact| matches!(fact, Fact::Seen(seen) if seen.op == op))
}

/// How a wait ends as it begins, if it does: with the oldest that was sent and no wait has, or because its time is over.
pub(super) fn begin(run: &Run, kind: &OpKind, now: Timestamp, transition: &Transition) -> Option<OpEnd> {
    let waiting = Awaited::of(kind).and_then(|(awaited, name)| {
        let free = arrived(run, awaited, name, 0, transition).into_iter().find(|(_, with)| with.is_none());
        free.map(|(id, _)| awaited.end(id))
    });
    let late = kind.until().filter(|until| *until <= now).map(|_| OpEnd::Elapsed);
    waiting.or(late)
}

/// Something was sent to the run, or was given back: the first wait for its name gets it, and cursors that await it wake.
pub(super) fn arrive(run: &Run, awaited: Awaited, name: &str, id: u64, transition: &mut Transition) {
    if let Some(op) = open_wait(run, awaited, name, transition) {
        give(run, op, awaited.end(id), transition);
    }
    if awaited == Awaited::Signal {
        signal::wake_awaiting(run, name, transition);
    }
}

/// The first wait for this name that is open once the transition's facts are folded, and that is of a visit which its
/// cursor has not left.
fn open_wait(run: &Run, awaited: Awaited, name: &str, transition: &Transition) -> Option<OpId> {
    let waits = |kind: &OpKind| Awaited::of(kind).is_some_and(|(what, called)| what == awaited && **called == *name);
    let known = run.open_ops().filter(|(_, op)| waits(&op.kind) && run.is_current(op)).map(|(id, _)| id);
    let begun = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Intended(intended) if waits(&intended.kind) => Some(intended.op),
        Fact::Resulted(resulted) if resulted.end == OpEnd::Reopened => {
            run.op(resulted.op).filter(|op| waits(&op.kind)).map(|_| resulted.op)
        }
        _ => None,
    });
    known.chain(begun).find(|id| is_open(run, *id, transition))
}

fn give(run: &Run, op: OpId, end: OpEnd, transition: &mut Transition) {
    transition.facts.push(resulted(op, end));
    if let Some(entry) = run.op(op) {
        record::wake_cursor(run, entry.cursor, transition);
    }
}

fn resulted(op: OpId, end: OpEnd) -> Fact {
    Fact::Resulted(Box::new(Resulted { op, end, at: None }))
}

/// The step does not wait any more. What the wait has got and the code has not seen goes to the next wait for its name, or
/// waits for that. Of a wait that is over there is nothing new to say.
pub(super) fn withdraw(run: &Run, op: OpId, transition: &mut Transition) {
    let sent = kind(run, op, transition).and_then(Awaited::of).map(|(awaited, name)| (awaited, name.clone()));
    let got = sent.filter(|_| !is_seen(run, op, transition)).and_then(|(awaited, name)| {
        let with = |(_, with): &Arrived| *with == Some(op);
        let found = arrived(run, awaited, &name, op, transition).into_iter().find(with);
        found.map(|(id, _)| (awaited, name, id))
    });
    if got.is_none() && !is_open(run, op, transition) {
        return;
    }
    transition.facts.push(resulted(op, OpEnd::Withdrawn));
    if let Some((awaited, name, id)) = got {
        arrive(run, awaited, &name, id, transition);
    }
}

/// The step waits after all for what it had given up: something that it had failed at goes another way this time.
pub(super) fn again(run: &Run, op: OpId, entry: &Op, now: Timestamp, transition: &mut Transition) {
    if !entry.is_withdrawn() || is_open(run, op, transition) {
        return;
    }
    transition.facts.push(resulted(op, OpEnd::Reopened));
    let end = begin(run, &entry.kind, now, transition);
    transition.facts.extend(end.map(|end| resulted(op, end)));
}

/// The cursor leaves the step: nobody waits for what it waited for, and what it has got and not seen waits on.
pub(super) fn leave(run: &Run, index: u16, transition: &mut Transition) {
    let ours = |op: &Op| op.cursor == index && waits(&op.kind) && run.is_current(op);
    let known = run.ops().filter(|(_, op)| ours(op)).map(|(id, _)| id);
    let begun = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Intended(intended) if waits(&intended.kind) => Some(intended.op),
        _ => None,
    });
    let left: Vec<OpId> = known.chain(begun).collect();
    // Those that are open first, so that what another gives back does not go to them.
    for op in left.iter().copied().filter(|op| is_open(run, *op, transition)).collect::<Vec<OpId>>() {
        transition.facts.push(resulted(op, OpEnd::Withdrawn));
    }
    left.into_iter().for_each(|op| withdraw(run, op, transition));
}
