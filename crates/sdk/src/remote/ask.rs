//! Commands as requests: what a client asks of an engine, asked of a server.

use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Ending, Told};
use abide_kernel::transition::start::{RejectReason, StartAnswer};
use abide_kernel::transition::{signal, update};
use abide_kernel::{Choice, Payload, Refusal, Reply, RequestId, Resolution, Rev, RunId, StartSpec, Str, Timestamp};
use abide_protocol::{
    Admission, Assign, Cancel, Decide, How, Problem, Recorded, Resolve, Signal, Signalled, Start, StartMany, Started,
    StartedMany, Update, Updated,
};

use super::Http;
use super::http::{Ask, Trouble};
use crate::ClientError;
use crate::client::not_here;

/// How long one request waits for something to happen.
const WAIT: Duration = Duration::from_secs(25);

fn path(run: RunId, rest: &str) -> String {
    format!("/runs/{run}{rest}")
}

fn words(words: &[Str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn text(text: Option<Str>) -> Option<String> {
    text.map(|text| text.to_string())
}

impl Http {
    /// Carries out a command, as the engine would.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn command(&self, command: Command, now: Timestamp) -> Result<Answer, ClientError> {
        match command {
            Command::Start { request, spec } => self.start(request, *spec, now).await,
            Command::Watch { run } => self.watch(run).await,
            Command::Signal { run, sent } => {
                let signal::Sent { name, payload, dedup, request } = *sent;
                let body = Signal { name: name.to_string(), payload, dedup: text(dedup) };
                let path = path(run, "/signals");
                let Signalled { signal, duplicate } = self.ask(Ask::post(&path, &body)?.key(request)).await?;
                Ok(Answer::Signalled(signal::Accepted { signal, duplicate }))
            }
            Command::Cancel { run, request, cascade, reason } => {
                let body = Cancel { reason: reason.message.to_string(), cascade };
                self.recorded(&path(run, "/cancel"), &body, request).await
            }
            Command::Update { run, asked, told } => self.update(run, *asked, told).await,
            Command::Decide { run, deciding } => {
                let boundary = abide_kernel::BoundaryId { run, op: deciding.op };
                let path = match deciding.choice {
                    Choice::Approve => format!("/approvals/{boundary}/approve"),
                    Choice::Reject => format!("/approvals/{boundary}/reject"),
                    Choice::Complete => format!("/tasks/{boundary}/complete"),
                    Choice::Resume => path(run, "/resume"),
                };
                let body = Decide {
                    actor: named(&deciding.actor),
                    roles: words(&deciding.roles),
                    note: text(deciding.note),
                    payload: deciding.payload,
                };
                self.recorded(&path, &body, deciding.request).await
            }
            Command::Assign { run, assigning } => {
                let boundary = abide_kernel::BoundaryId { run, op: assigning.op };
                let verb = if assigning.to.is_some() { "claim" } else { "release" };
                let body = Assign {
                    actor: named(&assigning.actor),
                    to: assigning.to.as_ref().and_then(named),
                    roles: words(&assigning.roles),
                    note: text(assigning.note),
                    take_over: assigning.take_over,
                };
                self.recorded(&format!("/tasks/{boundary}/{verb}"), &body, assigning.request).await
            }
            Command::Resolve { run, resolving } => {
                let body = Resolve {
                    effect: resolving.key.to_string(),
                    how: match resolving.how {
                        Resolution::Value(value) => How::Value(value),
                        Resolution::Failed(error) => How::Failed(error.message.to_string()),
                        Resolution::Retry => How::Retry,
                        Resolution::Compensated => How::Compensated,
                    },
                    interrupt: resolving.interrupt,
                    actor: named(&resolving.actor),
                    roles: words(&resolving.roles),
                    note: text(resolving.note),
                };
                self.recorded(&path(run, "/effects/resolve"), &body, resolving.request).await
            }
            Command::Compact { run } => self.settled(&path(run, "/compact")).await,
            Command::Purge { run } => self.settled(&path(run, "/purge")).await,
            Command::Requeue { run } => self.settled(&format!("/dead-letters/{run}/requeue")).await,
            Command::Discard { run } => self.settled(&format!("/dead-letters/{run}/discard")).await,
            _ => Err(not_here()),
        }
    }

    async fn recorded(&self, path: &str, body: &impl serde::Serialize, key: RequestId) -> Result<Answer, ClientError> {
        let Recorded { rev, duplicate } = self.ask(Ask::post(path, body)?.key(key)).await?;
        Ok(Answer::Recorded { rev: Rev(rev), duplicate })
    }

    /// Settles a dead letter, or drops what was. It is sent once: the answer to a second would not be the answer to the first.
    async fn settled(&self, path: &str) -> Result<Answer, ClientError> {
        let Recorded { rev, duplicate } = self.once(&Ask::verb(path)).await?;
        Ok(Answer::Recorded { rev: Rev(rev), duplicate })
    }

    async fn start(&self, request: RequestId, spec: StartSpec, now: Timestamp) -> Result<Answer, ClientError> {
        let ask = Ask::post("/runs", &Start::of(spec, now))?.key(request);
        begun(self.ask::<Started>(ask).await)
    }

    /// Whether a start is for the namespace that this client asks about: its handles look nowhere else.
    pub(crate) fn check_namespace(&self, spec: &StartSpec) -> Result<(), ClientError> {
        let unsaid = StartSpec::new("", Payload::null()).namespace;
        if spec.namespace == unsaid || *spec.namespace == *self.namespace() {
            return Ok(());
        }
        let expected = format!("{:?}, which this client asks about; connect another one", self.namespace());
        Err(Refusal::Invalid { what: "namespace".into(), expected, found: spec.namespace.to_string() }.into())
    }

    /// Starts many runs: one answer each.
    pub(crate) async fn start_many(
        &self,
        specs: Vec<StartSpec>,
        request: RequestId,
        now: Timestamp,
    ) -> Result<Vec<Result<Answer, ClientError>>, ClientError> {
        let runs = specs.into_iter().map(|spec| Start::of(spec, now)).collect();
        let ask = Ask::post("/runs/batch", &StartMany { runs })?.key(request);
        let StartedMany { answers } = self.ask(ask).await?;
        let answers = answers.into_iter().map(|answer| match (answer.started, answer.problem) {
            (Some(started), _) => begun(Ok(started)),
            (None, Some(problem)) => begun(Err(Trouble::Problem(problem))),
            (None, None) => begun(Err(Trouble::Nonsense("neither a run nor a problem".into()))),
        });
        Ok(answers.collect())
    }

    /// Waits for the end of a run, however long that takes.
    async fn watch(&self, run: RunId) -> Result<Answer, ClientError> {
        let path = path(run, "/result");
        loop {
            let ask = Ask::get(&path).with("wait_ms", Some(WAIT.as_millis().to_string())).wait(WAIT);
            let ending: abide_protocol::Ending = self.ask(ask).await?;
            if ending.ended {
                let error = ending.error.map(|error| std::sync::Arc::new(error.into()));
                return Ok(Answer::Ended(Box::new(Ending {
                    run,
                    status: ending.status,
                    result: ending.result,
                    error,
                })));
            }
        }
    }

    async fn update(&self, run: RunId, asked: update::Requesting, told: Told) -> Result<Answer, ClientError> {
        let path = path(run, "/updates");
        let wait = if told == Told::Accepted { Duration::ZERO } else { WAIT };
        loop {
            let body = Update {
                name: asked.name.to_string(),
                input: asked.input.clone(),
                dedup: text(asked.dedup.clone()),
                wait_ms: Some(wait.as_millis() as u64),
            };
            let answered = self.ask::<Updated>(Ask::post(&path, &body)?.key(asked.request).wait(wait)).await;
            match (answered, told) {
                (Ok(updated), Told::Accepted) => {
                    let Updated { update, duplicate, .. } = updated;
                    return Ok(Answer::Requested(update::Accepted { update, duplicate }));
                }
                (Ok(Updated { answered: true, answer, .. }), Told::Answered) => {
                    return Ok(Answer::Answered(Reply::Value(answer.unwrap_or_default())));
                }
                (Ok(_), Told::Answered) => {}
                (Err(Trouble::Problem(problem)), _) if problem.code == "update_rejected" => {
                    let Some(error) = problem.error else { return Err(ClientError::Problem(problem)) };
                    return Ok(Answer::Answered(Reply::Rejected(std::sync::Arc::new(error.into()))));
                }
                (Err(trouble), _) => return Err(trouble.into()),
            }
        }
    }
}

fn begun(started: Result<Started, Trouble>) -> Result<Answer, ClientError> {
    let answer = match started {
        Ok(Started { run, admission: Admission::Created }) => StartAnswer::Created(run),
        Ok(Started { run, admission: Admission::Reused }) => StartAnswer::Reused(run),
        Err(Trouble::Problem(problem)) => match rejected(&problem) {
            Some(rejected) => rejected,
            None => return Err(ClientError::Problem(problem)),
        },
        Err(trouble) => return Err(trouble.into()),
    };
    Ok(Answer::Started(answer))
}

fn rejected(problem: &Problem) -> Option<StartAnswer> {
    let reason =
        [RejectReason::KeyTaken, RejectReason::OtherInput].into_iter().find(|reason| reason.name() == problem.code)?;
    Some(StartAnswer::Rejected { by: problem.run?, reason })
}

/// Nobody's name stands for that of the token, which the server knows.
fn named(name: &Str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_string())
}
