//! The audit: every change that somebody asked for is kept, without payloads and secrets: what operators do before they are
//! answered, what programs start and signal a moment later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant as Moment};

use abide_kernel::Timestamp;
use abide_protocol::{Change, Instant, Route, Scope, openapi};
use abide_runtime::Engine;
use abide_store::{Fault, Kept};
use axum::body::Body;
use axum::http::Response;
use tokio::sync::{mpsc, oneshot};

use crate::auth::Principal;
use crate::limits::{AUDIT_LINGER, AUDIT_TOGETHER_MAX, AUDIT_WAITING_MAX};

/// Under which kind the store keeps it.
pub const AUDIT: &str = "audit";
/// How often it is looked for what is too old, while changes come.
const PRUNED_EVERY: Duration = Duration::from_secs(60 * 60);
/// Changes that are removed together: others write meanwhile.
const PRUNED_TOGETHER: usize = 1_000;

/// Keeps changes. Those that come together are written together.
#[derive(Clone)]
pub(crate) struct Auditor {
    changes: mpsc::Sender<Keeping>,
    /// How many there were.
    count: Arc<AtomicU32>,
}

/// A change that is to be kept, and who waits until it is.
type Keeping = (Kept, Option<oneshot::Sender<()>>);

/// The code of the problem that an answer is.
#[derive(Clone)]
pub(crate) struct Coded(pub(crate) String);

/// Who asked, where nobody has to be known before: whom an answer is about.
#[derive(Clone)]
pub(crate) struct Actor(pub(crate) String);

/// What somebody was answered.
pub(crate) struct Told {
    status: u16,
    code: Option<String>,
}

impl Told {
    pub(crate) fn of(answer: &Response<Body>) -> Self {
        let code = answer.extensions().get::<Coded>().map(|coded| coded.0.clone());
        Self { status: answer.status().as_u16(), code }
    }
}

/// What is below the name of every change since an instant, and above those before it.
#[must_use]
pub fn audit_mark(at: Timestamp) -> String {
    format!("{:012x}", at.0.max(0))
}

/// A change as it was kept.
///
/// # Errors
/// When it cannot be read.
pub fn audit_change(kept: &Kept) -> Result<Change, serde_json::Error> {
    serde_json::from_str(&kept.body)
}

/// Removes the changes from before an instant, some at a time. How many there were. It blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prune_audit(engine: &Engine, at: Timestamp) -> Result<u64, Fault> {
    let (mark, mut all) = (audit_mark(at), 0);
    loop {
        let removed = engine.forget_below(AUDIT, &mark, PRUNED_TOGETHER)?;
        all += removed;
        if removed < PRUNED_TOGETHER as u64 {
            return Ok(all);
        }
    }
}

/// Whether it could be what a change is called.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Auditor {
    /// Begins to keep changes, for as long as somebody has this.
    pub(crate) fn new(engine: Arc<Engine>, keeps: Option<Duration>) -> Self {
        let (sender, changes) = mpsc::channel(AUDIT_WAITING_MAX);
        tokio::spawn(keep_all(engine, changes, keeps));
        Self { changes: sender, count: Arc::default() }
    }

    /// What a change is called: by its time, and within a millisecond by when it came, so that the audit is in order.
    fn name(&self, drawn: u128) -> String {
        let (time, count) = (drawn >> 80, self.count.fetch_add(1, Ordering::Relaxed));
        format!("{time:012x}{count:08x}{:012x}", drawn & 0xffff_ffff_ffff)
    }

    /// Keeps what was asked and answered. A store that cannot be written has failed the change itself, or says so in the log:
    /// what was done is done.
    pub(crate) async fn keep(&self, engine: &Engine, who: &Principal, route: &Route, path: &str, told: Told) {
        let id = self.name(engine.new_request().0);
        let change = Change {
            id: id.clone(),
            at: Instant(engine.now()),
            token: who.token.clone(),
            name: who.name.clone(),
            operation: openapi::operation_id(route),
            target: path.chars().take(1_000).collect(),
            status: told.status,
            code: told.code,
        };
        let Ok(body) = serde_json::to_string(&change) else { return };
        let kept = Kept { kind: AUDIT.into(), id, body };
        // What programs start and signal is durable in the runs themselves: they do not wait for a second commit.
        if matches!(route.scope, Some(Scope::Start | Scope::Signal)) {
            let _ = self.changes.send((kept, None)).await;
            return;
        }
        let (reply, told) = oneshot::channel();
        if self.changes.send((kept, Some(reply))).await.is_ok() {
            // Whoever keeps it is gone only with the server.
            let _ = told.await;
        }
    }
}

/// Gathers changes until somebody waits, there are enough, or it is time.
async fn gather(changes: &mut mpsc::Receiver<Keeping>, together: &mut Vec<Keeping>) {
    let until = tokio::time::Instant::now() + AUDIT_LINGER;
    while together.len() < AUDIT_TOGETHER_MAX && together.iter().all(|(_, reply)| reply.is_none()) {
        match tokio::time::timeout_at(until, changes.recv()).await {
            Ok(Some(change)) => together.push(change),
            Ok(None) | Err(_) => return,
        }
    }
}

async fn keep_all(engine: Arc<Engine>, mut changes: mpsc::Receiver<Keeping>, keeps: Option<Duration>) {
    let (mut together, mut pruned) = (Vec::new(), None::<Moment>);
    while changes.recv_many(&mut together, AUDIT_TOGETHER_MAX).await > 0 {
        gather(&mut changes, &mut together).await;
        let (all, replies): (Vec<Kept>, Vec<_>) = together.drain(..).unzip();
        let keeping = engine.clone();
        match tokio::task::spawn_blocking(move || keeping.keep(&all)).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => tracing::error!(%fault, "changes could not be kept in the audit"),
            Err(error) => tracing::error!(%error, "changes could not be kept in the audit"),
        }
        for reply in replies.into_iter().flatten() {
            // Whoever asked may have gone; it is kept all the same.
            let _ = reply.send(());
        }
        // With a change and not by a clock: where nothing changes nothing is read or written.
        if let Some(keeps) = keeps.filter(|_| pruned.is_none_or(|at| at.elapsed() >= PRUNED_EVERY)) {
            pruned = Some(Moment::now());
            prune(&engine, keeps).await;
        }
    }
}

/// Removes what is older than is kept.
async fn prune(engine: &Arc<Engine>, keeps: Duration) {
    let pruning = engine.clone();
    let old = i64::try_from(keeps.as_millis()).unwrap_or(i64::MAX);
    let at = Timestamp(engine.now().0.saturating_sub(old));
    match tokio::task::spawn_blocking(move || prune_audit(&pruning, at)).await {
        Ok(Ok(_)) => {}
        Ok(Err(fault)) => tracing::warn!(%fault, "what is old could not be removed from the audit; it is tried again"),
        Err(error) => tracing::error!(%error, "what is old could not be removed from the audit"),
    }
}
