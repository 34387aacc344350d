//! Asking an engine for something.

use std::sync::Arc;

use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::transition::signal::Sent;
use abide_kernel::{ErrorInfo, LetterId, Payload, Refusal, RequestId, Row, Run, RunId};
use abide_store::{DeadLetterItem, Filter, Listed, Page, Stats};
use serde::Serialize;

use crate::{ClientError, RunHandle, Start, StartMany};

/// How often a command whose outcome is unknown is sent again, each time with the same request id.
const RETRIES_MAX: u32 = 20;

/// A client of an engine. It is cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<abide_runtime::Engine>,
}

impl Client {
    /// A client of an engine of the runtime, for those who drive one by themselves.
    #[must_use]
    pub fn new(engine: Arc<abide_runtime::Engine>) -> Self {
        Self { engine }
    }

    /// Starts a run of a registered workflow. Await it to send it.
    pub fn start<I: Serialize + ?Sized>(&self, workflow: &str, input: &I) -> Start {
        Start::new(self.clone(), workflow, Payload::encode(input))
    }

    /// Starts many runs at once: one answer each, duplicates caught also among themselves.
    pub fn start_many(&self, starts: impl IntoIterator<Item = Start>) -> StartMany {
        StartMany::new(self.clone(), starts.into_iter().collect())
    }

    /// A run that exists.
    #[must_use]
    pub fn run(&self, run: RunId) -> RunHandle {
        RunHandle::new(self.clone(), run, crate::Admission::Reused)
    }

    /// Runs that match, newest first.
    ///
    /// # Errors
    /// When the store cannot be read, or the engine has stopped.
    pub async fn list(&self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, ClientError> {
        Ok(self.engine.list(filter, page).await?)
    }

    /// Sizes and counts of the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn stats(&self) -> Result<Stats, ClientError> {
        Ok(self.engine.stats()?)
    }

    /// Messages between runs that could not be processed and were set aside whole. Attempts that were set aside are
    /// runs of status `dead_lettered`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn dead_letters(&self) -> Result<Vec<DeadLetterItem>, ClientError> {
        Ok(self.engine.dead_letters()?)
    }

    /// Puts a message that was set aside back in line. It may be set aside again.
    ///
    /// # Errors
    /// When there is no such dead letter, or it was settled before.
    pub async fn requeue(&self, letter: LetterId) -> Result<(), ClientError> {
        Ok(self.engine.settle(letter, Settling::Requeue).await?)
    }

    /// Gives up a message that was set aside.
    ///
    /// # Errors
    /// When there is no such dead letter, or it was settled before.
    pub async fn discard(&self, letter: LetterId) -> Result<(), ClientError> {
        Ok(self.engine.settle(letter, Settling::Discard).await?)
    }

    pub(crate) fn request(&self) -> RequestId {
        self.engine.new_request()
    }

    /// Sends a command about a run until its outcome is known. Sending it again is safe: it carries the same request.
    pub(crate) async fn ask(&self, run: RunId, command: Command) -> Result<Answer, ClientError> {
        let mut tries = 0;
        loop {
            match self.engine.ask(run.slot(), command.clone()).await? {
                Answer::Refused(Refusal::Unknown) if tries < RETRIES_MAX => tries += 1,
                Answer::Refused(refusal) => return Err(refusal.into()),
                answer => return Ok(answer),
            }
        }
    }

    pub(crate) async fn signal(
        &self,
        run: RunId,
        name: &str,
        payload: Payload,
        dedup: Option<String>,
        request: RequestId,
    ) -> Result<bool, ClientError> {
        let sent = Sent { name: name.into(), payload, dedup: dedup.map(Into::into), request };
        match self.ask(run, Command::Signal { run, sent: Box::new(sent) }).await? {
            Answer::Signalled(accepted) => Ok(!accepted.duplicate),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn cancel(&self, run: RunId, cascade: bool, reason: &str) -> Result<(), ClientError> {
        let reason = Arc::new(ErrorInfo::terminal("cancelled", reason));
        let command = Command::Cancel { run, request: self.request(), cascade, reason };
        self.ask(run, command).await.map(|_| ())
    }

    pub(crate) async fn show(&self, run: RunId) -> Result<Run, ClientError> {
        Ok(self.engine.show(run).await?)
    }

    pub(crate) async fn journal(&self, run: RunId, from: u64) -> Result<Vec<Row>, ClientError> {
        Ok(self.engine.journal(run, from).await?)
    }
}

pub(crate) fn unexpected(answer: &Answer) -> ClientError {
    ClientError::Engine(abide_runtime::Unanswered::Unexpected(format!("{answer:?}")))
}
