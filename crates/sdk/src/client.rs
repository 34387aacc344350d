//! Asking an engine for something.

use std::sync::Arc;

use abide_kernel::explain::Explanation;
use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::transition::signal::Sent;
use abide_kernel::{ErrorInfo, LetterId, Payload, Refusal, RequestId, Row, Run, RunId, Slot, StartSpec, Timestamp};
use abide_runtime::Clock;
use abide_store::{DeadLetterItem, Filter, Listed, Page, Stats};
use serde::Serialize;

use crate::{ClientError, RunHandle, Start, StartMany};

/// A client of an engine, in this process or of a server. It is cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) way: Way,
}

/// Where a client's words go.
#[derive(Clone)]
pub(crate) enum Way {
    /// To an engine in this process.
    Engine(Arc<abide_runtime::Engine>),
    /// To a server.
    #[cfg(feature = "http")]
    Server(Arc<crate::remote::Http>),
    /// To the server for which workflows are executed here.
    #[cfg(feature = "http")]
    Hired(Arc<crate::remote::Http>, Arc<crate::remote::Hired>),
}

impl Client {
    /// A client of an engine of the runtime, for those who drive one by themselves.
    #[must_use]
    pub fn new(engine: Arc<abide_runtime::Engine>) -> Self {
        Self { way: Way::Engine(engine) }
    }

    /// A client of a server, by its URL.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = abide::Client::connect("http://127.0.0.1:7411").token("…").namespace("shop").open()?;
    /// let run = client.start("order", "a lamp").key("order-17").await?;
    /// let packed: String = run.result().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "http")]
    pub fn connect(url: &str) -> crate::Connect {
        crate::Connect::new(url)
    }

    /// The server that is asked, if it is one.
    #[cfg(feature = "http")]
    pub(crate) fn server(&self) -> Option<&crate::remote::Http> {
        match &self.way {
            Way::Engine(_) => None,
            Way::Server(http) | Way::Hired(http, _) => Some(http),
        }
    }

    /// The engine in this process.
    pub(crate) fn here(&self) -> Option<&Arc<abide_runtime::Engine>> {
        match &self.way {
            Way::Engine(engine) => Some(engine),
            #[cfg(feature = "http")]
            Way::Server(_) | Way::Hired(..) => None,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.here().map_or_else(|| Clock::system().now(), |engine| engine.now())
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
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.list(filter, page).await;
        }
        Ok(self.engine()?.list(filter, page).await?)
    }

    /// Sizes and counts of the store.
    ///
    /// # Errors
    /// When the store cannot be read, or is a server's.
    pub fn stats(&self) -> Result<Stats, ClientError> {
        Ok(self.engine()?.stats()?)
    }

    /// Messages between runs that could not be processed and were set aside whole. Attempts that were set aside are
    /// runs of status `dead_lettered`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetterItem>, ClientError> {
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.dead_letters().await;
        }
        Ok(self.engine()?.dead_letters()?)
    }

    /// Puts a message that was set aside back in line. It may be set aside again.
    ///
    /// # Errors
    /// When there is no such dead letter, or it was settled before.
    pub async fn requeue(&self, letter: LetterId) -> Result<(), ClientError> {
        self.settle(letter, Settling::Requeue).await
    }

    /// Gives up a message that was set aside.
    ///
    /// # Errors
    /// When there is no such dead letter, or it was settled before.
    pub async fn discard(&self, letter: LetterId) -> Result<(), ClientError> {
        self.settle(letter, Settling::Discard).await
    }

    async fn settle(&self, letter: LetterId, how: Settling) -> Result<(), ClientError> {
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.settle(letter, how).await;
        }
        Ok(self.engine()?.settle(letter, how).await?)
    }

    pub(crate) fn request(&self) -> RequestId {
        self.here().map_or_else(|| abide_runtime::new_request(self.now()), |engine| engine.new_request())
    }

    /// The engine in this process, for what only it can do.
    pub(crate) fn engine(&self) -> Result<&Arc<abide_runtime::Engine>, ClientError> {
        self.here().ok_or_else(not_here)
    }

    /// Completes a start by what is registered here.
    pub(crate) fn plan(&self, spec: &mut StartSpec, version: Option<u32>) -> Result<(), ClientError> {
        match &self.way {
            Way::Engine(engine) => engine.plan(spec, version).map_err(|hint| {
                let name = spec.workflow.to_string();
                ClientError::UnknownWorkflow { name, hint }
            }),
            // Which versions there are, the server and its workers know.
            #[cfg(feature = "http")]
            Way::Server(http) => {
                spec.version = version.unwrap_or(abide_protocol::UNSAID);
                http.check_namespace(spec)
            }
            #[cfg(feature = "http")]
            Way::Hired(http, hired) => {
                hired.plan(spec, version);
                http.check_namespace(spec)
            }
        }
    }

    /// Sends a command to its shard until its outcome is known, if sending it again is safe.
    pub(crate) async fn send(&self, slot: Slot, command: Command) -> Result<Answer, ClientError> {
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.command(command, self.now()).await;
        }
        Ok(self.engine()?.ask_until_known(slot, command).await?)
    }

    /// Sends a command about a run.
    pub(crate) async fn ask(&self, run: RunId, command: Command) -> Result<Answer, ClientError> {
        self.send(run.slot(), command).await
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
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.show(run).await;
        }
        Ok(self.engine()?.show(run).await?)
    }

    pub(crate) async fn explain(&self, run: RunId) -> Result<Explanation, ClientError> {
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.explain(run).await;
        }
        Ok(self.engine()?.explain(run).await?)
    }

    pub(crate) async fn journal(&self, run: RunId, from: u64) -> Result<Vec<Row>, ClientError> {
        #[cfg(feature = "http")]
        if let Some(http) = self.server() {
            return http.journal(run, from).await;
        }
        Ok(self.engine()?.journal(run, from).await?)
    }
}

/// Only an engine on the store does it.
pub(crate) fn not_here() -> ClientError {
    let (expected, found) = ("an engine on the store".into(), "a server, which does not do it for others".into());
    Refusal::Invalid { what: "who is asked".into(), expected, found }.into()
}

pub(crate) fn unexpected(answer: &Answer) -> ClientError {
    ClientError::Engine(abide_runtime::Unanswered::Unexpected(format!("{answer:?}")))
}
