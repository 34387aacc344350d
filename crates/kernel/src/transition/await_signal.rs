//! Await: a step parks until a named signal arrives, without ever missing one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{After, Cursor, Moment, Run, Str, Timestamp, Wait, WaitKind};

/// What follows when the step at `cursor` awaits `names`, having seen signals up to `seen`.
///
/// A signal that is already in the inbox lets the step run at once. Those that the step was woken for before
/// and still did not use are not offered again, or it would spin.
#[must_use]
pub fn decide(
    run: &Run,
    cursor: &Cursor,
    names: &[Str],
    then: Option<&Str>,
    deadline: Option<Moment>,
    seen: u64,
    now: Timestamp,
) -> After {
    let offered = |name: &Str| then.is_none() && cursor.awaits.contains(name);
    let arrived =
        run.inbox.iter().any(|signal| names.contains(&signal.name) && (signal.id > seen || !offered(&signal.name)));
    if arrived {
        return After::Arrived;
    }
    After::Wait(Arc::new(Wait {
        kind: WaitKind::Signal { names: Vec::from(names), after: if run.inbox.is_empty() { 0 } else { seen } },
        token: run.tokens + 1,
        until: deadline.map(|moment| moment.from(now)),
        then: then.cloned(),
    }))
}
