//! What a server tells of itself: lines of a log on stderr, and traces to a collector.

use std::sync::Arc;

use abide::otlp::Otlp;
use abide_runtime::Tracer;
use clap::{Args, ValueEnum};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry, fmt, registry};

use crate::failure::Failure;

/// What a server tells of itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct Telemetry {
    /// How lines of the log are written to stderr
    #[arg(long, value_enum, default_value = "compact", env = "ABIDE_LOG_FORMAT", value_name = "FORMAT")]
    log: LogFormat,
    /// What is logged: off, error, warn, info, debug or trace, also by part, like warn,abide::run=info
    #[arg(long, default_value = LEVEL, env = "ABIDE_LOG", value_name = "LEVELS")]
    log_level: String,
    /// Where an OpenTelemetry collector takes traces by OTLP over HTTP, like http://127.0.0.1:4318
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide_env_values = true, value_name = "URL")]
    otlp: Option<String>,
    /// What the traces say they are of
    #[arg(long, default_value = "abide", env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    otlp_service: String,
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Several lines each, for reading along.
    Pretty,
    /// One line each.
    Compact,
    /// One JSON document each.
    Json,
}

const LEVEL: &str = "warn";

impl Default for Telemetry {
    fn default() -> Self {
        let (log, log_level) = (LogFormat::Compact, LEVEL.to_owned());
        Self { log, log_level, otlp: None, otlp_service: "abide".into() }
    }
}

impl Telemetry {
    /// Begins to log, and gives whoever takes traces, if there is one.
    pub(crate) fn begin(&self) -> Result<Option<Arc<dyn Tracer>>, Failure> {
        let levels: Targets = self.log_level.parse().map_err(|_| {
            let what = format!("expected levels like info or warn,abide::run=info, found {:?}", self.log_level);
            Failure::usage("bad_log_level", what)
                .hint("one of off, error, warn, info, debug, trace; for some parts another")
        })?;
        let traces = match &self.otlp {
            None => None,
            Some(url) => {
                let open = Otlp::open(url, &self.otlp_service).map_err(|bad| {
                    Failure::usage("bad_collector", bad.to_string()).hint("give the collector's URL with --otlp")
                })?;
                Some(Arc::new(open) as Arc<dyn Tracer>)
            }
        };
        // Another one may be there already, in tests: that is the one that counts.
        let _ = registry().with(self.lines().with_filter(levels)).try_init();
        Ok(traces)
    }

    fn lines(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        let lines =
            fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
        match self.log {
            LogFormat::Pretty => lines.pretty().boxed(),
            LogFormat::Compact => lines.compact().boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        }
    }
}
