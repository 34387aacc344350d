//! `abide run signal`: a named durable message to a run.

use std::path::PathBuf;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_runtime::new_request;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::input::payload;
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Send a named signal to a run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run signal run_0193f2c4a1b2 paid --payload '{\"amount\":5}'
  abide run signal run_0193f2c4a1b2 paid --payload-file event.json --dedup stripe-evt-9")]
pub(crate) struct Signal {
    /// The run: its id or the beginning of it
    id: String,
    /// The signal's name
    name: String,
    /// What it carries, as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true, conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file that holds what it carries
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// A key under which the run accepts it once
    #[arg(long, value_name = "KEY")]
    dedup: Option<String>,
}

impl Signal {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let payload = payload("the payload", self.payload.as_deref(), self.payload_file.as_ref())?;
        let run = source.find(&self.id)?;
        let sent = Sent {
            name: self.name.as_str().into(),
            payload,
            dedup: self.dedup.as_deref().map(Into::into),
            request: new_request(screen.now()),
        };
        let answer = source.tell(run, Command::Signal { run, sent: Box::new(sent) })?;
        let Answer::Signalled(accepted) = answer else {
            let what = format!("expected the answer to a signal, found {answer:?}");
            return Err(Failure::new(Exit::Failure, "unexpected", what));
        };
        if screen.is_text() {
            let how = if accepted.duplicate { "had been accepted before under this key" } else { "is accepted" };
            screen.remark(&format!("signal {} {how} by {run}", self.name));
        } else {
            screen.document(&json!({"run": run, "signal": accepted.signal, "duplicate": accepted.duplicate}))?;
        }
        Ok(Exit::Ok)
    }
}
