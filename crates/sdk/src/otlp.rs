//! Traces to a collector, by OTLP over HTTP: spans of runs and attempts, as they end.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let traces = abide::otlp::Otlp::open("http://127.0.0.1:4318", "shop")?;
//! let engine = abide::Engine::open("sqlite:abide.db").tracer(traces).start().await?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use abide_runtime::{EndedSpan, SpanOf, Tracer};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanProcessor};

/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A way to a collector. What it cannot be told in time is left out: nothing waits for it.
pub struct Otlp {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

/// A collector that cannot be named so.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint:?}: expected the URL of a collector, like http://127.0.0.1:4318")]
pub struct BadCollector {
    endpoint: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Otlp {
    /// Traces of a service, to the collector at a URL. Nobody is asked yet whether it is there.
    ///
    /// # Errors
    /// When the URL is none.
    pub fn open(endpoint: &str, service: &str) -> Result<Self, BadCollector> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let bad = |source| BadCollector { endpoint: endpoint.into(), source };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client(&url).map_err(bad)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| bad(error.into()))?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        processor.set_resource(&Resource::builder().with_service_name(service.to_owned()).build());
        let scope = InstrumentationScope::builder("abide").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { processor, scope })
    }
}

/// What asks the collector. It blocks the thread that sends, and must be made where blocking is allowed.
fn client(url: &str) -> Result<reqwest::blocking::Client, Box<dyn std::error::Error + Send + Sync>> {
    let tls = crate::tls::config(url, &[])?;
    let make = move || reqwest::blocking::Client::builder().tls_backend_preconfigured(tls).timeout(PATIENCE).build();
    let made = std::thread::spawn(make).join();
    Ok(made.map_err(|_| "the client could not be made")??)
}

impl Tracer for Otlp {
    fn ended(&self, span: EndedSpan) {
        self.processor.on_end(data(span, self.scope.clone()));
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        if let Err(error) = self.processor.shutdown() {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}

impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otlp").finish_non_exhaustive()
    }
}

fn data(span: EndedSpan, scope: InstrumentationScope) -> SpanData {
    let flags = TraceFlags::default().with_sampled(span.context.is_sampled());
    let (trace, id) = (TraceId::from(span.context.trace()), SpanId::from(span.context.span()));
    let status = match (&span.error, span.outcome) {
        (Some(error), _) => Status::error(error.code.to_string()),
        (None, "failed" | "expired") => Status::error(span.outcome),
        (None, _) => Status::Unset,
    };
    let (name, span_kind) = match &span.of {
        SpanOf::Start => (format!("start {}", span.started.spec.workflow), SpanKind::Producer),
        SpanOf::End => (format!("end {}", span.started.spec.workflow), SpanKind::Internal),
        SpanOf::Attempt { step, .. } => {
            let step = step.as_deref().unwrap_or("attempt");
            (format!("{} {step}", span.started.spec.workflow), SpanKind::Consumer)
        }
    };
    SpanData {
        span_context: SpanContext::new(trace, id, flags, false, TraceState::default()),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from),
        // Whoever asked for the run is another program; what is below a run is not.
        parent_span_is_remote: matches!(span.of, SpanOf::Start),
        span_kind,
        name: name.into(),
        start_time: span.began,
        end_time: span.ended,
        attributes: attributes(&span),
        dropped_attributes_count: 0,
        events: Default::default(),
        links: Default::default(),
        status,
        instrumentation_scope: scope,
    }
}

fn attributes(span: &EndedSpan) -> Vec<KeyValue> {
    let spec = &span.started.spec;
    let mut all = vec![
        KeyValue::new("abide.run.id", span.run.to_string()),
        KeyValue::new("abide.workflow", spec.workflow.to_string()),
        KeyValue::new("abide.workflow.version", i64::from(spec.version)),
        KeyValue::new("abide.namespace", spec.namespace.to_string()),
        KeyValue::new("abide.queue", spec.queue.to_string()),
        KeyValue::new("abide.outcome", span.outcome),
    ];
    if let SpanOf::Attempt { claim, step, attempt, by } = &span.of {
        all.push(KeyValue::new("abide.claim", claim.to_string()));
        if let (Some(step), Some(by)) = (step, by) {
            all.push(KeyValue::new("abide.step", step.to_string()));
            all.push(KeyValue::new("abide.attempt", i64::from(*attempt)));
            all.push(KeyValue::new("abide.worker", by.owner.to_string()));
        }
    }
    if let Some(error) = &span.error {
        all.push(KeyValue::new("error.type", error.code.to_string()));
    }
    all
}
