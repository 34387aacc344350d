//! The connection of a store: made when it is needed, made anew when it broke, and used by threads that know nothing of
//! async code.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use abide_kernel::ShardId;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::connect::{Role, Settings};
use super::fault::Trouble;
use crate::{Fault, FaultKind};

/// A connection that was not used for so long is tried before something depends on it: nobody looks after it meanwhile.
const UNTRIED_MAX: Duration = Duration::from_secs(1);
/// How long a thread stays awake for the answer to a short statement.
const AWAKE: Duration = Duration::from_micros(400);
const TRYING: Duration = Duration::from_secs(5);
const CLOSING: Duration = Duration::from_secs(1);

/// A value of a statement.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// What a broken connection means for a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It reads: it is done again.
    Read,
    /// It writes what is the same when it is written twice: it is done again.
    Repeatable,
    /// It writes: whether it was done is not known.
    Once,
}

impl Work {
    fn lost(self) -> FaultKind {
        match self {
            Self::Read => FaultKind::Refused,
            Self::Repeatable | Self::Once => FaultKind::Unknown,
        }
    }
}

/// A way to the database, with a small runtime of its own.
#[derive(Debug)]
pub(super) struct Link {
    /// Always there; taken out only to be shut down.
    runtime: Option<Runtime>,
    line: Line,
}

#[derive(Debug)]
struct Line {
    settings: Arc<Settings>,
    role: Role,
    live: Option<Live>,
    /// How many connections were made.
    made: u64,
    used: Instant,
    /// Told of notifications, and of a connection's end.
    heard: Arc<Notify>,
}

impl Link {
    pub(super) fn new(settings: Arc<Settings>, role: Role) -> Result<Self, Fault> {
        // On the thread that waits: a hop to another would cost more than a short statement.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Fault::because(FaultKind::Unusable, "a runtime for the connection could not be made", error)
        })?;
        Ok(Self { runtime: Some(runtime), line: Line::new(settings, role) })
    }

    /// Does a piece of work, on a connection that is made if there is none.
    pub(super) fn run<T: Send>(
        &mut self,
        doing: &str,
        work: Work,
        what: impl AsyncFn(&mut Live) -> Result<T, Trouble> + Send + Sync,
    ) -> Result<T, Fault> {
        self.attempt(work, what).map_err(|trouble| trouble.into_fault(doing, work.lost()))
    }

    /// The same for those who look at what went wrong.
    pub(super) fn attempt<T: Send>(
        &mut self,
        work: Work,
        what: impl AsyncFn(&mut Live) -> Result<T, Trouble> + Send + Sync,
    ) -> Result<T, Trouble> {
        let Self { runtime, line } = self;
        let runtime = runtime.as_ref().expect("the runtime is there until the link is dropped");
        let patience = line.role.patience();
        wait(runtime, async || line.run(work, patience, &what).await)
    }

    /// The same for what takes as long as it takes, and is the same when it is done twice. A connection whose other side is gone
    /// ends by itself.
    pub(super) fn run_at_leisure<T: Send>(
        &mut self,
        doing: &str,
        what: impl AsyncFn(&mut Live) -> Result<T, Trouble> + Send + Sync,
    ) -> Result<T, Fault> {
        let Self { runtime, line } = self;
        let runtime = runtime.as_ref().expect("the runtime is there until the link is dropped");
        let done = wait(runtime, async || line.run(Work::Repeatable, Duration::MAX, &what).await);
        done.map_err(|trouble| trouble.into_fault(doing, Work::Repeatable.lost()))
    }

    /// Waits for a notification, for the end of the connection, or for `most`.
    pub(super) fn wait(&mut self, most: Option<Duration>) {
        let Self { runtime, line } = self;
        let runtime = runtime.as_ref().expect("the runtime is there until the link is dropped");
        wait(runtime, async || match most {
            Some(most) => drop(timeout(most, line.heard.notified()).await),
            None => line.heard.notified().await,
        });
    }

    /// What ends a wait.
    pub(super) fn heard(&self) -> Arc<Notify> {
        self.line.heard.clone()
    }

    /// Takes leave of the server.
    pub(super) fn close(&mut self) {
        let Self { runtime, line } = self;
        if let (Some(runtime), Some(live)) = (runtime, line.live.take()) {
            wait(runtime, async || live.end().await);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Also inside of somebody's runtime, where waiting is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits on this thread, or, inside of somebody's runtime, where that is not allowed, on one that is made for it.
fn wait<T: Send>(runtime: &Runtime, work: impl AsyncFnOnce() -> T + Send) -> T {
    if Handle::try_current().is_err() {
        return runtime.block_on(work());
    }
    std::thread::scope(|scope| match scope.spawn(move || runtime.block_on(work())).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Waits for something that comes soon without falling asleep at first. Others on this runtime have their turns meanwhile.
async fn awake<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let began = Instant::now();
    while began.elapsed() < AWAKE {
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            return done;
        }
        tokio::task::yield_now().await;
    }
    work.await
}

impl Line {
    fn new(settings: Arc<Settings>, role: Role) -> Self {
        Self { settings, role, live: None, made: 0, used: Instant::now(), heard: Arc::new(Notify::new()) }
    }

    async fn run<T>(
        &mut self,
        work: Work,
        patience: Duration,
        what: &impl AsyncFn(&mut Live) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut again = work != Work::Once;
        loop {
            let live = self.connected().await?;
            let done = timeout(patience, what(live)).await.unwrap_or(Err(Trouble::Late));
            self.used = Instant::now();
            let Err(trouble) = done else { return done };
            if !trouble.is_lost() {
                return Err(trouble);
            }
            self.live = None;
            // Its socket closes now, and not only when there is something to do again.
            tokio::task::yield_now().await;
            if !std::mem::take(&mut again) {
                return Err(trouble);
            }
        }
    }

    async fn connected(&mut self) -> Result<&mut Live, Trouble> {
        if self.used.elapsed() > UNTRIED_MAX
            && let Some(live) = &self.live
            && !matches!(timeout(TRYING, live.client.check_connection()).await, Ok(Ok(())))
        {
            self.live = None;
        }
        if self.live.as_ref().is_none_or(|live| live.client.is_closed()) {
            // The one before is given up first: it may hold what the next one needs.
            self.live = None;
            let mut live = self.settings.connect(self.role, &self.heard).await?;
            self.made += 1;
            live.number = self.made;
            self.live = Some(live);
        }
        Ok(self.live.as_mut().expect("it was just made"))
    }
}

/// A connection that was alive when it was last used.
#[derive(Debug)]
pub(super) struct Live {
    client: Client,
    task: JoinHandle<()>,
    statements: HashMap<&'static str, Statement>,
    /// Which connection of its link it is. What holds only while the server lives is known by it.
    number: u64,
    /// Shards whose logs end with what was written by this connection.
    pub(super) followed: HashSet<ShardId>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Live {
    pub(super) fn new(client: Client, task: JoinHandle<()>) -> Self {
        let (statements, followed) = (HashMap::new(), HashSet::new());
        Self { client, task, statements, number: 0, followed }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Statements without values or answers.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), Trouble> {
        Ok(self.client.batch_execute(sql).await?)
    }

    pub(super) async fn query(&mut self, sql: &'static str, with: &[Value<'_>]) -> Result<Vec<Row>, Trouble> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.query(&statement, with).await?)
    }

    pub(super) async fn query_one(&mut self, sql: &'static str, with: &[Value<'_>]) -> Result<Row, Trouble> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.query_one(&statement, with).await?)
    }

    pub(super) async fn query_opt(&mut self, sql: &'static str, with: &[Value<'_>]) -> Result<Option<Row>, Trouble> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.query_opt(&statement, with).await?)
    }

    pub(super) async fn execute(&mut self, sql: &'static str, with: &[Value<'_>]) -> Result<u64, Trouble> {
        let statement = self.prepared(sql).await?;
        Ok(self.client.execute(&statement, with).await?)
    }

    /// The same, by a thread that stays awake for the answer: falling asleep and being woken takes a good part of the time
    /// that a single short commit does.
    pub(super) async fn execute_awake(&mut self, sql: &'static str, with: &[Value<'_>]) -> Result<u64, Trouble> {
        let statement = self.prepared(sql).await?;
        Ok(awake(self.client.execute(&statement, with)).await?)
    }

    /// A statement that was put together for one use.
    pub(super) async fn query_once(&self, sql: &str, with: &[(Value<'_>, Type)]) -> Result<Vec<Row>, Trouble> {
        Ok(self.client.query_typed(sql, with).await?)
    }

    /// Several statements that are carried out together or not at all.
    pub(super) async fn transaction<T>(
        &mut self,
        begin: &str,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.batch(begin).await?;
        match work(self).await {
            Ok(value) => {
                self.batch("COMMIT").await?;
                Ok(value)
            }
            Err(trouble) if trouble.is_lost() => Err(trouble),
            Err(trouble) => {
                // Whatever was refused, the session must not stay inside: else it is given up.
                self.batch("ROLLBACK").await?;
                Err(trouble)
            }
        }
    }

    async fn prepared(&mut self, sql: &'static str) -> Result<Statement, Trouble> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    /// Makes statements ready before they are needed.
    pub(super) async fn prepare(&mut self, all: &[&'static str]) -> Result<(), Trouble> {
        for sql in all {
            self.prepared(sql).await?;
        }
        Ok(())
    }

    async fn end(mut self) {
        let task = std::mem::replace(&mut self.task, tokio::spawn(async {}));
        // Without its client a connection says good-bye.
        drop(self);
        let _ = timeout(CLOSING, task).await;
    }
}
