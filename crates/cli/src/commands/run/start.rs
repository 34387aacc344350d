//! `abide run start`: a run begins without its code. Name and version are pinned now, the definition at the first
//! claim.

use std::path::PathBuf;
use std::time::Duration;

use abide_kernel::shard::Answer;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{Concurrency, OnConflict, RequestId, RunId, StartSpec, StatusSet, UniqueKey};
use abide_protocol::UNSAID;
use abide_runtime::new_request;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::watch::{Told, follow};
use crate::failure::{Exit, Failure, Outcome};
use crate::input::{duration, label, payload};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Start a run of a workflow; an engine that has its code executes it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run start greet --input '{\"name\":\"Ada\"}'
  abide run start checkout --input-file order.json --key order-17 --on-conflict reuse
  jq .order big.json | abide run start checkout --input -
  abide run start report --delay 1h --wait --timeout 2h
  abide run start greet --follow")]
pub(crate) struct Start {
    /// The workflow's name
    workflow: String,
    /// The input as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true, conflicts_with = "input_file")]
    input: Option<String>,
    /// A file that holds the input as JSON
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,
    /// A business key: at most one open run of the workflow has it
    #[arg(long)]
    key: Option<String>,
    /// What to do when the key is taken
    #[arg(long, value_enum, default_value = "reject", requires = "key")]
    on_conflict: Conflict,
    /// The workflow's version; if absent, the newest that a server knows, and 1 in a store without one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    version: Option<u32>,
    /// The queue whose workers may claim it
    #[arg(long, default_value = "default", value_name = "NAME")]
    queue: String,
    /// Lower comes first
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    priority: i32,
    /// At most N attempts of runs with this key at once; 1 without :N
    #[arg(long, value_name = "KEY[:N]", value_parser = concurrency)]
    concurrency: Option<Concurrency>,
    /// Not before so long from now
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// The whole run must have ended within this time, or it fails
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// A word to find the run by
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// The request id; sending the same start again with the same id gives the first answer
    #[arg(long, value_name = "req_ID")]
    request: Option<RequestId>,
    /// Wait until it has ended; exit 4 if it did not end well
    #[arg(long)]
    wait: bool,
    /// Tell what happens to it until it has ended, like run watch; exit 4 if it did not end well
    #[arg(long, conflicts_with = "wait")]
    follow: bool,
    /// Wait no longer than this; exit 5 then
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Conflict {
    /// Say that it was rejected, and by which run
    Reject,
    /// Answer with the run that has the key, if its input is the same
    Reuse,
}

fn concurrency(text: &str) -> Result<Concurrency, String> {
    let (key, limit) = match text.rsplit_once(':') {
        Some((key, limit)) if !limit.is_empty() && limit.bytes().all(|byte| byte.is_ascii_digit()) => {
            (key, limit.parse().map_err(|_| format!("{limit} is too large a number"))?)
        }
        Some(_) => {
            return Err(format!(
                "expected KEY or KEY:N with a number N, found {text:?}; a key with a colon needs its :N"
            ));
        }
        None => (text, 1),
    };
    Ok(Concurrency { key: key.into(), limit })
}

impl Start {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        if self.timeout.is_some() && !self.wait && !self.follow {
            return Err(Failure::usage(
                "bad_timeout",
                "--timeout says how long to --wait or to --follow: give one of them",
            ));
        }
        let mut source = <dyn Source>::of(globals)?;
        let spec = self.spec(globals, &screen)?;
        spec.validate()?;
        let request = self.request.unwrap_or_else(|| new_request(screen.now()));
        let (answer, is_new) = source.start(request, spec)?;
        if is_new {
            screen.remark(&format!("made a new store at {}", source.shown()));
        }
        let (run, admission) = admitted(answer)?;
        if !self.wait && !self.follow {
            return told(&screen, run, admission);
        }
        screen.remark(&format!("{admission} {run}; waiting for an engine or a worker that has {}", self.workflow));
        let told = if self.follow { Told::Everything } else { Told::End };
        follow(&screen, source.tail(Some(run))?, told, self.timeout)
    }

    fn spec(&self, globals: &Globals, screen: &Screen) -> Result<StartSpec, Failure> {
        let input = payload("the input", self.input.as_deref(), self.input_file.as_ref())?;
        let mut spec = StartSpec::new(&self.workflow, input);
        let later = |duration: Duration| screen.now().after(duration.as_millis() as u64);
        spec.namespace = globals.namespace.as_deref().unwrap_or("default").into();
        // Nobody tells from a store which versions workers have.
        spec.version = self.version.unwrap_or(if globals.server.is_some() { UNSAID } else { 1 });
        spec.queue = self.queue.as_str().into();
        spec.priority = self.priority;
        spec.concurrency = self.concurrency.clone();
        spec.eligible_at = self.delay.map(later);
        spec.deadline = self.deadline.map(later);
        let labels = self.label.iter();
        spec.labels = labels.map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
        spec.key = self.key.as_deref().map(|key| UniqueKey {
            key: key.into(),
            occupied: StatusSet::OPEN,
            on_conflict: match self.on_conflict {
                Conflict::Reject => OnConflict::Reject,
                Conflict::Reuse => OnConflict::Reuse,
            },
        });
        Ok(spec)
    }
}

fn admitted(answer: Answer) -> Result<(RunId, &'static str), Failure> {
    match answer {
        Answer::Started(StartAnswer::Created(run)) => Ok((run, "created")),
        Answer::Started(StartAnswer::Reused(run)) => Ok((run, "reused")),
        Answer::Started(StartAnswer::Rejected { by, reason }) => {
            let what = format!("the key is taken by {by}");
            let hint = match reason.name() {
                "other_input" => "that run was started with other input, so it is not reused; use another key",
                _ => "--on-conflict reuse answers with that run if its input is the same; or use another key",
            };
            Err(Failure::new(Exit::Failure, reason.name(), what).hint(hint))
        }
        other => {
            Err(Failure::new(Exit::Failure, "unexpected", format!("expected the answer to a start, found {other:?}")))
        }
    }
}

fn told(screen: &Screen, run: RunId, admission: &str) -> Outcome {
    if screen.is_text() {
        screen.line(&run.to_string())?;
        screen.remark(&format!("{admission}; it executes when an engine or a worker has its code"));
        screen.remark(&format!("follow it: {}", screen.command(&format!("abide run watch {run}"))));
    } else {
        screen.document(&json!({"run": run, "admission": admission}))?;
    }
    Ok(Exit::Ok)
}
