//! Runs end as their code says: with what they were given, or with an error that was drawn for them.

use abide::{Fact, Status};

use super::{Told, View};
use crate::Violation;
use crate::workflows::AGAIN;

/// Errors that a world draws, or that follow from what it does.
const EXPECTED: &[&str] = &[
    "approval_expired",
    "cancelled",
    "dead_letter_discarded",
    "definition_missing",
    "deliveries_exhausted",
    "error",
    "panic",
    "rejected",
    "run_deadline",
    "torn",
];

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in view.changed().filter(|(_, told)| !told.run.is_reservation()) {
        is_as_given(told).map_err(|what| format!("endings: {id}, a {}, {what}", told.run.started.spec.workflow))?;
    }
    Ok(())
}

fn is_as_given(told: &Told) -> Result<(), String> {
    let run = &told.run;
    let result = run.result.as_ref().map(|result| result.text());
    let input: u64 = run.started.spec.input.text().parse().unwrap_or_default();
    // A trip may begin anew, with less to do.
    let given = if *run.started.spec.workflow == *"trip" { input % AGAIN } else { input };
    if run.status() == Status::Done && result.and_then(|text| text.parse().ok()) != Some(given) {
        return Err(format!("was given {given}, and ended with {result:?}"));
    }
    for fact in told.rows.iter().flat_map(|row| &row.facts) {
        let error = match fact {
            Fact::Failed(failed) => &failed.error,
            Fact::DeadLettered(letter) => &letter.reason,
            Fact::Ended(ended) => match &ended.error {
                Some(error) => error,
                None => continue,
            },
            _ => continue,
        };
        if !EXPECTED.contains(&&*error.code) {
            return Err(format!("met {:?}, which nobody drew: {}", error.code, error.message));
        }
    }
    Ok(())
}
