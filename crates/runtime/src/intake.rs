//! Intake: what was asked by SQL becomes commands like any other, given by the node that owns the host shard. Each carries
//! the request id it was noted with: taken in twice, it is done once, and answered as it was the first time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{
    Concurrency, ErrorInfo, OnConflict, Payload, Refusal, RequestId, RunId, ShardEpoch, Slot, StartSpec, StatusSet,
    Str, Timestamp, UniqueKey,
};
use abide_store::intake::{Answered, Asked, HOST};
use abide_store::{Fault, Intake, Verdict};
use serde::Deserialize;

use crate::driver::Shared;

/// How many requests are taken in together.
const AT_ONCE: usize = 256;
/// How long it is left alone after something went wrong.
const AGAIN: Duration = Duration::from_millis(250);
/// How often the tables are looked after.
const UPKEEP: Duration = Duration::from_secs(6 * 3_600);

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

/// Takes in until the engine stops.
pub(crate) fn take_in(shared: &Arc<Shared>, mut intake: Box<dyn Intake>) {
    let mut kept: Option<(ShardEpoch, Instant)> = None;
    while !shared.is_stopping() {
        let Some(epoch) = shared.hosts() else {
            // Rung when the shard is taken, or the engine stops.
            intake.wait(None);
            continue;
        };
        if kept.is_none_or(|(known, at)| known != epoch || at.elapsed() >= UPKEEP) {
            if let Err(fault) = intake.upkeep(epoch) {
                tracing::warn!(%fault, "the tables could not be looked after; it is tried again later");
            }
            kept = Some((epoch, Instant::now()));
        }
        match round(shared, intake.as_mut(), epoch) {
            Ok(Took::All) => intake.wait(Some(UPKEEP)),
            Ok(Took::Some) => {}
            Ok(Took::Later) => intake.wait(Some(AGAIN)),
            Err(fault) => {
                tracing::warn!(%fault, "what was asked by SQL could not be taken in; it is tried again");
                intake.wait(Some(AGAIN));
            }
        }
    }
}

/// What a round left.
enum Took {
    /// Nothing.
    All,
    /// Perhaps something.
    Some,
    /// Something that has no answer yet.
    Later,
}

fn round(shared: &Arc<Shared>, intake: &mut dyn Intake, epoch: ShardEpoch) -> Result<Took, Fault> {
    let asked = intake.read(AT_ONCE)?;
    if asked.is_empty() {
        return Ok(Took::All);
    }
    let mut taking = Taking { shared, answers: Vec::with_capacity(asked.len()), given: Vec::new() };
    for one in &asked {
        taking.take(intake, one)?;
    }
    taking.give();
    let answers = taking.answers;
    let all = answers.len() == asked.len();
    let verdict = intake.answer(epoch, &answers, all)?;
    Ok(match verdict {
        Verdict::Durable if all => Took::Some,
        Verdict::Durable | Verdict::Stale => Took::Later,
    })
}

/// A round that is under way.
struct Taking<'a> {
    shared: &'a Arc<Shared>,
    answers: Vec<Answered>,
    /// Commands that are given together.
    given: Vec<(RequestId, Option<RunId>, Slot, Command)>,
}

impl Taking<'_> {
    /// Makes a command of what was asked, or says why there is none.
    fn take(&mut self, intake: &mut dyn Intake, asked: &Asked) -> Result<(), Fault> {
        let request = asked.request;
        let about = match named_run(asked) {
            Ok(None) => None,
            Ok(Some(Named::Run(run))) => Some(run),
            Ok(Some(Named::Started(by))) => match self.started(intake, by)? {
                Some(run) => Some(run),
                None => {
                    let found = format!("expected a request that started a run, found {by}");
                    self.answers.push(refused(request, None, "not_found", found));
                    return Ok(());
                }
            },
            Err(problem) => {
                self.answers.push(refused(request, None, "invalid", problem));
                return Ok(());
            }
        };
        match command(self.shared, asked, about) {
            Ok((slot, command)) => self.given.push((request, about, slot, command)),
            Err((code, problem)) => self.answers.push(refused(request, about, code, problem)),
        }
        Ok(())
    }

    /// The run that a request before this one started.
    fn started(&mut self, intake: &mut dyn Intake, by: RequestId) -> Result<Option<RunId>, Fault> {
        if self.given.iter().any(|(request, ..)| *request == by) {
            self.give();
        }
        match self.answers.iter().find(|answer| answer.request == by) {
            Some(answer) => Ok(answer.run),
            None => intake.started(by),
        }
    }

    /// Gives the commands that were gathered, and notes their answers. What has none is taken in again.
    fn give(&mut self) {
        let given = std::mem::take(&mut self.given);
        let commands = given.iter().map(|(_, _, slot, command)| (*slot, command.clone())).collect();
        let asking = self.shared.ask_many(commands);
        let Ok(answers) = self.shared.handle.block_on(asking) else { return };
        for ((request, about, ..), answer) in given.into_iter().zip(answers) {
            self.answers.extend(answered(request, about, answer));
        }
    }
}

/// How a run is named.
enum Named {
    Run(RunId),
    Started(RequestId),
}

/// The run that something is asked of.
fn named_run(asked: &Asked) -> Result<Option<Named>, String> {
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
fn command(shared: &Shared, asked: &Asked, about: Option<RunId>) -> Result<(Slot, Command), (&'static str, String)> {
    let invalid = |error: serde_json::Error| ("invalid", error.to_string());
    let request = asked.request;
    let payload: Payload = serde_json::from_str(&asked.payload).map_err(invalid)?;
    let run = about.ok_or_else(|| ("invalid", "expected a run, found none".to_owned()));
    match asked.what.as_str() {
        "start" => {
            let starting: Starting = serde_json::from_str(&asked.asked).map_err(invalid)?;
            let version = starting.version;
            let mut spec = spec(starting, payload);
            shared.programs.plan(&mut spec, version).map_err(|hint| {
                ("unknown_workflow", format!("workflow {:?} is not registered here; {hint}", &*spec.workflow))
            })?;
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
fn answered(request: RequestId, about: Option<RunId>, answer: Answer) -> Option<Answered> {
    let accepted = |run| Answered { request, run, code: "accepted".into(), message: None };
    Some(match answer {
        Answer::Started(StartAnswer::Created(run) | StartAnswer::Reused(run)) => accepted(Some(run)),
        Answer::Started(StartAnswer::Rejected { by, reason }) => {
            refused(request, Some(by), reason.name(), format!("the key is taken by {by}"))
        }
        Answer::Refused(Refusal::Unknown | Refusal::Closed { .. }) => return None,
        Answer::Refused(refusal) => refused(request, about, refusal.code(), refusal.to_string()),
        _ => accepted(about),
    })
}

fn refused(request: RequestId, run: Option<RunId>, code: &str, message: String) -> Answered {
    Answered { request, run, code: code.into(), message: Some(message) }
}

impl Shared {
    /// Under which ownership this node takes in, if it does.
    fn hosts(&self) -> Option<ShardEpoch> {
        let now = self.now();
        let mut core = self.core.lock();
        if !core.serves(now, HOST) || core.closed.is_some() {
            return None;
        }
        core.at(HOST).map(|shard| shard.epoch())
    }
}

/// Starts the thread that takes in, if the store can be asked by SQL.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<Option<std::thread::JoinHandle<()>>, crate::OpenError> {
    let Some(intake) = shared.store.lock().intake()? else { return Ok(None) };
    let _ = shared.intake.set(intake.ring());
    let taking = shared.clone();
    let thread = std::thread::Builder::new().name("abide-intake".into()).spawn(move || take_in(&taking, intake))?;
    Ok(Some(thread))
}
