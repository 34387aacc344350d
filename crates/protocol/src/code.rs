//! The codes of problems: a stable word each, with its HTTP status, and what to do. Each has a page under `docs/errors`.

use serde::Serialize;

/// What a problem may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Code {
    /// The stable word.
    #[serde(rename = "code")]
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What it is, in a few words that are the same every time.
    pub title: &'static str,
    /// What to do about it.
    pub what_to_do: &'static str,
}

impl Code {
    /// What a word stands for. One that is not known here is a failure of ours.
    #[must_use]
    pub fn of(name: &str) -> &'static Self {
        let find = |name: &str| CODES.iter().find(|code| code.name == name);
        find(name).or_else(|| find("internal")).expect("the table has an entry for failures of ours")
    }
}

const fn code(name: &'static str, status: u16, title: &'static str, what_to_do: &'static str) -> Code {
    Code { name, status, title, what_to_do }
}

/// Every code: those of the kernel's refusals first, then those of the protocol itself.
pub const CODES: &[Code] = &[
    code(
        "not_found",
        404,
        "There is no such thing here",
        "check the id and the namespace; what belongs to another namespace is not here",
    ),
    code("run_over", 409, "The run has ended", "start another run; what ended stays as it is"),
    code("run_open", 409, "The run has not ended", "wait for its end, or cancel it first"),
    code(
        "stale_claim",
        409,
        "The claim is not the current one",
        "give the attempt up: another worker has it, or it is over",
    ),
    code("wrong_token", 409, "The token does not belong to the claim", "send the token that this claim was made with"),
    code("attempt_not_visible", 409, "The attempt may not be claimed yet", "claim it when it is due"),
    code("active_claim", 409, "The attempt is held by another", "wait until its lease ends"),
    code("result_not_completed", 409, "The attempt has not completed", "complete it first"),
    code(
        "lease_expired",
        409,
        "The lease had ended",
        "give the attempt up: the step runs again; send heartbeats in time",
    ),
    code(
        "conflicting_completion",
        409,
        "The attempt was completed with another result",
        "keep the first result: it stands",
    ),
    code("stale_token", 409, "The wait is over", "nothing: what it waited for has come"),
    code(
        "too_large",
        413,
        "Something is larger than its limit",
        "send less: keep large data elsewhere and pass a reference",
    ),
    code("busy", 429, "A bounded place is full", "send the same request again later"),
    code("invalid", 422, "A value is not acceptable", "correct the field that is named and send it again"),
    code("child_conflict", 409, "The child's key belongs to another child", "use another key for another child"),
    code("not_dead_lettered", 409, "The run is not a dead letter", "look at the run: somebody may have requeued it"),
    code("in_doubt", 409, "Nobody knows whether the effect happened", "find out, and resolve the effect"),
    code("cancelling", 409, "The run is being cancelled", "wait until it has undone what it did"),
    code("no_effect", 404, "The run has no such effect", "list the run's effects"),
    code("not_in_doubt", 409, "The effect is not in doubt", "nothing: what became of it is recorded"),
    code(
        "wrong_interrupt",
        409,
        "The answer is for another interrupt",
        "look at the effect again and name the interrupt it has now",
    ),
    code("not_approved", 409, "The effect is not approved", "have it approved first"),
    code("effect_ended", 409, "The effect has ended", "nothing: what was recorded stands"),
    code("second_boundary", 409, "A person is asked already", "wait until that is decided"),
    code(
        "stale_boundary",
        409,
        "The run does not wait at this boundary",
        "look at the run: it went on, or asks something else",
    ),
    code("already_decided", 409, "It was decided before", "nothing: that decision stands"),
    code("decision_late", 409, "The time for the decision was over", "look at the run: it went on without it"),
    code("not_assignee", 409, "It is somebody else's", "ask them, or take it over if you may"),
    code("wrong_role", 403, "None of the roles given is asked for", "act in one of the roles that are named"),
    code("unanswered", 409, "The run ended without answering", "look at how the run ended"),
    code("no_letter", 404, "There is no such dead letter", "list the dead letters: it was settled before"),
    code("corrupt", 500, "The stored record is damaged", "run abide store check; other runs go on"),
    code(
        "unknown",
        503,
        "The outcome is not known",
        "send the same request again with the same Idempotency-Key; look first what came of a purge, requeue, discard or settle, which may have been done",
    ),
    code("closed", 503, "The engine stops", "send the same request again, to another node or after the restart"),
    code(
        "key_taken",
        409,
        "The business key is taken",
        "use another key, or on_conflict reuse to get the run that has it",
    ),
    code(
        "other_input",
        409,
        "The run that has the key was started with other input",
        "use another key for another input",
    ),
    code("update_rejected", 409, "The run said no to the update", "read its error; the same key gets the same answer"),
    code("no_updates", 409, "The workflow takes no updates", "send it a signal, and read its state"),
    code(
        "unauthenticated",
        401,
        "Nobody is known by this token",
        "send Authorization: Bearer with a token of abide token create",
    ),
    code(
        "login_failed",
        401,
        "The name or the password is not right",
        "try again with the right ones; abide user password gives a user another password",
    ),
    code(
        "too_many_logins",
        429,
        "The name was tried too often, or too many log in",
        "wait as long as Retry-After says, and try again",
    ),
    code(
        "bad_csrf_token",
        403,
        "The request does not come from a page of ours",
        "send X-CSRF-Token as GET /v1/session gives it, or a token of abide token create instead of the cookie",
    ),
    code("user_exists", 409, "There is a user of that name", "choose another name, or change that user's password"),
    code("forbidden", 403, "The token does not allow it", "use a token with the scope that is named"),
    code("no_route", 404, "There is no such path", "look at /v1/openapi.json for the paths there are"),
    code("method_not_allowed", 405, "The path knows other methods", "use a method that the Allow header names"),
    code("unsupported_media_type", 415, "The body is not said to be JSON", "send Content-Type: application/json"),
    code("malformed", 400, "The body cannot be read", "send one JSON document of the shape that /v1/openapi.json has"),
    code("too_deep", 400, "The body is nested too deeply", "send flatter data, or send it as text inside of a string"),
    code("bad_query", 400, "A parameter of the query cannot be read", "correct the parameter that is named"),
    code("bad_id", 400, "An id in the path cannot be read", "copy the id as it was given"),
    code(
        "bad_idempotency_key",
        400,
        "The idempotency key cannot be read",
        "make a UUID of version 7 for each request, and keep it for its retries",
    ),
    code(
        "bad_host",
        421,
        "The request was meant for another host",
        "use 127.0.0.1 or localhost: without login nobody else is answered",
    ),
    code(
        "cross_site",
        403,
        "A page of another site asks",
        "use a page of this server, or a program; the pages of others change nothing here",
    ),
    code("request_timeout", 408, "The body did not arrive in time", "send the same request again"),
    code(
        "rate_limited",
        429,
        "The token asks too often",
        "wait as long as Retry-After says, and ask less often; GET /v1/limits says how often",
    ),
    code(
        "bad_request",
        400,
        "What came is not HTTP",
        "send a request as HTTP/1.1 or HTTP/2 has it; a client library does",
    ),
    code(
        "uri_too_long",
        414,
        "The path and its query are too long",
        "ask for less at once: fewer filters, or shorter ones",
    ),
    code(
        "headers_too_large",
        431,
        "The headers are too many or too large",
        "send fewer and smaller ones: cookies of other sites on this host are the usual cause",
    ),
    code(
        "too_many_connections",
        503,
        "There are too many connections",
        "close those that are not needed, and connect again later",
    ),
    code(
        "store_unavailable",
        503,
        "The store cannot be read or written",
        "look after the store; then send the same request again",
    ),
    code("internal", 500, "The server failed", "report it with the server's log; the request may be sent again"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the kernel's refusals, as its source has them.
    fn refusals() -> impl Iterator<Item = &'static str> {
        let source = include_str!("../../kernel/src/refusal.rs");
        let (_, from) = source.split_once("pub fn code(&self)").unwrap();
        let (table, _) = from.split_once("\n    }\n").unwrap();
        table.lines().filter_map(|line| line.split('"').nth(1))
    }

    /// GD-53: every refusal has a code of its own, and a code is in the table once.
    #[test]
    fn every_refusal_has_a_code() {
        assert!(refusals().count() > 30);
        for name in refusals() {
            assert_eq!(Code::of(name).name, name);
        }
        for (index, code) in CODES.iter().enumerate() {
            assert!(CODES[..index].iter().all(|other| other.name != code.name), "{}", code.name);
            assert!((400..600).contains(&code.status), "{}", code.name);
        }
        assert_eq!(Code::of("never heard").name, "internal");
    }

    /// A page per code, and no page without one.
    #[test]
    fn every_code_has_a_page() {
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        let mut found: Vec<String> = std::fs::read_dir(pages)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".md").to_owned())
            .collect();
        found.sort();
        let mut expected: Vec<&str> = CODES.iter().map(|code| code.name).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        for code in CODES {
            let page = std::fs::read_to_string(format!("{pages}/{}.md", code.name)).unwrap();
            assert!(page.starts_with(&format!("# {}\n", code.name)), "{}", code.name);
            assert!(page.contains(&format!("HTTP {}", code.status)), "{}", code.name);
        }
    }
}
