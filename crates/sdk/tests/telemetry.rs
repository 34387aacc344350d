//! What an engine tells of itself: spans, counts and lines of the log.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{
    Ctx, EndedSpan, Engine, Failure, FnCtx, Function, Machine, RetryPolicy, SpanOf, Status, StepError, TraceContext,
    Tracer, child, done, next, spawn,
};
use parking_lot::Mutex;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Keeps the spans it is told of.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<EndedSpan>>>);

impl Tracer for Spans {
    fn ended(&self, span: EndedSpan) {
        self.0.lock().push(span);
    }
}

impl Spans {
    /// What they are of and how they ended, in the order they did.
    fn told(&self) -> Vec<(String, &'static str)> {
        let name = |span: &EndedSpan| {
            let workflow = &span.started.spec.workflow;
            match &span.of {
                SpanOf::Start => format!("start {workflow}"),
                SpanOf::End => format!("end {workflow}"),
                SpanOf::Attempt { step, attempt, .. } => format!("{workflow} {} {attempt}", step.as_deref().unwrap()),
            }
        };
        self.0.lock().iter().map(|span| (name(span), span.outcome)).collect()
    }
}

fn order() -> Machine<u32> {
    Machine::<u32>::new("order")
        .retry(RetryPolicy::exponential(1))
        .step("charge", async |ctx: Ctx, tries: u32| match ctx.attempt() {
            0 => Err(StepError::new("no route").code("network")),
            _ => Ok(next("ship", tries)),
        })
        .step("ship", async |_, tries: u32| Ok(spawn([child("print", &tries)], "sent", tries)))
        .step("sent", async |_, _: u32| Ok(done(&"sent")))
}

fn print() -> Machine<u32> {
    Machine::<u32>::new("print").step("label", async |_, _: u32| Ok(done(&"label")))
}

/// AB-20: all attempts of a run and of its children are in the trace that it was asked for in, each told once, below the
/// span of their run's start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_shows_the_run_over_retries_and_children() {
    let (spans, given) = (Spans::default(), GIVEN.parse::<TraceContext>().unwrap());
    let engine = Engine::open("memory:").tracer(spans.clone()).register(order()).register(print());
    let engine = engine.start().await.unwrap();
    let run = engine.client().start("order", &1u32).trace(given).await.unwrap();
    run.result::<String>().await.unwrap();
    let unseen = GIVEN.replace("-01", "-00").parse::<TraceContext>().unwrap();
    engine.client().start("print", &1u32).trace(unseen).await.unwrap().result::<String>().await.unwrap();
    engine.stop(Duration::from_secs(5)).await;
    let told = spans.told();
    let told: Vec<(&str, &str)> = told.iter().map(|(name, outcome)| (name.as_str(), *outcome)).collect();
    let expected = [
        ("start order", "started"),
        ("order charge 0", "retried"),
        ("order charge 1", "completed"),
        ("start print", "started"),
        ("print label 0", "completed"),
        ("end print", "done"),
        ("order ship 0", "completed"),
        ("order sent 0", "completed"),
        ("end order", "done"),
    ];
    let (mut sorted, mut wanted) = (told.clone(), expected.to_vec());
    sorted.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(sorted, wanted, "{told:?}");
    let spans = spans.0.lock();
    assert!(spans.iter().all(|span| span.context.trace() == given.trace() && span.began <= span.ended));
    let start = |workflow: &str| {
        let of = |span: &&EndedSpan| matches!(span.of, SpanOf::Start) && &*span.started.spec.workflow == workflow;
        spans.iter().find(of).unwrap()
    };
    assert_eq!(start("order").parent, Some(given.span()));
    assert_eq!(start("print").parent, Some(start("order").context.span()), "a child is below its parent");
    for span in spans.iter().filter(|span| !matches!(span.of, SpanOf::Start)) {
        assert_eq!(span.parent, Some(start(&span.started.spec.workflow).context.span()), "{span:?}");
    }
    let failed = spans.iter().find(|span| span.outcome == "retried").unwrap();
    assert_eq!(&*failed.error.as_ref().unwrap().code, "network");
}

/// AB-20: what happened is counted from facts, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_is_counted() {
    let engine = Engine::open("memory:").register(order()).register(print()).start().await.unwrap();
    engine.client().start("order", &1u32).key("one").await.unwrap().result::<String>().await.unwrap();
    let meter = engine.metrics().meter;
    assert_eq!(meter.runs_started, 2);
    assert_eq!(meter.runs_completed[&Status::Done], 2);
    assert_eq!((meter.attempts["completed"], meter.attempts["retried"]), (4, 1));
    assert_eq!(meter.run_seconds.count(), 2);
    assert_eq!(meter.schedule_to_start.values().map(|waited| waited.count()).sum::<u64>(), 5);
    assert!(meter.append_seconds.count() > 0 && meter.append_seconds.count() == meter.batch_rows.count());
    assert_eq!((meter.leases_expired, meter.divergences, meter.fenced_writes), (0, 0, 0));
    engine.stop(Duration::from_secs(5)).await;
}

/// Keeps what is logged at all, with the fields of the span around it.
struct Lines(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<S> Layer<S> for Lines
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, id: &tracing::span::Id, context: Context<'_, S>) {
        let mut text = Text(String::new());
        attributes.record(&mut text);
        context.span(id).unwrap().extensions_mut().insert(text);
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut text = Text(format!("{} ", event.metadata().target()));
        event.record(&mut text);
        for span in context.event_scope(event).into_iter().flatten() {
            text.0 += &span.extensions().get::<Text>().unwrap().0;
        }
        self.0.lock().push(text.0);
    }
}

/// AB-20: code that is replayed logs nothing that it logged before; what it logs says of which run, step and attempt it is;
/// the engine logs one line for each change, and never what the run works with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_quiet_during_replay() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(Registry::default().with(Lines(lines.clone()))).unwrap();
    let polls = Arc::new(AtomicU32::new(0));
    let counted = polls.clone();
    let greet = Function::new("greet", move |ctx: FnCtx, secret: String| {
        let polls = counted.clone();
        async move {
            polls.fetch_add(1, Ordering::SeqCst);
            tracing::info!("first");
            let one = ctx.effect("one", async |_| Ok::<_, StepError>(1)).await?;
            tracing::info!("second");
            ctx.signal::<String>("go").await?;
            tracing::info!("third");
            ctx.sleep(Duration::from_millis(1)).await?;
            tracing::info!("fourth");
            Ok::<_, Failure>(format!("{secret}{one}"))
        }
    });
    let engine = Engine::open("memory:").register(greet).start().await.unwrap();
    let run = engine.client().start("greet", "hush-hush").await.unwrap();
    while run.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    run.signal("go", "now").await.unwrap();
    assert_eq!(run.result::<String>().await.unwrap(), "hush-hush1");
    engine.stop(Duration::from_secs(5)).await;
    assert!(polls.load(Ordering::SeqCst) >= 3, "it was replayed");
    let lines = lines.lock();
    let theirs: Vec<&String> = lines.iter().filter(|line| line.starts_with("telemetry ")).collect();
    let words: Vec<&str> = theirs.iter().filter_map(|line| line.split("message=").nth(1)?.split(' ').next()).collect();
    assert_eq!(words, ["first", "second", "third", "fourth"], "{theirs:?}");
    let id = run.id().to_string();
    for line in &theirs {
        let says = |field: &str| line.contains(field);
        assert!(
            says(&format!("run={id}")) && says("workflow=\"greet\"") && says("step=") && says("attempt=0"),
            "{line}"
        );
    }
    let changes: Vec<&String> = lines.iter().filter(|line| line.starts_with("abide::run ")).collect();
    assert!(changes.iter().any(|line| line.contains("started") && line.contains(&id)), "{changes:?}");
    assert!(changes.iter().any(|line| line.contains("ended")), "{changes:?}");
    assert!(lines.iter().all(|line| !line.contains("hush")), "{lines:?}");
}
