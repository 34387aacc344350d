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
use abide_store::intake::{Answered, Asked, HOST, Started};
use abide_store::{Fault, Intake, Verdict};
use serde::Deserialize;

use crate::driver::Shared;

/// How many requests are taken in together.
const AT_ONCE: usize = 256;
/// How long it is left alone after something went wrong.
const AGAIN: Duration = Duration::from_millis(250);
/// How often the tables are looked after, and how soon again when that failed.
const UPKEEP: Duration = Duration::from_secs(6 * 3_600);
const UPKEEP_AGAIN: Duration = Duration::from_secs(60);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many without an answer end a round.
const LATER_MAX: usize = 10_000;
const ACCEPTED: &str = "accepted";

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
    let mut upkeep: Option<(ShardEpoch, Instant)> = None;
    while !shared.is_stopping() {
        let epoch = match shared.hosts() {
            Hosting::Here(epoch) => epoch,
            // Its lease may be renewed at any moment, and nobody says so.
            Hosting::Perhaps => {
                intake.wait(Some(AGAIN));
                continue;
            }
            // Rung when the shard is taken, or the engine stops.
            Hosting::Elsewhere => {
                intake.wait(None);
                continue;
            }
        };
        let due = upkeep.is_none_or(|(known, at)| known != epoch || at <= Instant::now());
        if due {
            let next = match intake.upkeep(epoch) {
                Ok(()) => UPKEEP,
                Err(fault) => {
                    tracing::warn!(%fault, "the tables could not be looked after; it is tried again soon");
                    UPKEEP_AGAIN
                }
            };
            upkeep = Some((epoch, Instant::now() + next));
        }
        let rest = upkeep.map_or(UPKEEP, |(_, at)| at.saturating_duration_since(Instant::now()));
        match round(shared, intake.as_mut(), epoch) {
            Ok(Took::All) => intake.wait(Some(rest)),
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
    /// Something that has no answer yet.
    Later,
}

/// Takes in everything there is. What cannot be answered yet is passed over, so that it holds nothing else up.
fn round(shared: &Arc<Shared>, intake: &mut dyn Intake, epoch: ShardEpoch) -> Result<Took, Fault> {
    let mut later: Vec<RequestId> = Vec::new();
    while later.len() < LATER_MAX && !shared.is_stopping() {
        let asked = intake.read(AT_ONCE, &later)?;
        if asked.is_empty() {
            if later.is_empty() {
                intake.is_through();
                return Ok(Took::All);
            }
            return Ok(Took::Later);
        }
        let mut taking = Taking { shared, answers: Vec::with_capacity(asked.len()), given: Vec::new() };
        for one in &asked {
            taking.take(intake, one)?;
        }
        taking.give();
        let answers = taking.answers;
        later.extend(asked.iter().map(|one| one.request).filter(|id| answers.iter().all(|one| one.request != *id)));
        if !answers.is_empty() && intake.answer(epoch, &answers)? == Verdict::Stale {
            return Ok(Took::Later);
        }
    }
    Ok(Took::Later)
}

/// A round that is under way.
struct Taking<'a> {
    shared: &'a Arc<Shared>,
    answers: Vec<Answered>,
    /// Commands that are given together.
    given: Vec<(RequestId, Option<RunId>, Slot, Command)>,
}

impl Taking<'_> {
    /// Makes a command of what was asked, or says why there is none. One about a run whose start has no answer waits too.
    fn take(&mut self, intake: &mut dyn Intake, asked: &Asked) -> Result<(), Fault> {
        let request = asked.request;
        let about = match named_run(asked) {
            Ok(None) => None,
            Ok(Some(Named::Run(run))) => Some(run),
            Ok(Some(Named::Started(by))) => match self.started(intake, by)? {
                Started::Run(run) => Some(run),
                Started::Waiting => return Ok(()),
                Started::Nothing => {
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

    /// What is known of a start that was asked for before this.
    fn started(&mut self, intake: &mut dyn Intake, by: RequestId) -> Result<Started, Fault> {
        let asked = |given: &(RequestId, Option<RunId>, Slot, Command)| given.0 == by;
        if let Some((_, _, _, command)) = self.given.iter().find(|given| asked(given)) {
            if !matches!(command, Command::Start { .. }) {
                return Ok(Started::Nothing);
            }
            self.give();
            let answer = self.answers.iter().find(|answer| answer.request == by);
            return Ok(match answer {
                Some(Answered { run: Some(run), code, .. }) if code == ACCEPTED => Started::Run(*run),
                Some(_) => Started::Nothing,
                None => Started::Waiting,
            });
        }
        // What was answered in this round is not written yet.
        match self.answers.iter().find(|answer| answer.request == by) {
            Some(answer) if answer.code != ACCEPTED => Ok(Started::Nothing),
            Some(Answered { run: Some(run), .. }) => Ok(Started::Run(*run)),
            _ => intake.started(by),
        }
    }

    /// Gives the commands that were gathered, and notes their answers. What has none in time is taken in again.
    fn give(&mut self) {
        let asking: Vec<_> = std::mem::take(&mut self.given)
            .into_iter()
            .map(|(request, about, slot, command)| (request, about, self.shared.ask(slot, command)))
            .collect();
        let shared = self.shared;
        let answers = &mut self.answers;
        shared.handle.block_on(async {
            let patience = tokio::time::Instant::now() + PATIENCE;
            for (request, about, answer) in asking {
                let answer = async { tokio::time::timeout_at(patience, answer).await };
                let answer = tokio::select! {
                    answer = answer => answer,
                    () = shared.stopped.notified() => return,
                };
                if let Ok(Ok(answer)) = answer {
                    answers.extend(answered(request, about, answer));
                }
            }
        });
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
fn answered(request: RequestId, about: Option<RunId>, answer: Answer) -> Option<Answered> {
    let accepted = |run| Answered { request, run, code: ACCEPTED.into(), message: None };
    Some(match answer {
        Answer::Started(StartAnswer::Created(run) | StartAnswer::Reused(run)) => accepted(Some(run)),
        Answer::Started(StartAnswer::Rejected { by, reason }) => {
            refused(request, Some(by), reason.name(), format!("the key is taken by {by}"))
        }
        Answer::Refused(refusal) if refusal.may_retry() => return None,
        Answer::Run(run, _) => accepted(Some(run.id)),
        Answer::Refused(Refusal::NotFound { .. }) if about.is_none() => {
            let known = "the node that takes in what is asked by SQL has no workflow of that name and version";
            refused(request, None, "unknown_workflow", known.into())
        }
        Answer::Refused(refusal) => refused(request, about, refusal.code(), refusal.to_string()),
        _ => accepted(about),
    })
}

fn refused(request: RequestId, run: Option<RunId>, code: &str, message: String) -> Answered {
    Answered { request, run, code: code.into(), message: Some(message) }
}

/// Whether this node takes in.
enum Hosting {
    /// Under this ownership.
    Here(ShardEpoch),
    /// It has the shard, and no lease that lasts.
    Perhaps,
    Elsewhere,
}

impl Shared {
    fn hosts(&self) -> Hosting {
        let now = self.now();
        let mut core = self.core.lock();
        let serves = core.serves(now, HOST) && core.closed.is_none();
        match core.at(HOST).map(|shard| shard.epoch()) {
            Some(epoch) if serves => Hosting::Here(epoch),
            Some(_) => Hosting::Perhaps,
            None => Hosting::Elsewhere,
        }
    }
}

/// Starts the thread that takes in, if the store can be asked by SQL.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<Option<std::thread::JoinHandle<()>>, crate::OpenError> {
    let Some(intake) = shared.visit().intake()? else { return Ok(None) };
    let _ = shared.intake.set(intake.ring());
    let taking = shared.clone();
    let thread = std::thread::Builder::new().name("abide-intake".into()).spawn(move || take_in(&taking, intake))?;
    Ok(Some(thread))
}
