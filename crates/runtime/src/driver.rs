//! The driver: the thread that turns the crank, and what all threads of an engine share.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abide_kernel::shard::{Rules, Windows};
use abide_kernel::{Claimant, RunId, Str, TokenHash, limits};
use abide_store::{Reader, Store};
use hashbrown::HashMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::Clock;
use crate::bell::Bell;
use crate::commit::{Releasing, Turn};
use crate::config::{Config, Pool, millis};
use crate::core::{Core, Programs};
use crate::engine::OpenError;
use crate::entropy::Entropy;
use crate::observer::Observer;
use crate::program::Notifier;
use crate::queues;
use crate::steps::Steps;
use crate::tail::Tail;
use crate::telemetry::OpenSpans;
use crate::views::Views;
use crate::watchdog::Role;
use crate::writer::Writer;

/// How long the end of an engine waits for its threads: one that a step blocks for ever must not keep its owner.
const PATIENCE: Duration = Duration::from_secs(2);

/// The shortest lease of a claim.
const LEASE_MIN: Duration = Duration::from_millis(limits::LEASE_MS_MIN);

/// Commits that the end of an engine may take to give back what was handed out last.
const LAST_COMMITS: usize = 8;

/// Steps polled in a row before the driver looks at the time and at what callers have asked.
const JOBS_IN_A_ROW: usize = 1_024;

/// What all threads of an engine share.
pub(crate) struct Shared {
    pub(crate) core: Mutex<Core>,
    pub(crate) store: Mutex<Box<dyn Store>>,
    /// For what is found at once: tokens, rules, who lives.
    pub(crate) reader: Mutex<Box<dyn Reader>>,
    /// For whatever takes longer.
    pub(crate) views: Arc<Views>,
    pub(crate) steps: Steps,
    pub(crate) bell: Bell,
    /// Whether a commit has left it to the driver to let out what it made durable.
    pub(crate) left_over: AtomicBool,
    /// Rung whenever the driver is about to sleep.
    pub(crate) rested: Bell,
    pub(crate) role: Role,
    pub(crate) writer: Writer,
    pub(crate) programs: Programs,
    pub(crate) pools: Vec<Pool>,
    /// Caps and rates of the configuration.
    pub(crate) limits: Rules,
    /// The same, with those that hold for queues by the word of others. Changed under the lock of the core.
    pub(crate) rules: Mutex<Rules>,
    /// Whoever changes what holds for queues does so alone.
    pub(crate) changing_queues: Mutex<()>,
    /// Whether another node has changed it.
    pub(crate) rules_changed: AtomicBool,
    /// What those rules are known by among nodes.
    pub(crate) rules_mark: AtomicU64,
    pub(crate) definition_wait: Duration,
    /// How much of what waits and of what is due is kept in memory.
    pub(crate) windows: Windows,
    pub(crate) any_workflow: bool,
    pub(crate) notifier: Option<Arc<dyn Notifier>>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) node: Str,
    pub(crate) process: Str,
    pub(crate) token: TokenHash,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// What is added to the clock: the store's time, where nodes share it.
    pub(crate) offset: AtomicI64,
    pub(crate) flush_runs: usize,
    flush_quiet: Duration,
    pub(crate) entropy: Entropy,
    /// Whether there are no threads: whoever holds the crank turns it.
    pub(crate) by_hand: bool,
    pub(crate) damaged: Mutex<HashMap<RunId, String>>,
    /// Rung whenever a local attempt of an engine that stops has ended, or will not.
    pub(crate) attempt_ended: Notify,
    stopping: AtomicBool,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) handle: Handle,
    /// Where the users' own transactions go, where they have connections of their own.
    pub(crate) pool: Option<Arc<dyn Any + Send + Sync>>,
    /// Who follows what happens.
    pub(crate) tail: Tail,
    /// Rings for the one that takes in what is asked by SQL.
    pub(crate) intake: OnceLock<abide_store::intake::Ring>,
}

impl Shared {
    /// Opens the shards of `store`. Nothing happens yet.
    pub(crate) fn open(
        mut store: Box<dyn Store>,
        config: Config,
        handle: Handle,
        by_hand: bool,
    ) -> Result<Arc<Self>, OpenError> {
        let mut reader = store.reader()?;
        let (rules, rules_mark) = queues::rules(&config.limits, reader.as_mut())?;
        let (process, token) = identity(&config.entropy);
        let (node, lease) = (Str::from(config.node.as_str()), config.lease.max(LEASE_MIN));
        let claimant = Claimant::new(node.clone(), token, millis(lease), Some(process.clone()));
        let mut core = Core::new(store.map(), &rules, claimant, config.pools.len());
        core.spans = OpenSpans::new(config.tracer.clone());
        if store.cluster().is_some() {
            core.ring = Some(config.ring(&process));
        }
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            views: Arc::new(Views::new(reader.opener())),
            reader: Mutex::new(reader),
            steps: Steps::default(),
            bell: Bell::default(),
            left_over: AtomicBool::new(false),
            rested: Bell::default(),
            role: Role::default(),
            writer: Writer::default(),
            programs: Programs::new(&config.programs),
            pools: config.pools,
            limits: config.limits,
            rules: Mutex::new(rules),
            changing_queues: Mutex::new(()),
            rules_changed: AtomicBool::new(false),
            rules_mark: AtomicU64::new(rules_mark),
            definition_wait: config.definition_wait,
            windows: config.windows,
            any_workflow: config.any_workflow,
            notifier: config.notifier,
            observer: config.observer,
            node,
            process,
            token,
            lease,
            clock: config.clock,
            offset: AtomicI64::new(0),
            flush_runs: config.flush_runs,
            flush_quiet: config.flush_quiet,
            entropy: config.entropy,
            by_hand,
            damaged: Mutex::new(HashMap::new()),
            attempt_ended: Notify::new(),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            handle,
            pool: store.pool(),
            tail: Tail::default(),
            intake: OnceLock::new(),
            store: Mutex::new(store),
        });
        shared.begin()?;
        Ok(shared)
    }

    /// Takes its shards: all of them, or its share.
    fn begin(&self) -> Result<(), OpenError> {
        let mut store = self.store.lock();
        let mut core = self.core.lock();
        if core.ring.is_some() {
            core.pools = self.empty_pools(&core);
            drop(core);
            self.renew(store.as_mut())?;
        } else {
            self.open_shards(store.as_mut(), &mut core, &mut Vec::new())?;
            drop(core);
        }
        self.announce(store.as_mut());
        Ok(())
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        millis(self.lease)
    }

    /// Wakes the one that takes in what is asked by SQL, if there is one.
    pub(crate) fn ring_intake(&self) {
        if let Some(ring) = self.intake.get() {
            ring();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Shared {
    /// Waits until no attempt executes any more.
    pub(crate) async fn drained(&self) {
        loop {
            let ended = self.attempt_ended.notified();
            if self.core.lock().unfinished() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Ends the threads and closes the store; a second call finds nothing to do.
    pub(crate) fn shut_down(&self, reason: &str) {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.core.lock().draining = true;
        self.role.stop();
        self.bell.ring();
        self.writer.ring();
        self.ring_intake();
        let threads = std::mem::take(&mut *self.threads.lock());
        let patience = Instant::now() + PATIENCE;
        for thread in threads {
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            while !thread.is_finished() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            } else {
                tracing::warn!("a step holds its thread; the engine ends without it");
            }
        }
        // A commit may hand out what was claimed before the drain: it is given back, which is another commit.
        for _ in 0..LAST_COMMITS {
            if self.core.lock().closed.is_some() {
                break;
            }
            self.let_out_ready();
            self.give_back_unbegun();
            self.commit_next(true, Releasing::Here);
            if self.steps.is_empty() && !self.core.lock().wants_append() {
                break;
            }
        }
        self.leave(self.store.lock().as_mut());
        if let Err(fault) = self.store.lock().close() {
            tracing::warn!(%fault, "the store could not be closed in good order; nothing is lost");
        }
        self.close(reason);
        self.forget_attempts();
    }

    /// Drops attempts that nobody will go on with. They hold on to the engine, which would keep both for good.
    fn forget_attempts(&self) {
        let executing = std::mem::take(&mut self.core.lock().executing);
        executing.values().for_each(|executing| executing.news.revoke());
        while self.steps.pop().is_some() {}
    }

    /// Turns the crank until another thread takes it over or the engine stops.
    fn drive(self: &Arc<Self>, number: u64) {
        let mut polled = 0;
        while self.role.is_held_by(number) && !self.is_stopping() {
            if self.left_over.load(Ordering::Acquire) {
                self.let_out_ready();
            }
            if polled < JOBS_IN_A_ROW
                && let Some(job) = self.steps.pop()
            {
                self.role.beat();
                self.poll(job);
                polled += 1;
                continue;
            }
            if polled == JOBS_IN_A_ROW {
                // Steps that keep each other busy must not keep time and callers waiting.
                polled = 0;
                self.pass_time();
                self.let_out_ready();
                if self.core.lock().wants_append() {
                    self.writer.ring();
                }
                continue;
            }
            polled = 0;
            self.role.beat();
            let due = self.pass_time();
            let quiet = self.flush_due();
            let turn = self.commit_here_or_there(quiet == Some(Duration::ZERO));
            let let_out = self.let_out_ready();
            if turn == Turn::Worked || let_out || !self.steps.is_empty() {
                continue;
            }
            // Whoever is at the store rings when it is free: until then there is nothing to be done about index rows.
            let quiet = quiet.filter(|_| turn == Turn::Idle);
            let most = [due, quiet].into_iter().flatten().min();
            self.role.set_idle(true);
            self.rested.ring();
            self.bell.wait(most);
            self.role.set_idle(false);
        }
        // Whoever drives now may have found the store busy, or nothing to do, while this thread had it.
        self.bell.ring();
    }

    /// How long until index rows should be written because nothing else happens; `None` when none are behind.
    pub(crate) fn flush_due(&self) -> Option<Duration> {
        let core = self.core.lock();
        if core.behind() == 0 || core.closed.is_some() {
            return None;
        }
        if core.wants_append() {
            return Some(self.flush_quiet);
        }
        let quiet = Duration::from_millis(self.now().since(core.last_change));
        Some(self.flush_quiet.saturating_sub(quiet))
    }
}

/// Starts a thread that drives under the given number.
pub(crate) fn spawn_driver(shared: &Arc<Shared>, number: u64) {
    let driven = shared.clone();
    let spawned =
        std::thread::Builder::new().name(format!("abide-driver-{number}")).spawn(move || driven.drive(number));
    match spawned {
        Ok(thread) => {
            let mut threads = shared.threads.lock();
            threads.retain(|thread| !thread.is_finished());
            threads.push(thread);
        }
        Err(error) => tracing::error!(%error, "a driver thread could not be started"),
    }
}

/// The identity of this process and the hash of the token under which its workers claim.
fn identity(entropy: &Entropy) -> (Str, TokenHash) {
    let secret = [entropy.next().to_be_bytes(), entropy.next().to_be_bytes()].concat();
    let hash = Sha256::digest(secret);
    let token = u128::from_be_bytes(hash[..16].try_into().expect("a digest has 32 bytes"));
    let process = u64::from_be_bytes(hash[16..24].try_into().expect("a digest has 32 bytes"));
    let pid = match entropy {
        Entropy::System => std::process::id(),
        Entropy::Seeded(_) => 0,
    };
    (format!("{pid:x}-{process:016x}").into(), TokenHash(token))
}
