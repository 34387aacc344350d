//! What was asked by SQL as commands, and what they were answered as whoever asked is told.

use std::sync::Arc;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{
    Concurrency, ErrorInfo, OnConflict, Payload, Refusal, RequestId, RunId, Slot, StartSpec, StatusSet, Str, Timestamp,
    UniqueKey,
};
use abide_store::intake::{Answered, Asked};
use serde::Deserialize;

use crate::driver::Shared;

pub(super) const ACCEPTED: &str = "accepted";

/// What a start is asked with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Starting {
    workflow: Str,
    key: Option<Str>,
    #[serde(default)]
    on_conflict: OnConflict,
    version: Option<u32>,
    queue: Option<Str>,
    namespace: Option<Str>,
    #[serde(default)]
    priority: i32,
    not_before: Option<Timestamp>,
    deadline: Option<Timestamp>,
    concurrency_key: Option<Str>,
    concurrency_limit: Option<u32>,
    #[serde(default)]
    labels: std::collections::BTreeMap<Str, Str>,
}

/// What a signal is asked with, besides its run.
#[derive(Deserialize)]
struct Signalling {
    name: Str,
    dedup: Option<Str>,
}

/// What a cancellation is asked with, besides its run.
#[derive(Deserialize)]
struct Cancelling {
    reason: String,
    cascade: bool,
}

/// How a run is named.
pub(super) enum Named {
    Run(RunId),
    Started(RequestId),
}

/// The run that something is asked of.
pub(super) fn named_run(asked: &Asked) -> Result<Option<Named>, String> {
    #[derive(Deserialize)]
    struct Of {
        run: Option<String>,
    }
    let of: Of = serde_json::from_str(&asked.asked).map_err(|error| error.to_string())?;
    let Some(text) = of.run else { return Ok(None) };
    let named = if text.starts_with("req_") { text.parse().map(Named::Started) } else { text.parse().map(Named::Run) };
    named.map(Some).map_err(|bad| bad.to_string())
}

/// The command that was asked for, and where it goes.
pub(super) fn command(
    shared: &Shared,
    asked: &Asked,
    about: Option<RunId>,
) -> Result<(Slot, Command), (&'static str, String)> {
    let invalid = |error: serde_json::Error| ("invalid", error.to_string());
    let request = asked.request;
    let payload: Payload = serde_json::from_str(&asked.payload).map_err(invalid)?;
    let run = about.ok_or_else(|| ("invalid", "expected a run, found none".to_owned()));
    match asked.what.as_str() {
        "start" => {
            let starting: Starting = serde_json::from_str(&asked.asked).map_err(invalid)?;
            let version = starting.version;
            let mut spec = spec(starting, payload);
            if shared.programs.plan(&mut spec, version).is_err() {
                let newest = shared.core.lock().desk.newest(&spec.namespace, &spec.workflow);
                if newest.is_none() && !shared.any_workflow {
                    // A host before this one may have known it, and started it.
                    let run = spec.run_id(request);
                    return Ok((run.slot(), Command::Show { run }));
                }
                spec.version = version.or(newest).unwrap_or(spec.version);
            }
            Ok((spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) }))
        }
        "signal" => {
            let Signalling { name, dedup, .. } = serde_json::from_str(&asked.asked).map_err(invalid)?;
            let run = run?;
            Ok((run.slot(), Command::Signal { run, sent: Box::new(Sent { name, payload, dedup, request }) }))
        }
        "cancel" => {
            let Cancelling { reason, cascade, .. } = serde_json::from_str(&asked.asked).map_err(invalid)?;
            let run = run?;
            let reason = Arc::new(ErrorInfo::terminal("cancelled", &reason));
            Ok((run.slot(), Command::Cancel { run, request, cascade, reason }))
        }
        other => Err(("invalid", format!("expected start, signal or cancel, found {other:?}"))),
    }
}

fn spec(starting: Starting, input: Payload) -> StartSpec {
    let mut spec = StartSpec::new(&starting.workflow, input);
    let conflict = starting.on_conflict;
    spec.key = starting.key.map(|key| UniqueKey { key, occupied: StatusSet::OPEN, on_conflict: conflict });
    spec.namespace = starting.namespace.unwrap_or(spec.namespace);
    spec.queue = starting.queue.unwrap_or(spec.queue);
    spec.priority = starting.priority;
    spec.eligible_at = starting.not_before;
    spec.deadline = starting.deadline;
    let concurrency = starting.concurrency_key.zip(starting.concurrency_limit);
    spec.concurrency = concurrency.map(|(key, limit)| Concurrency { key, limit });
    spec.labels = starting.labels.into_iter().collect();
    spec
}

/// The answer as it is noted; nothing when nobody knows, or nobody is there to decide.
pub(super) fn answered(request: RequestId, about: Option<RunId>, answer: Answer) -> Option<Answered> {
    let accepted = |run| Answered { request, run, code: ACCEPTED.into(), message: None };
    Some(match answer {
        Answer::Started(StartAnswer::Created(run) | StartAnswer::Reused(run)) => accepted(Some(run)),
        Answer::Started(StartAnswer::Rejected { by, reason }) => {
            refused(request, Some(by), reason.name(), format!("the key is taken by {by}"))
        }
        Answer::Refused(Refusal::Unknown | Refusal::Closed { .. }) => return None,
        Answer::Run(run, _) => accepted(Some(run.id)),
        Answer::Refused(Refusal::NotFound { .. }) if about.is_none() => {
            let known = "the node that takes in what is asked by SQL has no workflow of that name and version";
            refused(request, None, "unknown_workflow", known.into())
        }
        Answer::Refused(refusal) => refused(request, about, refusal.code(), refusal.to_string()),
        _ => accepted(about),
    })
}

pub(super) fn refused(request: RequestId, run: Option<RunId>, code: &str, message: String) -> Answered {
    Answered { request, run, code: code.into(), message: Some(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-7: whoever signals a run whose inbox is full is told; what nobody knows, and what nobody is there to decide, is asked
    /// again.
    #[test]
    fn a_full_inbox_is_an_answer_and_a_closed_engine_is_none() {
        let (request, run) = (RequestId(1), RunId(2));
        let said = |refusal| answered(request, Some(run), Answer::Refused(refusal));
        let busy = said(Refusal::Busy { what: "the run's inbox".into(), limit: 10 }).unwrap();
        assert_eq!((busy.run, busy.code.as_str()), (Some(run), "busy"));
        assert_eq!(busy.message.unwrap(), "the run's inbox is full (10); try again later");
        assert_eq!(said(Refusal::Unknown), None);
        assert_eq!(said(Refusal::Closed { reason: "the store is gone".into() }), None);
    }

    fn asked(what: &str, asked: String, payload: &str) -> Asked {
        Asked { request: RequestId(1 << 64), what: what.into(), asked, payload: payload.into() }
    }

    /// A text with another byte, less or more in one place, as far as it is text.
    fn changes(text: &str) -> impl Iterator<Item = String> {
        let put =
            |at: usize, with: &[u8], from: usize| [&text.as_bytes()[..at], with, &text.as_bytes()[from..]].concat();
        let changed = (0..text.len()).flat_map(move |at| {
            let others =
                [&b"9"[..], b"-", b"\"", b"[", b"}", b"\0", b"1e400", b"99999999999999999999", b"\\ud800", b"null"];
            let others = others.map(|with| put(at, with, at + 1));
            let pieces = [put(at, b"", text.len()), put(at, b"", (at + 9).min(text.len())), put(at + 1, b"", at)];
            others.into_iter().chain(pieces)
        });
        changed.filter_map(|bytes| String::from_utf8(bytes).ok())
    }

    /// AB-7: whoever has the tables may write anything into them. What cannot be read is answered as invalid, and what can is a
    /// command that the engine answers; neither harms anything.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_asked_by_sql_is_a_command_or_invalid() {
        let config = crate::Config { any_workflow: true, ..crate::Config::default() };
        let engine = crate::Engine::open(Box::new(abide_store::memory::MemoryStore::new(1)), config).unwrap();
        let run = RunId(0x0198_0000_0000_7000_8000_0000_0000_0000);
        let start = r#"{"workflow":"parcel","key":"k","on_conflict":"reuse","version":1,"queue":"q","namespace":"n",
            "priority":-1,"not_before":2000,"deadline":3000,"concurrency_key":"c","concurrency_limit":2,"labels":{"a":"b"}}"#;
        let signal = format!(r#"{{"run":"{run}","name":"go","dedup":"d"}}"#);
        let cancel = format!(r#"{{"run":"{run}","reason":"enough","cascade":true}}"#);
        let (mut invalid, mut given) = (0, 0);
        for (what, text) in [("start", start.to_owned()), ("signal", signal), ("cancel", cancel)] {
            let whole = asked(what, text.clone(), "{}");
            let about = |asked: &Asked| match named_run(asked) {
                Ok(Some(Named::Run(run))) => Some(run),
                Ok(Some(Named::Started(_)) | None) | Err(_) => None,
            };
            command(&engine.shared, &whole, about(&whole)).expect("nothing is wrong with it");
            let changed = changes(&text).map(|text| asked(what, text, "{}"));
            for asked in changed.chain(changes(r#"{"a":[1,"b"]}"#).map(|payload| asked(what, text.clone(), &payload))) {
                match command(&engine.shared, &asked, about(&asked)) {
                    Ok((slot, command)) => {
                        given += 1;
                        let answer = engine.ask(slot, command).await.unwrap();
                        assert!(answered(asked.request, None, answer).is_some(), "{asked:?}");
                    }
                    Err((code, _)) => {
                        invalid += 1;
                        assert_eq!(code, "invalid", "{asked:?}");
                    }
                }
            }
        }
        assert!(given > 100 && invalid > 1_000, "given {given}, invalid {invalid}");
    }
}
