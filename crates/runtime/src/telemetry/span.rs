//! Spans: a short one for the start of a run, one for each attempt when it has ended, and a short one for the end of the
//! run. No span is as long as a run, which may take a month. Whoever commits a fact tells of its span, so that each is told
//! once, on whichever node; their ids follow from the run and the claim.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use abide_kernel::shard::Dispatch;
use abide_kernel::{ClaimId, Claimant, ErrorInfo, Fact, Row, Run, RunId, Started, Str, Timestamp, TraceContext};
use hashbrown::HashMap;

/// Told of spans that have ended. It is called while the engine commits, and must neither wait nor ask the engine.
pub trait Tracer: Send + Sync {
    /// A span has ended.
    fn ended(&self, span: EndedSpan);
}

/// A span that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndedSpan {
    /// Its place in the trace.
    pub context: TraceContext,
    /// The span above it.
    pub parent: Option<u64>,
    /// When it began; of an attempt that another process handed out, when it ended.
    pub began: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// The run.
    pub run: RunId,
    /// How the run was started.
    pub started: Arc<Started>,
    /// What it is the span of.
    pub of: SpanOf,
    /// How it ended, in a word.
    pub outcome: &'static str,
    /// What went wrong.
    pub error: Option<Arc<ErrorInfo>>,
}

/// What a span is the span of.
#[derive(Clone, Debug)]
pub enum SpanOf {
    /// The start of a run, from when it was asked for to when it was durable. All others of the run are below it.
    Start,
    /// The end of a run.
    End,
    /// An attempt, from when its worker was given it to when its end was durable.
    Attempt {
        /// The claim.
        claim: ClaimId,
        /// The step, if this process handed it out.
        step: Option<Str>,
        /// Attempts at the step that came before.
        attempt: u32,
        /// Who had it.
        by: Option<Arc<Claimant>>,
    },
}

/// Attempts that have not ended, if somebody wants to be told of their spans, or what they are of is logged.
#[derive(Default)]
pub(crate) struct OpenSpans {
    tracer: Option<Arc<dyn Tracer>>,
    open: HashMap<ClaimId, Open>,
}

struct Open {
    began: SystemTime,
    step: Str,
    attempt: u32,
    by: Arc<Claimant>,
}

impl OpenSpans {
    pub(crate) fn new(tracer: Option<Arc<dyn Tracer>>) -> Self {
        Self { tracer, open: HashMap::new() }
    }

    pub(super) fn begin(&mut self, dispatch: &Dispatch, logs: bool) {
        if self.tracer.is_none() && !logs {
            return;
        }
        let attempt = dispatch.retries + dispatch.reclaims;
        let (step, by) = (dispatch.step.clone(), dispatch.by.clone());
        self.open.insert(dispatch.claim, Open { began: SystemTime::now(), step, attempt, by });
    }

    /// The step of an attempt that has not ended, and which attempt at it.
    pub(super) fn place(&self, claim: ClaimId) -> Option<(Str, u32)> {
        self.open.get(&claim).map(|open| (open.step.clone(), open.attempt))
    }

    /// Attempts of these runs end elsewhere.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(RunId) -> bool) {
        self.open.retain(|claim, _| !is_gone(claim.run));
    }

    /// Tells of what a row ends.
    pub(super) fn observe<'a>(&mut self, row: &Row, run: impl Fn() -> Option<&'a Run>) {
        let Some(tracer) = self.tracer.clone() else {
            for number in row.facts.iter().filter_map(super::ended_claim) {
                self.open.remove(&ClaimId { run: row.run, number });
            }
            return;
        };
        for fact in &row.facts {
            let (claim, outcome, error) = match fact {
                Fact::Completed(completed) => (completed.claim, "completed", completed.error.clone()),
                Fact::Failed(failed) => {
                    let outcome = if failed.retry_at.is_some() { "retried" } else { "failed" };
                    (failed.claim, outcome, Some(failed.error.clone()))
                }
                Fact::Expired(expired) => (expired.claim, "expired", None),
                Fact::Returned(returned) => (returned.claim, "returned", None),
                Fact::Started(_) | Fact::Ended(_) => {
                    let known = run().filter(|run| !run.is_reservation()).map(|run| &run.started);
                    if let Some(span) = known.and_then(|started| run_span(row, started, fact)) {
                        tracer.ended(span);
                    }
                    continue;
                }
                _ => continue,
            };
            let claim = ClaimId { run: row.run, number: claim };
            let open = self.open.remove(&claim);
            if let Some(run) = run()
                && let Some(span) = ended_attempt(claim, open, &run.started, outcome, error)
            {
                tracer.ended(span);
            }
        }
    }
}

/// The span of a run's start or end; none if whoever began the trace does not want it.
fn run_span(row: &Row, started: &Arc<Started>, fact: &Fact) -> Option<EndedSpan> {
    let start = TraceContext::of_run(row.run, started);
    if !start.is_sampled() {
        return None;
    }
    let now = SystemTime::now();
    let span = EndedSpan {
        context: start,
        parent: started.spec.trace.map(TraceContext::span),
        began: instant(row.run.made_at()).min(now),
        ended: now,
        run: row.run,
        started: started.clone(),
        of: SpanOf::Start,
        outcome: "started",
        error: None,
    };
    let Fact::Ended(ended) = fact else { return Some(span) };
    let told = row.facts.iter().find_map(|fact| match fact {
        Fact::Failed(failed) => Some(failed.error.clone()),
        _ => None,
    });
    Some(EndedSpan {
        context: TraceContext::of_end(row.run, started),
        parent: Some(start.span()),
        began: instant(row.at).min(now),
        of: SpanOf::End,
        outcome: ended.status.name(),
        error: ended.error.clone().or(told),
        ..span
    })
}

fn instant(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or(0))
}

fn ended_attempt(
    claim: ClaimId,
    open: Option<Open>,
    started: &Arc<Started>,
    outcome: &'static str,
    error: Option<Arc<ErrorInfo>>,
) -> Option<EndedSpan> {
    let context = TraceContext::of_attempt(claim, started);
    if !context.is_sampled() {
        return None;
    }
    let now = SystemTime::now();
    let began = open.as_ref().map_or(now, |open| open.began);
    let of = SpanOf::Attempt {
        claim,
        step: open.as_ref().map(|open| open.step.clone()),
        attempt: open.as_ref().map_or(0, |open| open.attempt),
        by: open.map(|open| open.by),
    };
    let parent = Some(TraceContext::of_run(claim.run, started).span());
    let started = started.clone();
    Some(EndedSpan { context, parent, began, ended: now, run: claim.run, started, of, outcome, error })
}

/// The span inside which the code of an attempt runs, so that what it logs says where it belongs.
pub(crate) fn attempt_span(dispatch: &Dispatch) -> tracing::Span {
    let spec = &dispatch.started.spec;
    tracing::info_span!(
        target: "abide::attempt",
        "attempt",
        run = %dispatch.claim.run,
        workflow = &*spec.workflow,
        step = &*dispatch.step,
        attempt = dispatch.retries + dispatch.reclaims,
        queue = &*spec.queue,
    )
}
