//! Await: a step parks until a named signal arrives, without ever missing one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Transition;
use super::wait::{self, Awaited};
use crate::{After, Cursor, Run, Str, Timestamp, Wait, WaitKind};

/// What follows when the step at `cursor` awaits `names`, having seen signals up to `seen`.
///
/// A signal that is in the inbox once the transition's facts are folded lets the step run at once. Those that the step was woken for before
/// and still did not use are not offered again, or it would spin.
#[must_use]
pub fn decide(
    run: &Run,
    cursor: &Cursor,
    names: &[Str],
    then: Option<&Str>,
    until: Option<Timestamp>,
    seen: u64,
    transition: &Transition,
) -> After {
    let offered = |name: &Str| then.is_none() && cursor.awaits.contains(name);
    let free = |name: &Str| {
        let arrived = wait::arrived(run, Awaited::Signal, name, 0, transition).into_iter();
        arrived.filter(|(_, with)| with.is_none()).map(|(id, _)| id).max()
    };
    let waiting: Vec<(&Str, u64)> = names.iter().filter_map(|name| Some((name, free(name)?))).collect();
    if waiting.iter().any(|(name, id)| *id > seen || !offered(name)) {
        return After::Arrived;
    }
    let after = if waiting.is_empty() && run.inbox.is_empty() { 0 } else { seen };
    After::Wait(Arc::new(Wait {
        kind: WaitKind::Signal { names: Vec::from(names), after },
        token: run.tokens + 1,
        until,
        then: then.cloned(),
    }))
}
