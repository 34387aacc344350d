//! A handle on one run.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;

use abide_kernel::explain::Explanation;
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{ErrorInfo, Payload, Row, Run, RunId, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::unexpected;
use crate::{Client, ClientError};

/// How a start got its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The run is new.
    Created,
    /// The run had the key already, with the same input.
    Reused,
}

/// A handle on one run.
#[derive(Clone)]
pub struct RunHandle {
    pub(crate) client: Client,
    id: RunId,
    admission: Admission,
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("id", &self.id).field("admission", &self.admission).finish_non_exhaustive()
    }
}

impl RunHandle {
    pub(crate) fn new(client: Client, id: RunId, admission: Admission) -> Self {
        Self { client, id, admission }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The run.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Whether the start that gave this handle created the run.
    #[must_use]
    pub fn admission(&self) -> Admission {
        self.admission
    }

    /// Sends a named signal. Await it to send it; it is durable when that returns.
    pub fn signal<P: Serialize + ?Sized>(&self, name: &str, payload: &P) -> SendSignal {
        SendSignal { run: self.clone(), name: name.into(), payload: Payload::encode(payload), dedup: None }
    }

    /// Waits until the run has ended well, and decodes its result.
    ///
    /// # Errors
    /// When it ended otherwise, or the result does not have the shape of `T`.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        match self.client.ask(self.id, Command::Watch { run: self.id }).await? {
            Answer::Ended(ending) if ending.status == Status::Done => {
                let result = ending.result.unwrap_or_default();
                result
                    .decode()
                    .map_err(|source| ClientError::Codec { what: format!("the result of {}", self.id), source })
            }
            Answer::Ended(ending) => {
                let unknown = || ErrorInfo::terminal("unknown", "no error was recorded");
                let error = ending.error.map_or_else(unknown, |error| (*error).clone());
                Err(ClientError::RunFailed { run: self.id, status: ending.status, error: Box::new(error) })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the run from outside. Its children go on.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn cancel(&self, reason: &str) -> Result<(), ClientError> {
        self.client.cancel(self.id, false, reason).await
    }

    /// Ends the run and its open children from outside.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn cancel_all(&self, reason: &str) -> Result<(), ClientError> {
        self.client.cancel(self.id, true, reason).await
    }

    /// The run as it stands.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn show(&self) -> Result<Run, ClientError> {
        self.client.show(self.id).await
    }

    /// The run's journal from a revision on.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn journal(&self, from: u64) -> Result<Vec<Row>, ClientError> {
        self.client.journal(self.id, from).await
    }

    /// Why the run does not move: one sentence, the evidence, and what could be done.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn explain(&self) -> Result<Explanation, ClientError> {
        self.client.explain(self.id).await
    }

    /// Lets the run's journal begin anew with the run as it stands: what was before goes for good, and the run goes on.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn compact(&self) -> Result<(), ClientError> {
        self.client.ask(self.id, Command::Compact { run: self.id }).await.map(|_| ())
    }

    /// Removes the record of a run that has ended.
    ///
    /// # Errors
    /// When it has not ended.
    pub async fn purge(&self) -> Result<(), ClientError> {
        self.client.ask(self.id, Command::Purge { run: self.id }).await.map(|_| ())
    }

    /// Puts the run's dead letter back.
    ///
    /// # Errors
    /// When it has none.
    pub async fn requeue(&self) -> Result<(), ClientError> {
        self.client.ask(self.id, Command::Requeue { run: self.id }).await.map(|_| ())
    }

    /// Gives the run up whose attempt is a dead letter: it ends as failed.
    ///
    /// # Errors
    /// When it has none.
    pub async fn discard(&self) -> Result<(), ClientError> {
        self.client.ask(self.id, Command::Discard { run: self.id }).await.map(|_| ())
    }
}

/// A signal that is being sent.
#[must_use = "the signal is sent when this is awaited"]
pub struct SendSignal {
    run: RunHandle,
    name: String,
    payload: Result<Payload, serde_json::Error>,
    dedup: Option<String>,
}

impl SendSignal {
    /// A key under which the run accepts it once.
    pub fn dedup(mut self, key: &str) -> Self {
        self.dedup = Some(key.into());
        self
    }
}

impl IntoFuture for SendSignal {
    /// Whether it was accepted now, and not before under the same key.
    type Output = Result<bool, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let what = || format!("the payload of signal {:?}", self.name);
            let payload = self.payload.map_err(|source| ClientError::Codec { what: what(), source })?;
            let request = self.run.client.request();
            self.run.client.signal(self.run.id, &self.name, payload, self.dedup, request).await
        })
    }
}
