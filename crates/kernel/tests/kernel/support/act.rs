//! Short words for what workers and clients do, so that a test reads as its story.

use std::sync::Arc;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::signal::Sent;
use abide_kernel::{
    ChildSpec, Concurrency, Consume, ErrorInfo, Join, OnConflict, Outcome, Payload, RequestId, Run, RunId, StartSpec,
    StatusSet, UniqueKey,
};

use super::{World, token};

pub fn payload(text: &str) -> Payload {
    Payload::parse(text).expect("json")
}

pub fn flow() -> StartSpec {
    StartSpec::new("flow", payload("{}"))
}

pub fn keyed(key: &str) -> StartSpec {
    StartSpec {
        key: Some(UniqueKey { key: key.into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reject }),
        ..flow()
    }
}

pub fn limited(key: &str) -> StartSpec {
    StartSpec { concurrency: Some(Concurrency { key: key.into(), limit: 1 }), ..flow() }
}

pub fn next(step: &str) -> Outcome {
    Outcome::Next { step: step.into(), state: payload("{}") }
}

pub fn awaiting(name: &str) -> Outcome {
    Outcome::Await { signals: vec![name.into()], then: None, deadline: None, state: payload("{}") }
}

pub fn sleeping(ms: u64) -> Outcome {
    Outcome::Sleep { until: abide_kernel::Moment::In(ms), then: None, state: payload("{}") }
}

pub fn done() -> Outcome {
    Outcome::Done { result: payload("{}") }
}

pub fn spawn(children: Vec<StartSpec>) -> Outcome {
    Outcome::Spawn {
        children: children.into_iter().map(|spec| ChildSpec { spec }).collect(),
        then: "joined".into(),
        join: Join::AllTerminal,
        deadline: None,
        state: payload("{}"),
    }
}

/// A completion of the run's last dispatch.
pub fn completing(world: &World, run: RunId, outcome: Outcome) -> Completing {
    let dispatch = &world.dispatches[&run];
    let name = &world.hands[dispatch.worker.0 as usize].name;
    Completing {
        claim: dispatch.claim.number,
        token: token(name),
        outcome: Arc::new(outcome),
        consume: Consume::Presented,
        error: None,
        compact_after: None,
        entries: Vec::new(),
    }
}

pub fn complete(world: &World, run: RunId, outcome: Outcome) -> Command {
    Command::Complete { run, completing: completing(world, run, outcome) }
}

pub fn signal(run: RunId, name: &str, request: RequestId) -> Command {
    Command::Signal { run, sent: Box::new(Sent { name: name.into(), payload: Payload::null(), dedup: None, request }) }
}

pub fn start(request: RequestId, spec: StartSpec) -> Command {
    Command::Start { request, spec: Box::new(spec) }
}

pub fn cancel(run: RunId, request: RequestId, cascade: bool) -> Command {
    Command::Cancel { run, request, cascade, reason: Arc::new(ErrorInfo::terminal("cancelled", "by a person")) }
}

/// The run as it is shown to a caller.
pub fn show(world: &mut World, run: RunId) -> Run {
    match world.ask(Command::Show { run }) {
        Answer::Run(run, _) => *run,
        other => panic!("expected the run, found {other:?}"),
    }
}
