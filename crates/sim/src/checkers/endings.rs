//! Runs end as their code says: with what they were given, or with an error that was drawn for them.

use abide::{Fact, Status};

use super::{Told, View};
use crate::Violation;

/// Errors that a world draws, or that follow from what it does.
const EXPECTED: &[&str] =
    &["approval_expired", "definition_missing", "deliveries_exhausted", "error", "panic", "rejected", "torn"];

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed().filter(|(_, told)| !told.run.is_reservation()) {
        is_as_given(told).map_err(|what| format!("endings: {id}, a {}, {what}", told.run.started.spec.workflow))?;
    }
    Ok(())
}

fn is_as_given(told: &Told) -> Result<(), String> {
    let run = &told.run;
    let result = run.result.as_ref().map(|result| result.text());
    let given = run.started.spec.input.text();
    if run.status() == Status::Done && result != Some(given) {
        return Err(format!("was given {given}, and ended with {result:?}"));
    }
    for fact in told.rows.iter().flat_map(|row| &row.facts) {
        let error = match fact {
            Fact::Failed(failed) => &failed.error,
            Fact::DeadLettered(letter) => &letter.reason,
            _ => continue,
        };
        if !EXPECTED.contains(&&*error.code) {
            return Err(format!("met {:?}, which nobody drew: {}", error.code, error.message));
        }
    }
    Ok(())
}
