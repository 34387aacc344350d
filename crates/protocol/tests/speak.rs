//! What a worker in Rust says and is given comes over the network as it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;

use abide_kernel::transition::manual::Asking;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    ChildSpec, Choice, ErrorInfo, Join, ManualKind, Moment, OnTimeout, Outcome, Payload, Policy, Reply, StartSpec,
    Status, StatusSet, Timestamp, UniqueKey,
};
use abide_protocol as wire;
use serde_json::json;

const NOW: Timestamp = Timestamp(1_794_000_000_000);

fn payload(value: &serde_json::Value) -> Payload {
    Payload::encode(value).unwrap()
}

fn error() -> Arc<ErrorInfo> {
    let mut info = ErrorInfo::retryable("shy", "not now");
    info.details = Some(payload(&json!({"at": 7})));
    Arc::new(info)
}

/// A start with everything that a worker may say of a child.
fn start() -> StartSpec {
    let mut spec = StartSpec::new("note", payload(&json!([1, "ж"])));
    spec.version = 3;
    spec.queue = "slow".into();
    spec.priority = -2;
    spec.key = Some(UniqueKey {
        key: "17".into(),
        occupied: StatusSet::of(&[Status::Done, Status::Runnable]),
        on_conflict: abide_kernel::OnConflict::Reuse,
    });
    spec.concurrency = Some(abide_kernel::Concurrency { key: "shop".into(), limit: 2 });
    spec.eligible_at = Some(NOW.after(5));
    spec.deadline = Some(NOW.after(60_000));
    spec.labels = vec![("shop".into(), "north".into())];
    spec.deliveries_max = Some(4);
    spec
}

/// What a server makes of a start that travels.
fn arrived(start: wire::Start) -> StartSpec {
    let mut spec = StartSpec::new(&start.workflow, start.input);
    spec.version = start.version.unwrap_or(1);
    spec.queue = start.queue.map_or_else(|| "default".into(), Into::into);
    spec.priority = start.priority;
    spec.key = start.key.map(|key| UniqueKey {
        key: key.into(),
        occupied: if start.occupied.is_empty() { StatusSet::OPEN } else { StatusSet::of(&start.occupied) },
        on_conflict: match start.on_conflict {
            wire::OnConflict::Reject => abide_kernel::OnConflict::Reject,
            wire::OnConflict::Reuse => abide_kernel::OnConflict::Reuse,
        },
    });
    let concurrency =
        |known: wire::Concurrency| abide_kernel::Concurrency { key: known.key.into(), limit: known.limit };
    spec.concurrency = start.concurrency.map(concurrency);
    spec.eligible_at = start.eligible_at.map(|at| at.0);
    spec.deadline = start.deadline_ms.map(|ms| NOW.after(ms));
    spec.labels = start.labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    spec.deliveries_max = start.deliveries_max;
    spec
}

/// The same message, read from its text.
fn sent<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
    serde_json::from_str(&serde_json::to_string(message).unwrap()).unwrap()
}

/// AB-19: every outcome.
#[test]
fn outcomes_arrive_as_they_were() {
    let state = || payload(&json!({"a": null, "b": 1.5}));
    let signals = vec!["go".into(), "stop".into()];
    let children = vec![ChildSpec { spec: start() }, ChildSpec { spec: StartSpec::new("plain", state()) }];
    let spawn = |join| Outcome::Spawn {
        children: children.clone(),
        then: "sum".into(),
        join,
        deadline: Some(Moment::In(9)),
        state: state(),
    };
    let all = [
        Outcome::Next { step: "pack".into(), state: state() },
        Outcome::Replay { state: state(), delay_ms: 7 },
        Outcome::Await { signals, then: Some("on".into()), deadline: Some(Moment::At(NOW)), state: state() },
        Outcome::Sleep { until: Moment::In(1_000), then: None, state: state() },
        spawn(Join::AllTerminal),
        spawn(Join::AllSucceeded),
        spawn(Join::Any),
        spawn(Join::Quorum(2)),
        Outcome::Suspend { seen: 3 },
        Outcome::Done { result: state() },
        Outcome::Done { result: Payload::null() },
        Outcome::Cancelled,
        Outcome::Stop { error: (*error()).clone() },
        Outcome::ContinueAsNew { input: state() },
    ];
    for outcome in all {
        let told = sent(&wire::Outcome::of(outcome.clone(), NOW));
        assert_eq!(told.into_kernel(arrived), outcome);
    }
}

/// AB-19: every entry of a ledger that a step writes.
#[test]
fn entries_arrive_as_they_were() {
    let asking = Asking {
        payload: payload(&json!("who?")),
        roles: vec!["finance".into()],
        assignee: Some("ada".into()),
        deadline: Some(Moment::In(4)),
        on_timeout: OnTimeout::Decide { choice: Choice::Reject, payload: payload(&json!(1)) },
        ..Asking::new(ManualKind::Approval)
    };
    let wanted = [
        Wanted::Effect(Policy::UnsafeOnce),
        Wanted::Reviewed { policy: Policy::Reconcile, review: 2 },
        Wanted::Undo(Policy::Idempotent),
        Wanted::Timer(Moment::At(NOW)),
        Wanted::Signal { name: "go".into(), deadline: Some(Moment::In(3)) },
        Wanted::Update { name: "double".into(), deadline: None },
        Wanted::Child(Box::new(start())),
        Wanted::Patch { at: NOW },
        Wanted::Manual(Box::new(asking)),
        Wanted::Manual(Box::new(Asking::new(ManualKind::Task))),
    ];
    let intents =
        (1..).zip(wanted).map(|(op, what)| Entry::Intend { op, key: "key#2".into(), input: u64::from(op) - 1, what });
    let rest = [
        Entry::End { op: 1, outcome: Ok(Payload::null()), at: NOW },
        Entry::End { op: 1, outcome: Ok(payload(&json!({"a": 1}))), at: NOW },
        Entry::End { op: 1, outcome: Err(error()), at: NOW },
        Entry::Again { op: 2, error: error(), delay_ms: 40 },
        Entry::See { op: 3 },
        Entry::Withdraw { op: 4 },
        Entry::WaitAgain { op: 4 },
        Entry::Answer { op: 5, reply: Reply::Value(payload(&json!(2))), unread: false },
        Entry::Answer { op: 5, reply: Reply::Rejected(error()), unread: true },
        Entry::Publish { state: payload(&json!("seen")) },
    ];
    for entry in intents.chain(rest) {
        let told = sent(&wire::Entry::of(entry.clone(), NOW));
        assert_eq!(told.into_kernel(arrived).unwrap(), entry);
    }
}

/// AB-19: version 1 is a version like any other. It was left out, and the server took the newest.
#[test]
fn the_version_that_was_said_is_sent() {
    let said = |version| {
        let mut spec = StartSpec::new("note", Payload::null());
        spec.version = version;
        sent(&wire::Start::of(spec, NOW)).version
    };
    assert_eq!([said(1), said(2), said(wire::UNSAID)], [Some(1), Some(2), None]);
}
