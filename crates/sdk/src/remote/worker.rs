//! A worker of a server: takes attempts over HTTP, executes them here, and says what came of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::shard::Command;
use abide_kernel::transition::claim::Definition;
use abide_kernel::{ClaimId, Claimant, StartSpec, Timestamp, TokenHash};
use abide_protocol::limits::CLAIMS_MAX;
use abide_protocol::{Attempt, ClaimWork, Claims, Offered, Report, Say, Secret, UNSAID};
use abide_runtime::{AttemptLink, Carrying, Clock, Courier, Entropy, Hands, Pool, Program, Stopped, Unanswered};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::Http;
use super::http::{Ask, Trouble, pause};
use super::reporter::{Outbox, Said};
use crate::ClientError;

/// How long a question for attempts waits.
const WAIT: Duration = Duration::from_secs(20);
/// How long whoever begins waits to be told that it is not known.
const KNOCK: Duration = Duration::from_secs(5);
/// How long the end waits for reports that are under way.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a worker is told when it begins.
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) pools: Vec<Pool>,
    pub(crate) programs: Vec<Arc<dyn Program>>,
    pub(crate) clock: Clock,
}

/// A worker that works. Whoever drops the last hold on it from outside stops it.
pub(crate) struct Hired {
    pub(super) http: Http,
    pub(super) handle: Handle,
    /// What only this worker knows: whoever reports on its attempts must have it.
    pub(super) secret: Secret,
    by: Arc<Claimant>,
    definitions: Vec<Definition>,
    programs: HashMap<(String, u32), Arc<dyn Program>>,
    queues: Vec<String>,
    hands: Hands,
    clock: Clock,
    pub(super) state: Mutex<State>,
    /// Rung when a place is free, an attempt begins, or all that was said is answered.
    pub(super) changed: Notify,
    phase: watch::Sender<Phase>,
    /// What the server will never answer otherwise.
    failure: watch::Sender<Option<String>>,
}

/// What changes.
pub(super) struct State {
    pub(super) outbox: Outbox,
    /// Free places by pool.
    free: Vec<usize>,
    executing: HashMap<ClaimId, AttemptLink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Working,
    /// It takes nothing more.
    Draining,
    /// Nothing more is said.
    Closed,
}

impl Worker {
    /// All that it takes to work. Nothing is asked yet.
    pub(crate) fn hire(self, http: Http) -> std::io::Result<Arc<Hired>> {
        let handle = Handle::current();
        let secret = format!("{:032x}{:032x}", Entropy::System.next(), Entropy::System.next());
        let digest = Sha256::digest(secret.as_bytes());
        let token = TokenHash(u128::from_be_bytes(digest[..16].try_into().expect("a digest has 32 bytes")));
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let definitions: Vec<Definition> = self.programs.iter().map(|program| program.definition()).collect();
        let programs = definitions.iter().zip(&self.programs);
        let programs = programs.map(|(known, program)| ((known.workflow.to_string(), known.version), program.clone()));
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Arc::new(Hired {
            http,
            secret: Secret::new(secret),
            by: Claimant::new(self.name.as_str().into(), token, lease_ms, None),
            programs: programs.collect(),
            definitions,
            queues: self.pools.iter().map(|pool| pool.queue.clone()).collect(),
            hands: Hands::new(threads, handle.clone())?,
            clock: self.clock,
            state: Mutex::new(State {
                outbox: Outbox::default(),
                free: self.pools.iter().map(|pool| pool.concurrency).collect(),
                executing: HashMap::new(),
            }),
            changed: Notify::new(),
            phase: watch::Sender::new(Phase::Working),
            failure: watch::Sender::new(None),
            handle,
        }))
    }
}

impl Hired {
    /// Begins to work, unless the server will never give it anything.
    pub(crate) async fn begin_to_work(self: &Arc<Self>) -> Result<(), ClientError> {
        if self.definitions.is_empty() {
            return Ok(());
        }
        for pool in 0..self.queues.len() {
            if let Err(trouble) = self.knock(pool).await {
                self.close();
                return Err(trouble.into());
            }
        }
        for pool in 0..self.queues.len() {
            let hired = self.clone();
            self.handle.spawn(async move { hired.claim(pool).await });
        }
        let beating = self.clone();
        self.handle.spawn(async move { beating.beat().await });
        Ok(())
    }

    pub(super) fn pools(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.phase.borrow() == Phase::Closed
    }

    pub(crate) fn executing(&self) -> usize {
        self.state.lock().executing.len()
    }

    /// Completes a start by the definition that is registered here, if one is: of this version, or the newest.
    pub(crate) fn plan(&self, spec: &mut StartSpec, version: Option<u32>) {
        let known = self.definitions.iter().filter(|known| known.workflow == spec.workflow);
        let newest = known.map(|known| known.version).max();
        spec.version = version.or(newest).unwrap_or(UNSAID);
    }

    /// Waits, unless a phase comes.
    async fn until(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // The sender lives as long as this does.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }

    pub(super) async fn rest(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.until(Phase::Closed) => {}
        }
    }

    /// What is asked for; nothing when it takes nothing more.
    pub(super) fn asks(&self, pool: usize, most: usize, wait_ms: u64) -> Option<ClaimWork> {
        let offered = |known: &Definition| Offered {
            workflow: known.workflow.to_string(),
            version: known.version,
            fingerprint: format!("{:016x}", known.fingerprint.0),
            first_step: known.first_step.to_string(),
        };
        (*self.phase.borrow() == Phase::Working).then(|| ClaimWork {
            worker: self.by.owner.to_string(),
            token_hash: format!("{:032x}", self.by.token.0),
            queues: vec![self.queues[pool].clone()],
            workflows: self.definitions.iter().map(offered).collect(),
            most: (most as u32).min(CLAIMS_MAX),
            lease_ms: self.by.lease_ms,
            wait_ms,
        })
    }

    /// Asks once for a pool, and waits for nothing: whoever has the wrong token is told when it begins, and not never. A
    /// server that is not there yet may come.
    async fn knock(self: &Arc<Self>, pool: usize) -> Result<(), Trouble> {
        let most = std::mem::take(&mut self.state.lock().free[pool]);
        let ask = self.asks(pool, most, 0);
        let ask = ask.as_ref().and_then(|ask| Ask::post("/worker/claims", ask).ok());
        let answered = match &ask {
            Some(ask) => tokio::time::timeout(KNOCK, self.http.once::<Claims>(ask)).await.ok(),
            None => None,
        };
        let claims = match answered {
            Some(Ok(Claims { claims })) => claims,
            Some(Err(trouble)) if trouble.is_final() => return Err(trouble),
            Some(Err(_)) | None => Vec::new(),
        };
        self.state.lock().free[pool] += most.saturating_sub(claims.len());
        self.begin(pool, claims);
        Ok(())
    }

    /// Asks no more for a pool: it would never be given anything. What executes goes on.
    fn give_up(&self, pool: usize, trouble: Trouble) {
        let why = ClientError::from(trouble).to_string();
        tracing::error!(
            queue = self.queues[pool],
            why,
            "a worker asks no more: the server will never give it anything"
        );
        self.failure.send_if_modified(|failure| failure.replace(why).is_none());
    }

    /// Why it asks no more, if it does not.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Waits until it asks no more.
    pub(crate) async fn failed(&self) -> String {
        let mut failures = self.failure.subscribe();
        match failures.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // The sender lives as long as this does.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Takes attempts for a pool, as long as there is room.
    async fn claim(self: &Arc<Self>, pool: usize) {
        let mut tries = 0;
        loop {
            let changed = self.changed.notified();
            let most = std::mem::take(&mut self.state.lock().free[pool]);
            if most == 0 {
                tokio::select! {
                    () = changed => continue,
                    () = self.until(Phase::Draining) => return,
                }
            }
            let Some(ask) = self.asks(pool, most, WAIT.as_millis() as u64) else { return };
            let ask = match Ask::post("/worker/claims", &ask) {
                Ok(ask) => ask.wait(WAIT),
                Err(error) => {
                    tracing::error!(%error, "a worker cannot say what it asks for");
                    return;
                }
            };
            let answered = tokio::select! {
                answered = self.http.once::<Claims>(&ask) => answered,
                () = self.until(Phase::Draining) => return,
            };
            match answered {
                Ok(Claims { claims }) => {
                    tries = 0;
                    self.state.lock().free[pool] += most.saturating_sub(claims.len());
                    self.begin(pool, claims);
                }
                Err(trouble) if trouble.is_final() => {
                    self.state.lock().free[pool] += most;
                    return self.give_up(pool, trouble);
                }
                Err(trouble) => {
                    tracing::warn!(?trouble, "a worker was given nothing, and asks again");
                    self.state.lock().free[pool] += most;
                    self.rest(pause(tries)).await;
                    tries += 1;
                }
            }
        }
    }

    /// Places are free, and some of them are taken at once by what came for them.
    pub(super) fn free(self: &Arc<Self>, pools: &[usize], came: Option<(usize, Vec<Attempt>)>) {
        if pools.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            pools.iter().for_each(|pool| state.free[*pool] += 1);
            if let Some((pool, claims)) = &came {
                state.free[*pool] = state.free[*pool].saturating_sub(claims.len());
            }
        }
        if let Some((pool, claims)) = came {
            self.begin(pool, claims);
        }
        self.changed.notify_waiters();
    }

    fn begin(self: &Arc<Self>, pool: usize, claims: Vec<Attempt>) {
        let none = self.state.lock().executing.is_empty();
        for attempt in claims {
            let (claim, name) = (attempt.claim, (attempt.workflow.clone(), attempt.version));
            let courier: Arc<dyn Courier> = Arc::new(Back(self.clone()));
            let link = AttemptLink::carried(claim, self.by.token, courier);
            let Some(program) = self.programs.get(&name).cloned() else {
                let say = Say::GiveBack {};
                self.say(Said::new(Report { claim, say }, None, Some(pool)));
                continue;
            };
            let dispatch = Box::new(attempt.into_dispatch(self.http.namespace(), &self.by));
            self.state.lock().executing.insert(claim, link.clone());
            let hired = self.clone();
            let done = move |command| hired.finished(pool, claim, command);
            self.hands.execute(program, abide_runtime::Attempt { dispatch, link }, done);
        }
        if none {
            self.changed.notify_waiters();
        }
    }

    fn finished(self: &Arc<Self>, pool: usize, claim: ClaimId, command: Option<Command>) {
        let report = command.and_then(|command| Report::of(command, self.clock.now()));
        let mut state = self.state.lock();
        // With the lock held: after its last words nothing more is said of an attempt.
        state.executing.remove(&claim);
        let Some(report) = report else {
            drop(state);
            return self.free(&[pool], None);
        };
        let begins = state.outbox.put(Said::new(report, None, Some(pool)));
        drop(state);
        if begins {
            self.begin_to_send();
        }
    }

    /// Says that attempts go on, for as long as any does.
    async fn beat(self: &Arc<Self>) {
        let third = Duration::from_millis(self.by.lease_ms / 3);
        loop {
            let changed = self.changed.notified();
            if self.executing() == 0 {
                tokio::select! {
                    () = changed => continue,
                    () = self.until(Phase::Closed) => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(third) => {}
                () = self.until(Phase::Closed) => return,
            }
            self.say_alive();
        }
    }

    fn say_alive(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let held: Vec<(ClaimId, AttemptLink)> =
            state.executing.iter().map(|(claim, link)| (*claim, link.clone())).collect();
        let mut begins = 0;
        for (claim, link) in held {
            let (reply, answer) = oneshot::channel();
            let said = Said::new(Report { claim, say: Say::Heartbeat {} }, Some(reply), None);
            begins += usize::from(state.outbox.put(said));
            self.handle.spawn(async move {
                if let Ok(Err(Unanswered::Said { .. })) = answer.await {
                    link.revoke();
                }
            });
        }
        drop(state);
        (0..begins).for_each(|_| self.begin_to_send());
    }

    /// Takes nothing more, waits at most `limit` for what executes, and for what is said of it.
    pub(crate) async fn stop(&self, limit: Duration) -> Stopped {
        self.phase.send_if_modified(|phase| {
            let begins = *phase < Phase::Draining;
            *phase = (*phase).max(Phase::Draining);
            begins
        });
        let quiet = |state: &State| state.executing.is_empty() && state.outbox.is_empty();
        let _ = tokio::time::timeout(limit, self.rests_when(quiet)).await;
        let abandoned = self.executing();
        let _ = tokio::time::timeout(LAST_WORDS, self.rests_when(|state| state.outbox.is_empty())).await;
        self.close();
        Stopped { abandoned }
    }

    async fn rests_when(&self, rests: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if rests(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Says nothing more. Attempts that execute still are let go: their leases end.
    pub(crate) fn close(&self) {
        self.phase.send_replace(Phase::Closed);
        let executing = std::mem::take(&mut self.state.lock().executing);
        executing.values().for_each(AttemptLink::revoke);
    }
}

/// The way back for what is executed here.
struct Back(Arc<Hired>);

impl Courier for Back {
    fn carry(&self, command: Command) -> Carrying {
        let Self(hired) = self;
        let Some(report) = Report::of(command, hired.clock.now()) else {
            return Box::pin(std::future::ready(Err(Unanswered::Gone)));
        };
        let (reply, answer) = oneshot::channel();
        hired.say(Said::new(report, Some(reply), None));
        Box::pin(async move { answer.await.unwrap_or(Err(Unanswered::Gone)) })
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn handle(&self) -> &Handle {
        &self.0.handle
    }
}
