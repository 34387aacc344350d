//! A run that waits for a person: what is asked, of whom, and the words that answer it.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::{Explanation, Reason, duration, told};
use crate::{Manual, ManualKind, Run, Timestamp};

pub(super) fn explain(run: &Run, manual: &Manual, now: Timestamp) -> Explanation {
    let asked = &manual.asked;
    let id = run.boundary_id(manual);
    let whom = match (&manual.assignee, asked.roles.is_empty()) {
        (Some(assignee), _) => format!(" by {assignee}"),
        (None, true) => String::new(),
        (None, false) => format!(" by role {}", asked.roles.join(" or ")),
    };
    let since = duration(now.since(manual.at()));
    let until = asked
        .until
        .map_or_else(String::new, |until| format!(", for {} more at the longest", duration(until.since(now))));
    let what = match asked.reviews() {
        Some(effect) => format!("a review of effect {effect:?}"),
        None => format!("{} {:?}", asked.kind, asked.key),
    };
    let sentence = format!("{} waits for {what}{whom} since {since}{until}", asked.step);
    let mut explanation = told(Reason::AwaitingDecision(id), sentence, actions(run, manual));
    explanation.note("boundary", id);
    explanation.note("boundary_kind", asked.kind);
    asked.reviews().into_iter().for_each(|effect| explanation.note("effect", effect));
    manual.assignee.iter().for_each(|assignee| explanation.note("assignee", assignee));
    if !asked.roles.is_empty() {
        explanation.note("roles", asked.roles.join(" "));
    }
    asked.until.iter().for_each(|until| explanation.note("decide_until_ms", until.0));
    explanation
}

/// The commands that move the run, with what is known of who may give them.
fn actions(run: &Run, manual: &Manual) -> Vec<String> {
    let id = run.boundary_id(manual);
    let role = manual.asked.roles.first().map_or_else(String::new, |role| format!(" --role {role}"));
    let by = manual.assignee.as_deref().unwrap_or("NAME");
    match manual.asked.kind {
        ManualKind::Pause => vec![format!("abide run resume {id} --as {by}{role}")],
        ManualKind::Approval => vec![
            format!("abide approval approve {id} --as {by}{role}"),
            format!("abide approval reject {id} --as {by}{role}"),
        ],
        ManualKind::Task => {
            let claim = manual.assignee.is_none().then(|| format!("abide task claim {id} --as {by}{role}"));
            let complete = format!("abide task complete {id} --as {by}{role} --result JSON");
            claim.into_iter().chain([complete]).collect()
        }
    }
}
