//! Asking: what clients of the world ask for, and what they are told. A client that hears nothing asks again, and says that
//! it is the same question.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use abide::{
    Admission, Client, ClientError, ManualKind, OnConflict, Payload, Refusal, RequestId, RunHandle, RunId, Standing,
    Status, hours, minutes,
};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{BoundaryId, Choice, Consume, LetterId, OpId, Outcome, StartSpec, StatusSet, TokenHash, UniqueKey};
use abide_runtime::Engine;

use crate::parcels;
use crate::truth::{Acknowledged, Witness};

/// When a run may begin, and by when it has to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// At once, and whenever.
    Any,
    /// After some minutes.
    Later,
    /// Within some hours.
    Soon,
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    /// A start, under a key perhaps.
    Start {
        request: RequestId,
        workflow: &'static str,
        input: u64,
        key: Option<String>,
        reuse: bool,
        tenant: &'static str,
        few: bool,
        pace: Pace,
    },
    /// A signal, first sent when so many questions had been asked.
    Signal { run: RunId, name: &'static str, dedup: String, asked: u64 },
    /// An end from outside, of its children as well perhaps.
    Cancel { run: RunId, all: bool },
    /// An update, and its answer.
    Update { run: RunId, dedup: String, input: u64 },
    /// A decision about whatever the run asks.
    Decide { run: RunId, approve: bool },
    /// A task is taken, or given back.
    Assign { run: RunId, take: bool },
    /// What became of an effect that is in doubt.
    Resolve { run: RunId, again: bool },
    /// A dead letter goes back, or is given up.
    Letter { run: RunId, requeue: bool },
    /// An envelope that was set aside goes back in line: the one of so many that there are.
    Settle { nth: u64 },
    /// The record goes.
    Purge { run: RunId },
    /// The journal begins anew.
    Compact { run: RunId },
    /// The result.
    Result { run: RunId },
    /// How it stands.
    Show { run: RunId },
    /// A completion by somebody who holds no claim.
    Forge { run: RunId, claim: u32 },
}

/// What a question does to a run, if it is not refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    /// A signal is there, by its key.
    Signal(String),
    /// The run is ended.
    Cancel,
    /// Somebody has decided.
    Decide,
    /// A doubt is resolved.
    Resolve,
    /// A dead letter is put back.
    Requeue,
    /// A dead letter is given up.
    Discard,
    /// The record is gone.
    Purge,
}

impl Question {
    /// What it does, if that can be told from the journal.
    pub(crate) fn deed(&self) -> Option<(RunId, Deed)> {
        match self {
            Self::Signal { run, dedup, .. } => Some((*run, Deed::Signal(dedup.clone()))),
            Self::Cancel { run, .. } => Some((*run, Deed::Cancel)),
            Self::Decide { run, .. } => Some((*run, Deed::Decide)),
            Self::Resolve { run, .. } => Some((*run, Deed::Resolve)),
            Self::Letter { run, requeue: true } => Some((*run, Deed::Requeue)),
            Self::Letter { run, requeue: false } => Some((*run, Deed::Discard)),
            Self::Purge { run } => Some((*run, Deed::Purge)),
            Self::Start { .. }
            | Self::Settle { .. }
            | Self::Update { .. }
            | Self::Assign { .. }
            | Self::Compact { .. }
            | Self::Result { .. }
            | Self::Show { .. }
            | Self::Forge { .. } => None,
        }
    }

    /// Its name.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Signal { .. } => "signal",
            Self::Cancel { .. } => "cancel",
            Self::Update { .. } => "update",
            Self::Decide { .. } => "decide",
            Self::Assign { .. } => "assign",
            Self::Resolve { .. } => "resolve",
            Self::Letter { .. } => "letter",
            Self::Settle { .. } => "settle",
            Self::Purge { .. } => "purge",
            Self::Compact { .. } => "compact",
            Self::Result { .. } => "result",
            Self::Show { .. } => "show",
            Self::Forge { .. } => "forge",
        }
    }
}

/// How a question came out.
#[derive(Debug)]
pub(crate) enum Told {
    /// Something is so.
    So(Acknowledged),
    /// Something was done of which nothing is remembered.
    Done,
    /// It was refused: in words, and by the engine's own name for it.
    No(String, Option<Box<Refusal>>),
    /// It must not have been answered so.
    Wrong(String),
    /// Nobody knows: the node is gone, or did not say.
    Nothing,
    /// The node takes nothing more: it was not done, and may be asked of another.
    Closed,
}

impl Told {
    fn no(refusal: Refusal) -> Self {
        Self::No(refusal.to_string(), Some(Box::new(refusal)))
    }
}

/// Set when what waits may go on.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Something that was asked for and comes once it is there.
pub(crate) struct Waiting<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
}

impl<T> Waiting<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self { future: Box::pin(future), woken: Arc::new(Woken(AtomicBool::new(true))) }
    }

    /// What came, once it did. It must not be asked again then.
    pub(crate) fn poll(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::AcqRel) {
            return None;
        }
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(came) => Some(came),
            Poll::Pending => None,
        }
    }
}

/// A question on its way.
pub(crate) struct Asked {
    /// What.
    pub(crate) question: Question,
    told: Waiting<Told>,
}

impl Asked {
    /// Asks through a client.
    pub(crate) fn new(question: Question, client: Client, engine: Arc<Engine>) -> Self {
        Self { told: Waiting::new(ask(question.clone(), client, engine)), question }
    }

    /// What came of it, once it did.
    pub(crate) fn poll(&mut self, witness: &Witness) -> Option<Told> {
        let told = self.told.poll()?;
        let well = match &told {
            Told::So(_) | Told::Done => true,
            Told::No(..) => false,
            Told::Wrong(_) => return Some(told),
            Told::Nothing | Told::Closed => return Some(told),
        };
        *witness.truth.lock().verbs.entry((self.question.verb(), well)).or_default() += 1;
        Some(told)
    }
}

async fn ask(question: Question, client: Client, engine: Arc<Engine>) -> Told {
    match question {
        Question::Forge { run, claim } => return forge(run, claim, &engine).await,
        Question::Start { workflow: "parcel", .. } => return start_elsewhere(question, &engine).await,
        _ => {}
    }
    match answer(question, &client).await {
        Ok(told) => told,
        Err(ClientError::Refused(Refusal::Closed { .. })) => Told::Closed,
        Err(ClientError::Engine(_) | ClientError::Refused(Refusal::Unknown)) => Told::Nothing,
        Err(ClientError::Refused(refusal)) => Told::no(refusal),
        Err(error) => Told::No(error.to_string(), None),
    }
}

/// Says that a step has returned, without the token of its claim.
async fn forge(run: RunId, claim: u32, engine: &Engine) -> Told {
    let outcome = Arc::new(Outcome::Done { result: Payload::parse("666".to_owned()).unwrap_or_default() });
    let completing = Completing {
        claim,
        token: TokenHash(666),
        outcome,
        consume: Consume::default(),
        error: None,
        compact_after: None,
        entries: Vec::new(),
    };
    match engine.ask(run.slot(), Command::Complete { run, completing }).await {
        Ok(Answer::Refused(Refusal::Closed { .. })) => Told::Closed,
        Ok(Answer::Refused(Refusal::Unknown)) | Err(_) => Told::Nothing,
        Ok(Answer::Refused(refusal)) => Told::no(refusal),
        Ok(answer) => Told::Wrong(format!("a forged completion of {run} was answered with {answer:?}")),
    }
}

/// What runs are labelled with.
fn kind_of(input: u64) -> &'static str {
    if input.is_multiple_of(2) { "even" } else { "odd" }
}

/// Starts a run of what no node has the code of, as the server does it.
async fn start_elsewhere(question: Question, engine: &Engine) -> Told {
    let Question::Start { request, workflow, input, key, reuse, tenant, few, .. } = question else { return Told::Done };
    let mut spec = StartSpec::new(workflow, parcels::number(input));
    spec.namespace = tenant.into();
    spec.labels.push(("number".into(), kind_of(input).into()));
    spec.deliveries_max = few.then_some(2);
    spec.key = key.as_deref().map(|key| UniqueKey {
        key: key.into(),
        occupied: StatusSet::OPEN,
        on_conflict: if reuse { OnConflict::Reuse } else { OnConflict::Reject },
    });
    match engine.ask(spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) }).await {
        Ok(Answer::Started(answer @ (StartAnswer::Created(run) | StartAnswer::Reused(run)))) => {
            let created = matches!(answer, StartAnswer::Created(_));
            Told::So(Acknowledged::Started { run, workflow, input, key, tenant, request, created })
        }
        Ok(Answer::Refused(Refusal::Closed { .. })) => Told::Closed,
        Ok(Answer::Refused(Refusal::Unknown)) | Err(_) => Told::Nothing,
        Ok(Answer::Refused(refusal)) => Told::no(refusal),
        Ok(answer) => Told::No(format!("{answer:?}"), None),
    }
}

async fn answer(question: Question, client: &Client) -> Result<Told, ClientError> {
    match question {
        Question::Start { .. } => start(question, client).await,
        Question::Signal { run, name, dedup, asked } => {
            client.run(run).signal(name, &asked).dedup(&dedup).await?;
            Ok(Told::So(Acknowledged::Signalled { run, dedup, asked }))
        }
        Question::Cancel { run, all } => {
            let cancelled = client.run(run);
            if all {
                cancelled.cancel_all("enough").await?
            } else {
                cancelled.cancel("enough").await?
            }
            Ok(Told::So(Acknowledged::Cancelled { run }))
        }
        Question::Update { run, dedup, input } => {
            let answer: u64 = client.run(run).update("add", &input).dedup(&dedup).await?;
            Ok(Told::So(Acknowledged::Updated { run, dedup, input, answer }))
        }
        Question::Decide { run, approve } => decide(&client.run(run), approve).await,
        Question::Assign { run, take } => assign(&client.run(run), take).await,
        Question::Resolve { run, again } => resolve(&client.run(run), again).await,
        Question::Letter { run, requeue } => {
            let letter = client.run(run);
            if requeue {
                letter.requeue().await?
            } else {
                letter.discard().await?
            }
            Ok(Told::So(Acknowledged::Lettered { run, requeue }))
        }
        Question::Settle { nth } => settle(client, nth).await,
        Question::Forge { .. } => Ok(Told::Done),
        Question::Purge { run } => {
            client.run(run).purge().await?;
            Ok(Told::So(Acknowledged::Purged { run }))
        }
        Question::Compact { run } => {
            client.run(run).compact().await?;
            Ok(Told::Done)
        }
        Question::Result { run } => match client.run(run).result::<u64>().await {
            Ok(result) => Ok(Told::So(Acknowledged::Ended { run, result: result.to_string() })),
            Err(ClientError::RunFailed { status, .. }) if status != Status::Done => {
                Ok(Told::So(Acknowledged::Over { run, status }))
            }
            Err(error) => Err(error),
        },
        Question::Show { run } => {
            let shown = client.run(run).show().await?;
            Ok(Told::So(Acknowledged::Shown { run, rev: shown.rev }))
        }
    }
}

/// Starts a run.
async fn start(question: Question, client: &Client) -> Result<Told, ClientError> {
    let Question::Start { request, workflow, input, key, reuse, tenant, few, pace } = question else {
        return Ok(Told::Done);
    };
    let mut start = client.start(workflow, &input).request(request).namespace(tenant).priority((input % 3) as i32);
    start = start.label("number", kind_of(input));
    if few {
        let (key, most) = if input.is_multiple_of(4) { ("one", 1) } else { ("few", 2) };
        start = start.deliveries_max(2).concurrency(key, most);
    }
    start = match pace {
        Pace::Any => start,
        Pace::Later => start.delay(minutes(5)),
        Pace::Soon => start.deadline(hours(6)),
    };
    if let Some(key) = &key {
        let conflict = if reuse { OnConflict::Reuse } else { OnConflict::Reject };
        start = start.key(key).on_conflict(conflict);
    }
    let run = start.await?;
    let (created, run) = (run.admission() == Admission::Created, run.id());
    Ok(Told::So(Acknowledged::Started { run, workflow, input, key, tenant, request, created }))
}

/// Decides whatever the run asks. Where nothing is asked, it is said all the same of something that was never asked.
async fn decide(run: &RunHandle, approve: bool) -> Result<Told, ClientError> {
    let Some(asked) = run.boundary().await? else {
        run.approve(never_asked(run), "ada").await?;
        return Ok(Told::Wrong(format!("{} took a decision of what it never asked", run.id())));
    };
    let (choice, decide) = match asked.manual.asked.kind {
        ManualKind::Pause => (Choice::Resume, run.resume(asked.id, "ada")),
        ManualKind::Task => (Choice::Complete, run.complete_task(asked.id, "ada", &0u64)),
        ManualKind::Approval if approve => (Choice::Approve, run.approve(asked.id, "ada")),
        ManualKind::Approval => (Choice::Reject, run.reject(asked.id, "ada")),
    };
    decide.await?;
    Ok(Told::So(Acknowledged::Decided { run: run.id(), op: asked.id.op, choice }))
}

/// Puts an envelope back in line that was set aside.
async fn settle(client: &Client, nth: u64) -> Result<Told, ClientError> {
    let letters = client.dead_letters().await?;
    let Some(letter) = letters.get(nth as usize % letters.len().max(1)) else {
        let letter = LetterId(u64::MAX >> 1);
        client.requeue(letter).await?;
        return Ok(Told::Wrong(format!("{letter:?} was put back, and never was")));
    };
    client.requeue(letter.id).await?;
    Ok(Told::Done)
}

/// A boundary that the run has never had.
fn never_asked(run: &RunHandle) -> BoundaryId {
    BoundaryId { run: run.id(), op: OpId::MAX }
}

/// Takes a task, or gives it back.
async fn assign(run: &RunHandle, take: bool) -> Result<Told, ClientError> {
    let Some(asked) = run.boundary().await? else {
        run.claim_task(never_asked(run), "ada").await?;
        return Ok(Told::Wrong(format!("{} gave away a task that it never asked for", run.id())));
    };
    if take {
        run.claim_task(asked.id, "ada").await?
    } else {
        run.release_task(asked.id, "ada").await?
    };
    Ok(Told::Done)
}

/// Says what became of an effect that is in doubt.
async fn resolve(run: &RunHandle, again: bool) -> Result<Told, ClientError> {
    let effects = run.effects().await?;
    let Some(effect) = effects.into_iter().find(|effect| effect.standing == Standing::InDoubt) else {
        // Of a pure effect there never is a doubt, also if one came about meanwhile.
        run.resolve("quote").actor("ada").value(&0u64).await?;
        return Ok(Told::Wrong(format!("{} had nothing in doubt, and it was resolved", run.id())));
    };
    let resolve = run.resolve(&effect.key).actor("ada");
    if again {
        resolve.retry().await?
    } else {
        resolve.value(&0u64).await?
    };
    Ok(Told::So(Acknowledged::Resolved { run: run.id(), key: effect.key.to_string(), again }))
}
