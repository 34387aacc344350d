//! Problems: how a server says no (RFC 9457), with a stable code, what was expected, what was found, and what to do.

use abide_kernel::{Refusal, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Code, Error};

/// Where the pages about codes are.
const PAGES: &str = "https://github.com/abide-rs/abide/blob/main/docs/errors/";

/// Why a request was not carried out: the body of every answer that is an error, as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The page about this kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem in a few words, the same every time.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable word for this kind of problem.
    pub code: String,
    /// What happened this time.
    pub detail: String,
    /// What was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What was found instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What to do about it.
    pub what_to_do: String,
    /// The run in question, where the request did not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::shape::Run>")]
    pub run: Option<RunId>,
    /// The error that a run answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

impl Problem {
    /// The media type of problems.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// A problem of a known kind.
    #[must_use]
    pub fn new(code: &str, detail: impl Into<String>) -> Self {
        let code = Code::of(code);
        Self {
            kind: format!("{PAGES}{}.md", code.name),
            title: code.title.into(),
            status: code.status,
            code: code.name.into(),
            detail: detail.into(),
            expected: None,
            found: None,
            what_to_do: code.what_to_do.into(),
            run: None,
            error: None,
        }
    }

    /// Says what was expected, and what was found.
    #[must_use]
    pub fn but(mut self, expected: impl Into<String>, found: impl Into<String>) -> Self {
        (self.expected, self.found) = (Some(expected.into()), Some(found.into()));
        self
    }

    /// Names the run in question.
    #[must_use]
    pub fn about(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// Something that is not here, whatever it is elsewhere.
    #[must_use]
    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new("not_found", format!("there is no {what} in this namespace"))
    }
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        // The words for a run that is missing are the same whether it is nowhere or in another namespace.
        if let Refusal::NotFound { run } = refusal {
            return Self::not_found(run);
        }
        let problem = Self::new(refusal.code(), refusal.to_string());
        match expectation(refusal) {
            Some((expected, found)) => problem.but(expected, found),
            None => problem,
        }
    }
}

/// What a refusal expected and what it found, where it is about a value.
fn expectation(refusal: &Refusal) -> Option<(String, String)> {
    let number = |number: &Option<u32>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
    Some(match refusal {
        Refusal::Invalid { expected, found, .. } => (expected.clone(), found.clone()),
        Refusal::TooLarge { what, limit, found } => (format!("{what} of at most {limit}"), found.to_string()),
        Refusal::RunOver { status, .. } => ("a run that is open".into(), status.to_string()),
        Refusal::RunOpen { status, .. } => ("a run that has ended".into(), status.to_string()),
        Refusal::StaleClaim { claim, current } => (format!("claim {}", number(current)), format!("claim {claim}")),
        Refusal::WrongInterrupt { given, current } => (current.to_string(), number(given)),
        Refusal::StaleBoundary { op, current } => (number(current), op.to_string()),
        Refusal::NotDeadLettered { status, .. } => ("dead_lettered".into(), status.to_string()),
        Refusal::NotInDoubt { found, .. } => ("in_doubt".into(), found.to_string()),
        Refusal::NotAssignee { assignee, .. } => (assignee.to_string(), "somebody else".into()),
        Refusal::WrongRole { roles, .. } => (roles.join(" or "), "none of them".into()),
        Refusal::Busy { what, limit } => (format!("fewer than {limit} in {what}"), limit.to_string()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use abide_kernel::Status;

    use super::*;

    #[test]
    fn a_refusal_says_what_was_expected_what_was_found_and_what_to_do() {
        let refusal = Refusal::RunOver { run: RunId(7), status: Status::Done };
        let problem = Problem::from(&refusal);
        assert_eq!((problem.status, problem.code.as_str()), (409, "run_over"));
        assert_eq!(problem.expected.as_deref(), Some("a run that is open"));
        assert_eq!(problem.found.as_deref(), Some("done"));
        assert!(problem.kind.ends_with("docs/errors/run_over.md"));
        assert!(!problem.what_to_do.is_empty());
        let text = serde_json::to_string(&problem).unwrap();
        assert!(text.contains("\"type\":") && !text.contains("\"run\":"), "{text}");
    }
}
