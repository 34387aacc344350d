//! Progress: a worker says how far it has come. That keeps its lease, and makes no row of its own.

use alloc::format;
use alloc::string::String;

use super::fenced;
use crate::limits::{NAME_BYTES_MAX, PROGRESS_BYTES_MAX, PROGRESS_NAMES_MAX};
use crate::{Payload, Progress, ProgressEvent, Progressed, Refusal, Run, Said, Str, Timestamp, TokenHash};

/// What a worker says of its attempt.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Progressing {
    /// Of what.
    pub name: Str,
    /// How it stands.
    pub value: Payload,
}

/// What a step says becomes an event, if it holds its claim. `pending` is what was said and is in no row yet.
///
/// # Errors
/// When the fence is not the current one, the lease has ended, or what is said is out of bounds.
pub fn decide(
    run: &Run,
    pending: &[Progressed],
    claim: u32,
    token: TokenHash,
    progressing: &Progressing,
    now: Timestamp,
) -> Result<Progressed, Refusal> {
    let Progressing { name, value } = progressing;
    let cursor = fenced(run, claim, token, now)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let expected = format!("a name of 1 to {NAME_BYTES_MAX} bytes");
        return Err(Refusal::Invalid { what: "the name of a progress".into(), expected, found: found(name) });
    }
    let large = |what: &str, limit: usize, found: usize| Refusal::TooLarge {
        what: what.into(),
        limit: limit as u64,
        found: found as u64,
    };
    if value.bytes() > PROGRESS_BYTES_MAX {
        return Err(large("bytes of a progress", PROGRESS_BYTES_MAX, value.bytes()));
    }
    let shown = shown(run, pending);
    let visit = run.cursors[usize::from(cursor)].visit;
    let others = shown.of_visit(cursor, visit).filter(|known| known.name != *name).count();
    if others >= PROGRESS_NAMES_MAX {
        return Err(large("names of progress in a step", PROGRESS_NAMES_MAX, others + 1));
    }
    // Numbers follow the time, so that what was lost with memory is never said again under a number that somebody saw.
    let seq = (shown.last() + 1).max((now.0.max(0) as u64) << 10);
    let event = ProgressEvent { seq, name: name.clone(), value: value.clone(), at: now };
    Ok(Progressed { cursor, claim, events: alloc::vec![event], trimmed: 0 })
}

fn found(name: &str) -> String {
    name.chars().take(80).collect()
}

/// How far the run has come, with what is in no row yet.
#[must_use]
pub fn shown(run: &Run, pending: &[Progressed]) -> Progress {
    let mut progress = run.progress.as_deref().cloned().unwrap_or_default();
    pending.iter().for_each(|progressed| take(run, &mut progress, progressed));
    progress
}

fn take(run: &Run, progress: &mut Progress, progressed: &Progressed) {
    let Some(cursor) = run.cursors.get(usize::from(progressed.cursor)) else { return };
    progress.trimmed = progress.trimmed.max(progressed.trimmed);
    let step = cursor.step.clone().unwrap_or_default();
    for event in &progressed.events {
        progress.take(Said {
            cursor: progressed.cursor,
            visit: cursor.visit,
            step: step.clone(),
            event: event.clone(),
        });
    }
}

/// Folds what was said into the run.
pub(super) fn apply(run: &mut Run, progressed: &Progressed) {
    let mut progress = run.progress.take().unwrap_or_default();
    take(run, &mut progress, progressed);
    run.progress = Some(progress);
}
