//! The engine as its owner sees it.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::explain::Explanation;
use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{LetterId, RequestId, Row, Run, RunId, Slot, StartSpec, Str, Timestamp};
use abide_store::{DeadLetterItem, Fault, Filter, Listed, Membership, Page, Stats, Store, StoredToken};
use tokio::runtime::{Handle, Runtime};

use crate::admission::Unanswered;
use crate::config::Config;
use crate::driver::{Shared, spawn_driver};
use crate::inspection::Metrics;
use crate::{intake, watchdog, writer};

/// An engine that runs. Dropping it stops it without waiting for steps; `stop` waits.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    /// Kept when the engine was not started inside a runtime and had to make its own.
    pub(crate) _runtime: Option<Runtime>,
}

/// Why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The store could not be opened or read.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The threads of the engine could not be made.
    #[error("the engine's threads could not be started")]
    Threads(#[from] std::io::Error),
}

/// How an engine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Attempts that were still executing when the time was up; their steps run again later.
    pub abandoned: usize,
}

impl Engine {
    /// Opens the shards of `store` and begins to work.
    ///
    /// # Errors
    /// When the store cannot be read, or threads cannot be started.
    pub fn open(store: Box<dyn Store>, config: Config) -> Result<Self, OpenError> {
        let (handle, runtime) = match Handle::try_current() {
            Ok(handle) => (handle, None),
            Err(_) => {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                (runtime.handle().clone(), Some(runtime))
            }
        };
        let shared = Shared::open(store, config, handle, false)?;
        spawn_driver(&shared, 0);
        let watching = shared.clone();
        let watchdog =
            std::thread::Builder::new().name("abide-watchdog".into()).spawn(move || watchdog::watch(&watching))?;
        let writing = shared.clone();
        let writer = std::thread::Builder::new().name("abide-writer".into()).spawn(move || writer::write(&writing))?;
        // A guest has nothing to begin with what is asked by SQL: it would refuse it for good.
        let guest = shared.core.lock().ring.as_ref().is_some_and(|ring| ring.guest);
        let intake = if guest { None } else { intake::spawn(&shared)? };
        shared.threads.lock().extend([watchdog, writer].into_iter().chain(intake));
        Ok(Self { shared, _runtime: runtime })
    }

    /// Gives a command to the shard of `slot`. The answer comes when it is durable.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn ask(&self, slot: Slot, command: Command) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
        self.shared.ask(slot, command)
    }

    /// Gives several commands to their shards at once, so that they share a commit.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn ask_many(
        &self,
        commands: Vec<(Slot, Command)>,
    ) -> impl Future<Output = Result<Vec<Answer>, Unanswered>> + use<> {
        self.shared.ask_many(commands)
    }

    /// Gives a command to the shard of `slot`, and again while nobody knows what came of it, if its second coming is
    /// recognised. Any other would find what it did itself, and be refused for it: of that the outcome is unknown.
    ///
    /// # Errors
    /// When it is refused, its outcome stays unknown, or the engine has stopped.
    pub async fn ask_until_known(&self, slot: Slot, command: Command) -> Result<Answer, Unanswered> {
        self.shared.ask_until_known(slot, command).await
    }

    /// The same for several at once, so that they share a commit. Refusals are answers here.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub async fn ask_many_until_known(&self, commands: Vec<(Slot, Command)>) -> Result<Vec<Answer>, Unanswered> {
        self.shared.ask_many_until_known(commands).await
    }

    /// The run as it stands.
    ///
    /// # Errors
    /// When there is no such run, its record is damaged, or the engine has stopped.
    pub async fn show(&self, run: RunId) -> Result<Run, Unanswered> {
        self.shared.show(run).await.map(|(run, _)| run)
    }

    /// The run's journal from a revision on.
    ///
    /// # Errors
    /// When there is no such run, its record is damaged, or the engine has stopped.
    pub async fn journal(&self, run: RunId, from: u64) -> Result<Vec<Row>, Unanswered> {
        self.shared.journal(run, from).await
    }

    /// Why the run does not move: one sentence, the evidence, and what could be done.
    ///
    /// # Errors
    /// When there is no such run, its record is damaged, or the engine has stopped.
    pub async fn explain(&self, run: RunId) -> Result<Explanation, Unanswered> {
        self.shared.explain(run).await
    }

    /// Runs that match, newest first.
    ///
    /// # Errors
    /// When the store cannot be read, or the engine has stopped.
    pub async fn list(&self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Unanswered> {
        self.shared.list(filter, page).await
    }

    /// Sizes and counts of the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn stats(&self) -> Result<Stats, Fault> {
        self.shared.stats()
    }

    /// Envelopes that were set aside.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn dead_letters(&self) -> Result<Vec<DeadLetterItem>, Fault> {
        self.shared.dead_letters()
    }

    /// Puts an envelope that was set aside back in line, or gives it up. That and what follows from it are one commit.
    ///
    /// # Errors
    /// When there is no such dead letter, or the engine has stopped.
    pub async fn settle(&self, letter: LetterId, how: Settling) -> Result<(), Unanswered> {
        self.shared.settle(letter, how).await
    }

    /// Tokens by which clients of a server are known.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn tokens(&self) -> Result<Vec<StoredToken>, Fault> {
        self.shared.tokens()
    }

    /// Keeps a token, in place of one with the same id.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn write_token(&self, token: &StoredToken) -> Result<(), Fault> {
        self.shared.write_token(token)
    }

    /// Forgets a token. Whether there was one.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn remove_token(&self, id: &str) -> Result<bool, Fault> {
        self.shared.remove_token(id)
    }

    /// Who lives and who owns what, where nodes share the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn membership(&self) -> Result<Option<Membership>, Fault> {
        self.shared.membership()
    }

    /// Whether it takes commands.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let core = self.shared.core.lock();
        core.closed.is_none() && !core.draining
    }

    /// What the engine counted so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }

    /// This life of the node: no two processes share one.
    #[must_use]
    pub fn process(&self) -> &Str {
        &self.shared.process
    }

    /// The definitions it can execute.
    #[must_use]
    pub fn definitions(&self) -> &[Definition] {
        &self.shared.programs.definitions
    }

    /// Whether the program of this name and version lives by its ledger, as functions do; `None` when it is not
    /// registered here.
    #[must_use]
    pub fn replays(&self, workflow: &Str, version: u32) -> Option<bool> {
        self.shared.programs.find(workflow, version).map(|program| program.replays())
    }

    /// Completes a start by the definition that is registered here: of this version, or the newest.
    ///
    /// # Errors
    /// When there is none; it says which there are.
    pub fn plan(&self, spec: &mut StartSpec, version: Option<u32>) -> Result<(), String> {
        self.shared.programs.plan(spec, version)
    }

    /// The newest version of a workflow that workers outside of the nodes have.
    #[must_use]
    pub fn newest(&self, namespace: &Str, workflow: &Str) -> Option<u32> {
        self.shared.core.lock().desk.newest(namespace, workflow)
    }

    /// A request id of this moment. Keep it for retries: the same one gets the first answer.
    #[must_use]
    pub fn new_request(&self) -> RequestId {
        RequestId::new(self.now(), self.shared.entropy.next())
    }

    /// The current instant by the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }

    /// Claims nothing more, waits at most `limit` for attempts that execute, brings the store in order and ends the
    /// engine's threads. What was still executing runs again when the store is opened next.
    pub async fn stop(&self, limit: Duration) -> Stopped {
        self.shared.core.lock().draining = true;
        let shared = self.shared.clone();
        // On the engine's own handle: whoever calls may not be inside a runtime at all.
        let drained = self.shared.handle.spawn(async move { tokio::time::timeout(limit, shared.drained()).await });
        let _ = drained.await;
        let abandoned = self.shared.core.lock().unfinished();
        let shared = self.shared.clone();
        let ended = self.shared.handle.spawn_blocking(move || shared.shut_down("the engine was stopped"));
        let _ = ended.await;
        Stopped { abandoned }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.shut_down("the engine was dropped");
    }
}
