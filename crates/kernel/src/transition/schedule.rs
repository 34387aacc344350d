//! Schedule: a planned step becomes an attempt that can be claimed.

use crate::{Cursor, Fact, Facts, Meta, Phase, Run, Scheduled, Timestamp};

use super::anomaly;

/// Adds an intent for every step that is planned, whose needs are met, and that has none yet.
pub fn missing(run: &Run, now: Timestamp, facts: &mut Facts) {
    for (index, cursor) in run.cursors.iter().enumerate() {
        if let Phase::Planned { visible_at } = cursor.phase
            && run.needs_met(cursor)
        {
            facts.push(intent(index as u16, cursor, visible_at.filter(|at| *at > now)));
        }
    }
}

/// The intent for a cursor's next attempt.
#[must_use]
pub fn intent(index: u16, cursor: &Cursor, visible_at: Option<Timestamp>) -> Fact {
    Fact::Scheduled(Scheduled { cursor: index, turn: cursor.turn + 1, step: cursor.step.clone(), visible_at })
}

/// Decides on an intent that comes from outside: a matching duplicate changes nothing, a conflicting one is
/// an anomaly, one for a step that is not planned as well.
#[must_use]
pub fn decide(run: &Run, wanted: &Scheduled, now: Timestamp) -> Facts {
    let Some(cursor) = run.cursors.get(usize::from(wanted.cursor)) else {
        return anomaly::fact(run, "unknown_runnable_intent", "no such cursor").into_iter().collect();
    };
    let planned = matches!(cursor.phase, Phase::Planned { .. }) && run.needs_met(cursor);
    if planned && wanted.turn == cursor.turn + 1 && wanted.step == cursor.step {
        let at = wanted.visible_at.filter(|at| *at > now);
        return Facts::from_iter([intent(wanted.cursor, cursor, at)]);
    }
    let same_turn = wanted.turn == cursor.turn && wanted.step == cursor.step;
    let matches = match (&cursor.phase, wanted.visible_at) {
        (Phase::Scheduled { visible_at, .. }, Some(at)) => same_turn && at == *visible_at,
        (Phase::Scheduled { visible_at, .. }, None) => same_turn && *visible_at <= now,
        _ => same_turn,
    };
    if matches {
        return Facts::new();
    }
    anomaly::fact(run, "conflicting_intent", "another intent stands under this runnable key").into_iter().collect()
}

pub(super) fn apply(run: &mut Run, scheduled: &Scheduled, meta: Meta) {
    let Some(cursor) = run.cursors.get_mut(usize::from(scheduled.cursor)) else {
        return;
    };
    cursor.turn = scheduled.turn;
    cursor.phase = Phase::Scheduled { visible_at: scheduled.visible_at.unwrap_or(meta.at), arrival: meta.seq };
}
