//! The engine of a test: the real one, in memory, with a clock that skips what nobody does anything in.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_kernel::shard::Batch;
use abide_kernel::{Refusal, RequestId, Row, RunId, Seq, ShardId, Status, Timestamp};
use abide_runtime::{Clock, Config, Program, Rest, Unanswered};
use abide_store::memory::{Faults, MemoryStore, WriteFault};
use abide_store::{Filter, Page, Store};
use parking_lot::Mutex;
use serde::Serialize;

use super::history::Aliases;
use super::journal::read_journal;
use super::report::Side;
use super::run::TestRun;
use super::script::{Script, Scripted};
use super::wait::{block_on, outside};
use crate::{Client, ClientError, Start, Workflow};

/// When the tests' time begins: the first day of 2030.
const BEGINNING: Timestamp = Timestamp(1_893_456_000_000);

/// Skips of the clock after which a run counts as one without end.
const SKIPS_MAX: usize = 10_000;

/// How long work may take in real time before the test is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine for tests: everything in memory, in virtual time, and with faults on demand. Clones are the same engine.
///
/// It needs no async test: its methods wait by themselves. It is opened when it is first used.
#[derive(Clone)]
pub struct TestEngine {
    inner: Arc<Inner>,
}

struct Inner {
    store: MemoryStore,
    /// When the test's time begins.
    beginning: AtomicI64,
    clock: Arc<AtomicI64>,
    script: Arc<Script>,
    state: Mutex<State>,
    aliases: Mutex<Aliases>,
}

struct State {
    programs: Vec<Arc<dyn Program>>,
    engine: Option<Arc<abide_runtime::Engine>>,
    requests: u128,
    skips_max: usize,
    patience: Duration,
    /// How often the engine was found closed by a fault of its store, and how much was durable then.
    crashes: Vec<Vec<Row>>,
    /// Whether checkpoints and index rows are lost with a crash.
    crash_loses_checkpoints: bool,
}

impl Default for TestEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl TestEngine {
    /// An engine without workflows.
    #[must_use]
    pub fn new() -> Self {
        Self::with_shards(1)
    }

    /// The same over several shards, so that runs send each other messages.
    ///
    /// # Panics
    /// When there are no shards, or too many.
    #[must_use]
    pub fn with_shards(shards: u16) -> Self {
        let state = State {
            programs: Vec::new(),
            engine: None,
            requests: 0,
            skips_max: SKIPS_MAX,
            patience: PATIENCE,
            crashes: Vec::new(),
            crash_loses_checkpoints: false,
        };
        let inner = Inner {
            store: MemoryStore::new(shards),
            beginning: AtomicI64::new(BEGINNING.0),
            clock: Arc::new(AtomicI64::new(BEGINNING.0)),
            script: Arc::default(),
            state: Mutex::new(state),
            aliases: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Makes a workflow known. One of the same name and version takes the place of the one before, as a deploy does: the
    /// engine is restarted with it.
    ///
    /// # Panics
    /// When the workflow is not as it should be.
    #[must_use]
    pub fn register(self, workflow: impl Workflow) -> Self {
        self.deploy(workflow);
        self
    }

    /// Restarts the engine with another workflow, or with other code for one it has.
    ///
    /// # Panics
    /// When the workflow is not as it should be.
    pub fn deploy(&self, workflow: impl Workflow) {
        let program = workflow.into_program().unwrap_or_else(|(workflow, problem)| panic!("{workflow}: {problem}"));
        self.add(program);
    }

    pub(super) fn add(&self, program: Arc<dyn Program>) {
        self.end();
        let new = program.definition();
        let mut state = self.inner.state.lock();
        state.programs.retain(|known| {
            let known = known.definition();
            known.workflow != new.workflow || known.version != new.version
        });
        state.programs.push(program);
    }

    /// Skips of the clock after which a test is given up as one without end: 10 000, unless it is said otherwise.
    #[must_use]
    pub fn skips_max(self, most: usize) -> Self {
        self.inner.state.lock().skips_max = most;
        self
    }

    /// How long effects may take in real time before a test is given up: 20 seconds, unless it is said otherwise.
    #[must_use]
    pub fn patience(self, limit: Duration) -> Self {
        self.inner.state.lock().patience = limit;
        self
    }

    /// Says what effects of this name answer. A name is what the code calls the effect, with its scope before it
    /// (`items/3/charge`); a key with a number (`charge#2`) is one of several.
    #[must_use]
    pub fn operation(&self, name: &str) -> Scripted {
        Scripted { engine: self.clone(), name: name.into() }
    }

    /// Starts a run, and lets happen what happens at once.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start<I: Serialize + ?Sized>(&self, workflow: &str, input: &I) -> TestRun {
        self.start_as(workflow, input, |start| start)
    }

    /// Starts a run with more said about it: a key, a queue, a deadline.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_as<I: Serialize + ?Sized>(&self, workflow: &str, input: &I, say: impl Fn(Start) -> Start) -> TestRun {
        // What the test does never meets a run half-way, so that it meets it at the same place every time.
        self.settle();
        let request = self.request();
        let started = self.ask(|client| say(client.start(workflow, input).request(request)).into_future());
        let run = started.unwrap_or_else(|error| panic!("{workflow} could not be started: {error}"));
        let run = self.run(run.id());
        self.settle();
        run
    }

    /// A run that exists, such as a child.
    #[must_use]
    pub fn run(&self, run: RunId) -> TestRun {
        self.inner.aliases.lock().of(run);
        TestRun { engine: self.clone(), id: run }
    }

    /// Lets everything happen that can, skipping time to the next deadline whenever nothing else does. Afterwards every
    /// run has ended or waits for something from outside.
    ///
    /// # Panics
    /// When there is no end to it.
    pub fn run_until_blocked(&self) {
        self.run_until(|| false);
    }

    /// The same, until `done` says so. Whether it did.
    pub(super) fn run_until(&self, done: impl Fn() -> bool) -> bool {
        let most = self.inner.state.lock().skips_max;
        for _ in 0..most {
            let next = self.settle();
            if done() {
                return true;
            }
            let Some(next) = next else {
                return false;
            };
            self.move_to(next);
        }
        panic!("after {most} skips of the clock there is still something due; see TestEngine::skips_max");
    }

    /// Lets everything happen that can happen now, without a moment passing. The next deadline, if there is one.
    ///
    /// # Panics
    /// When an effect or step takes longer than the test's patience.
    pub fn settle(&self) -> Option<Timestamp> {
        loop {
            let patience = self.inner.state.lock().patience;
            match self.engine().settle_down(patience) {
                Rest::Until(next) => return next,
                Rest::Closed(_) => self.note_crash(),
                Rest::Working { executing } => panic!(
                    "after {patience:?} {executing} attempts still execute: time stands still while they do, so they must not wait for it"
                ),
            }
        }
    }

    /// Lets so much time pass, with everything that is due in it, in order.
    pub fn advance(&self, time: Duration) {
        let end = self.now().after(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        while let Some(next) = self.settle().filter(|next| *next <= end) {
            self.move_to(next);
        }
        self.move_to(end);
        self.settle();
    }

    fn move_to(&self, at: Timestamp) {
        self.inner.clock.fetch_max(at.0, Ordering::AcqRel);
        self.engine().clock_moved();
    }

    /// The current instant.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.inner.clock.load(Ordering::Acquire))
    }

    /// How much time has passed since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now().since(self.beginning()))
    }

    pub(super) fn beginning(&self) -> Timestamp {
        Timestamp(self.inner.beginning.load(Ordering::Acquire))
    }

    /// Takes in a journal that was exported, or written by hand: the run goes on where it ends. On an engine that has no
    /// runs yet, time begins with the journal.
    ///
    /// # Panics
    /// When the journal cannot be read.
    pub fn import(&self, journal: &str) -> TestRun {
        self.end();
        let (mut rows, run) = read_journal(journal).unwrap_or_else(|bad| panic!("the journal cannot be read: {bad}"));
        let mut store = self.inner.store.clone();
        let shard = store.map().home(run.id.slot());
        let opened = store.open_shard(shard, "import").expect("a store in memory opens");
        let mut prior = Seq(0);
        for (row, seq) in rows.iter_mut().zip(opened.head.0 + 1..) {
            (row.seq, row.prior) = (Seq(seq), prior);
            prior = Seq(seq);
        }
        let began = rows.first().map_or(BEGINNING, |row| row.at);
        let batch = Batch { shard, epoch: opened.epoch, rows, ..Batch::default() };
        store.append(&[batch]).expect("a store in memory takes a journal");
        if opened.head == Seq(0) {
            self.inner.beginning.store(began.0, Ordering::Release);
            self.inner.clock.store(run.updated_at.0, Ordering::Release);
        }
        self.inner.clock.fetch_max(run.updated_at.0, Ordering::AcqRel);
        self.run(run.id)
    }

    /// Ends the engine as a crash would, and opens the same store again.
    pub fn restart(&self) {
        self.end();
        self.engine();
    }

    /// Deletes every checkpoint and index row, and restarts the engine: it has the journal alone.
    pub fn lose_checkpoints(&self) {
        self.end();
        self.inner.store.faults().lose_index();
        self.engine();
    }

    /// The next append finds that another process has taken the store over. The engine opens it anew and goes on.
    ///
    /// # Panics
    /// When the store has been told to fail.
    pub fn conflict_next_append(&self) {
        self.engine();
        let mut other = self.inner.store.clone();
        for shard in other.map().all() {
            other.open_shard(shard, "another process").expect("a store in memory opens");
        }
    }

    /// Kills the engine at an append to come: `after` more go well. It is opened again by itself.
    pub fn crash_at_append(&self, after: usize, side: Side) {
        let fault = match side {
            Side::Before => WriteFault::FatalLost,
            Side::After => WriteFault::FatalWritten,
        };
        self.faults().fail_append_after(after, fault);
    }

    /// Says that a crash takes checkpoints and index rows with it.
    pub(super) fn lose_checkpoints_with_crashes(&self) {
        self.inner.state.lock().crash_loses_checkpoints = true;
    }

    /// Everything else that can go wrong with the store.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.inner.store.faults()
    }

    /// A client, for what has no method here. It lasts until the engine is restarted.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.engine())
    }

    /// Whether any run has this status.
    pub(super) fn has_any(&self, status: Status) -> bool {
        let mut filter = Filter::default();
        filter.statuses.push(status);
        let page = Page { most: 1, before: None };
        let found = self.ask(|client| {
            let (filter, page) = (&filter, &page);
            async move { client.list(filter, page).await }
        });
        found.is_ok_and(|found| !found.is_empty())
    }

    pub(super) fn script(&self) -> &Script {
        &self.inner.script
    }

    pub(super) fn aliases(&self) -> &Mutex<Aliases> {
        &self.inner.aliases
    }

    /// What was durable at each crash so far.
    pub(super) fn crashes(&self) -> Vec<Vec<Row>> {
        self.inner.state.lock().crashes.clone()
    }

    pub(super) fn request(&self) -> RequestId {
        let mut state = self.inner.state.lock();
        state.requests += 1;
        RequestId::new(self.now(), state.requests)
    }

    /// Asks the engine, and asks the next one when this one dies meanwhile: the request must say that it is the same.
    pub(super) fn ask<T, F>(&self, question: impl Fn(Client) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        loop {
            match block_on(question(self.client())) {
                Err(error) if is_closed(&error) => self.note_crash(),
                answer => return answer,
            }
        }
    }

    fn engine(&self) -> Arc<abide_runtime::Engine> {
        let mut state = self.inner.state.lock();
        if let Some(engine) = &state.engine {
            return engine.clone();
        }
        let mut config = Config::default();
        config.node = "test".into();
        config.programs.clone_from(&state.programs);
        config.clock = Clock::Manual(self.inner.clock.clone());
        config.observer = Some(self.inner.script.clone());
        // Index rows are written with every commit, and none because real time passes.
        config.flush_runs = 1;
        config.flush_quiet = Duration::from_secs(3_600);
        let store = Box::new(self.inner.store.clone());
        // Opened outside of whatever runtime the test has, it gets one of its own, which goes on while the test waits.
        let opened = outside(|| abide_runtime::Engine::open(store, config));
        let engine = Arc::new(opened.unwrap_or_else(|error| panic!("the engine could not be opened: {error}")));
        state.engine = Some(engine.clone());
        engine
    }

    fn end(&self) {
        self.inner.end();
    }

    /// The engine closed because its store failed: as after a crash, it is opened again when it is used next.
    fn note_crash(&self) {
        self.end();
        let mut store = self.inner.store.clone();
        let mut durable = Vec::new();
        for shard in store.map().all().collect::<Vec<ShardId>>() {
            let rows = store.scan(shard, Seq(0), usize::MAX / 2).unwrap_or_default();
            durable.extend(rows.into_iter().flatten());
        }
        let mut state = self.inner.state.lock();
        state.crashes.push(durable);
        if state.crash_loses_checkpoints {
            self.inner.store.faults().lose_index();
        }
    }
}

impl Inner {
    fn end(&self) {
        let engine = self.state.lock().engine.take();
        if let Some(engine) = engine {
            engine.crash();
            // A runtime must not be dropped inside another one.
            outside(move || drop(engine));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the engine was gone before it could answer. Of what it was writing then nobody knows: only crashes make it so here.
fn is_closed(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Refused(Refusal::Closed { .. } | Refusal::Unknown) | ClientError::Engine(Unanswered::Gone)
    )
}
