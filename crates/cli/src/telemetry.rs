//! What a server tells of itself: lines of a log on stderr, and traces to a collector.

use std::sync::Arc;

use abide::otlp::Otlp;
use abide_runtime::Tracer;
use clap::{Args, ValueEnum};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry, fmt, registry};

use crate::failure::Failure;
use crate::settings::nearest;

/// What a server tells of itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct Telemetry {
    /// How lines of the log are written to stderr
    #[arg(long, value_enum, default_value = "compact", env = "ABIDE_LOG_FORMAT", value_name = "FORMAT")]
    log: LogFormat,
    /// What is logged: off, error, warn, info, debug or trace, also by part, like warn,abide::run=info
    #[arg(long, default_value = "warn", env = "ABIDE_LOG", value_name = "LEVELS")]
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

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Levels as they are given. A word alone is a level: it would be taken for the name of a part, of which everything
/// is logged.
fn levels(text: &str) -> Result<Targets, Failure> {
    let alone = text.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains('='));
    let strange = alone.into_iter().find(|word| !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)));
    let parsed = text.parse().ok().filter(|_| strange.is_none() && !text.trim().is_empty());
    parsed.ok_or_else(|| {
        let what = format!("expected levels like info or warn,abide::run=info, found {text:?}");
        let near = strange.and_then(|word| nearest(word, LEVELS.into_iter()));
        let near = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        let all = LEVELS.join(", ");
        Failure::usage("bad_log_level", what).hint(format!("{near}one of {all}; for some parts another, as PART=LEVEL"))
    })
}

impl Telemetry {
    /// Begins to log, and gives whoever takes traces, if there is one.
    pub(crate) fn begin(&self) -> Result<Option<Arc<dyn Tracer>>, Failure> {
        let levels = levels(&self.log_level)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_alone_is_a_level() {
        for right in ["info", "WARN", "off", "warn,abide::run=info", "abide=debug", "info, abide::run=trace"] {
            assert!(levels(right).is_ok(), "{right}");
        }
        for wrong in ["nonsense", "", "warn,everything", "abide::run", "abide=loud", "inof"] {
            let failure = levels(wrong).expect_err(wrong);
            assert!(failure.code == "bad_log_level" && failure.what.contains("info"), "{wrong}");
        }
        assert!(
            levels("debgu").is_err_and(|failure| failure.hint.is_some_and(|hint| hint.contains("did you mean debug?")))
        );
    }
}
