//! Starting runs.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{
    Concurrency, OnConflict, Payload, Refusal, RequestId, Slot, StartSpec, StatusSet, Timestamp, TraceContext,
    UniqueKey,
};

use crate::client::unexpected;
use crate::{Admission, Client, ClientError, RunHandle};

/// A start that is being described.
#[must_use = "the run is started when this is awaited"]
pub struct Start {
    client: Client,
    spec: Result<StartSpec, ClientError>,
    request: Option<RequestId>,
    version: Option<u32>,
}

impl Start {
    pub(crate) fn new(client: Client, workflow: &str, input: Result<Payload, serde_json::Error>) -> Self {
        let what = || format!("the input of workflow {workflow:?}");
        let spec = input
            .map(|input| StartSpec::new(workflow, input))
            .map_err(|source| ClientError::Codec { what: what(), source });
        Self { client, spec, request: None, version: None }
    }

    fn with(mut self, change: impl FnOnce(&mut StartSpec)) -> Self {
        if let Ok(spec) = &mut self.spec {
            change(spec);
        }
        self
    }

    /// The workflow's version; without it, the newest that is registered, or that a server's workers have.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// A business key: at most one open run of this workflow has it.
    pub fn key(self, key: &str) -> Self {
        self.with(|spec| {
            spec.key = Some(UniqueKey { key: key.into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reject });
        })
    }

    /// What to answer when the key is taken.
    pub fn on_conflict(self, on_conflict: OnConflict) -> Self {
        self.with(|spec| {
            if let Some(key) = &mut spec.key {
                key.on_conflict = on_conflict;
            }
        })
    }

    /// The statuses in which the run occupies its key.
    pub fn occupied(self, statuses: StatusSet) -> Self {
        self.with(|spec| {
            if let Some(key) = &mut spec.key {
                key.occupied = statuses;
            }
        })
    }

    /// The queue.
    pub fn queue(self, queue: &str) -> Self {
        self.with(|spec| spec.queue = queue.into())
    }

    /// The tenant.
    pub fn namespace(self, namespace: &str) -> Self {
        self.with(|spec| spec.namespace = namespace.into())
    }

    /// Lower comes first.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// At most `limit` attempts of runs with this key at once.
    pub fn concurrency(self, key: &str, limit: u32) -> Self {
        self.with(|spec| spec.concurrency = Some(Concurrency { key: key.into(), limit }))
    }

    /// Not before this instant.
    pub fn eligible_at(self, at: Timestamp) -> Self {
        self.with(|spec| spec.eligible_at = Some(at))
    }

    /// Not before so long from now.
    pub fn delay(self, delay: Duration) -> Self {
        let at = self.client.now().after(delay.as_millis() as u64);
        self.eligible_at(at)
    }

    /// The whole run must have ended within this time, or it fails.
    pub fn deadline(self, within: Duration) -> Self {
        let at = self.client.now().after(within.as_millis() as u64);
        self.with(|spec| spec.deadline = Some(at))
    }

    /// A word to find the run by.
    pub fn label(self, name: &str, value: &str) -> Self {
        self.with(|spec| spec.labels.push((name.into(), value.into())))
    }

    /// Deliveries of one attempt without an answer before it becomes a dead letter.
    pub fn deliveries_max(self, most: u32) -> Self {
        self.with(|spec| spec.deliveries_max = Some(most))
    }

    /// The place in a trace at which it is asked for: the run, its attempts and its children are shown below it.
    pub fn trace(self, context: TraceContext) -> Self {
        self.with(|spec| spec.trace = Some(context))
    }

    /// The request id. Sending the same start again with the same id gives the first answer.
    pub fn request(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
    }

    /// The command, and the slot that decides on it.
    fn prepare(self) -> Result<(Client, Slot, RequestId, StartSpec), ClientError> {
        let mut spec = self.spec?;
        self.client.plan(&mut spec, self.version)?;
        let request = self.request.unwrap_or_else(|| self.client.request());
        Ok((self.client, spec.admission_slot(request), request, spec))
    }
}

fn answered(client: &Client, answer: Answer) -> Result<RunHandle, ClientError> {
    match answer {
        Answer::Started(StartAnswer::Created(run)) => Ok(RunHandle::new(client.clone(), run, Admission::Created)),
        Answer::Started(StartAnswer::Reused(run)) => Ok(RunHandle::new(client.clone(), run, Admission::Reused)),
        Answer::Started(StartAnswer::Rejected { by, reason }) => {
            Err(ClientError::Rejected { by, reason: reason.name() })
        }
        Answer::Refused(refusal) => Err(refusal.into()),
        other => Err(unexpected(&other)),
    }
}

impl IntoFuture for Start {
    type Output = Result<RunHandle, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, slot, request, spec) = self.prepare()?;
            let command = Command::Start { request, spec: Box::new(spec) };
            let answer = client.send(slot, command).await?;
            answered(&client, answer)
        })
    }
}

/// Many starts at once.
#[must_use = "the runs are started when this is awaited"]
pub struct StartMany {
    client: Client,
    starts: Vec<Start>,
}

impl StartMany {
    pub(crate) fn new(client: Client, starts: Vec<Start>) -> Self {
        Self { client, starts }
    }
}

impl IntoFuture for StartMany {
    /// One answer for each start, in order.
    type Output = Result<Vec<Result<RunHandle, ClientError>>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let most = abide_kernel::limits::BATCH_STARTS_MAX;
            if self.starts.len() > most {
                let found = self.starts.len() as u64;
                return Err(Refusal::TooLarge { what: "starts in one batch".into(), limit: most as u64, found }.into());
            }
            // Whoever named requests may send them again in another batch, or alone.
            #[cfg(feature = "http")]
            if self.client.server().is_some() && self.starts.iter().any(|start| start.request.is_some()) {
                let mut answers = Vec::with_capacity(self.starts.len());
                for start in self.starts {
                    answers.push(start.await);
                }
                return Ok(answers);
            }
            let prepared = self.starts.into_iter().map(Start::prepare).collect::<Result<Vec<_>, _>>()?;
            #[cfg(feature = "http")]
            if let Some(http) = self.client.server() {
                let specs = prepared.into_iter().map(|(_, _, _, spec)| spec).collect();
                let answers = http.start_many(specs, self.client.request(), self.client.now()).await?;
                let handle = |answer: Result<Answer, ClientError>| answered(&self.client, answer?);
                return Ok(answers.into_iter().map(handle).collect());
            }
            let command = |(_, slot, request, spec)| (slot, Command::Start { request, spec: Box::new(spec) });
            let commands: Vec<_> = prepared.into_iter().map(command).collect();
            let answers = self.client.engine()?.ask_many_until_known(commands).await?;
            Ok(answers.into_iter().map(|answer| answered(&self.client, answer)).collect())
        })
    }
}
