//! `abide run update`: a run is asked to do something. The answer is the run's, so it comes when an engine executes it.

use std::path::PathBuf;

use abide_kernel::shard::{Answer, Command, Told};
use abide_kernel::transition::update::{Accepted, Requesting};
use abide_kernel::{ErrorInfo, Payload, Reply, Run, RunId, Update as Known};
use abide_runtime::new_request;
use clap::Args;
use serde::Serialize;

use crate::failure::{Exit, Failure, Outcome};
use crate::input::payload;
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;
use crate::text::cut;

/// The most of an answer that is shown as text; JSON has it whole.
const ANSWER_SHOWN: usize = 400;

/// Ask a run to do something; an engine that has its code answers.
#[derive(Debug, Args)]
#[command(after_help = "\
The request is recorded and waits for an engine that executes the run. Ask again with the
same key to see the answer.

Examples:
  abide run update run_0193f2c4a1b2 rename --input '\"Ada\"' --dedup form-9
  abide -o json run update run_0193f2c4a1b2 rename --input '\"Ada\"' --dedup form-9 | jq .answer")]
pub(crate) struct Update {
    /// The run: its id or the beginning of it
    id: String,
    /// The update's name
    name: String,
    /// What is asked, as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true, conflicts_with = "input_file")]
    input: Option<String>,
    /// A file that holds what is asked
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,
    /// A key under which the run is asked once
    #[arg(long, value_name = "KEY")]
    dedup: Option<String>,
}

/// An update for programs: what became of it so far.
#[derive(Serialize)]
struct Asked<'a> {
    run: RunId,
    update: u64,
    duplicate: bool,
    answer: Option<&'a Payload>,
    rejected: Option<&'a ErrorInfo>,
}

impl Update {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let input = payload("the input", self.input.as_deref(), self.input_file.as_ref())?;
        let run = source.find(&self.id)?;
        let asked = Requesting {
            name: self.name.as_str().into(),
            input,
            dedup: self.dedup.as_deref().map(Into::into),
            request: new_request(screen.now()),
        };
        let command = Command::Update { run, asked: Box::new(asked.clone()), told: Told::Accepted };
        let answer = source.tell(run, command)?;
        let shown = source.show(run)?;
        let accepted = accepted(answer, &asked, &shown)?;
        let reply = shown.update(accepted.update).and_then(Known::reply);
        if !screen.is_text() {
            let (answer, rejected) = match reply {
                Some(Reply::Value(value)) => (Some(value), None),
                Some(Reply::Rejected(error)) => (None, Some(error)),
                None => (None, None),
            };
            let (update, duplicate) = (accepted.update, accepted.duplicate);
            screen.document(&Asked { run, update, duplicate, answer, rejected: rejected.map(|error| &**error) })?;
            return Ok(Exit::Ok);
        }
        let name = &self.name;
        screen.remark(&match reply {
            Some(Reply::Value(value)) => format!("{run} answered {name}: {}", cut(value.text(), ANSWER_SHOWN)),
            Some(Reply::Rejected(error)) => format!("{run} rejected {name}: {error}"),
            None if accepted.duplicate => {
                format!("{run} was asked for {name} before under this key, and has not answered")
            }
            None => format!("{run} is asked for {name}; an engine that executes it answers"),
        });
        Ok(Exit::Ok)
    }
}

/// What became of it so far. A server that knows the answer already gives that, and the run has the rest.
fn accepted(answer: Answer, asked: &Requesting, run: &Run) -> Result<Accepted, Failure> {
    let same = |known: &&Known| {
        known.request == asked.request
            || (asked.dedup.is_some() && known.dedup == asked.dedup && known.name == asked.name)
    };
    match (answer, run.updates.iter().find(same)) {
        (Answer::Requested(accepted), _) => Ok(accepted),
        (Answer::Answered(_), Some(known)) => {
            Ok(Accepted { update: known.id, duplicate: known.request != asked.request })
        }
        (other, _) => {
            let what = format!("expected the answer to an update, found {other:?}");
            Err(Failure::new(Exit::Failure, "unexpected", what))
        }
    }
}
