//! `abide run cancel`: a run ends from outside.

use std::sync::Arc;

use abide_kernel::ErrorInfo;
use abide_kernel::shard::Command;
use abide_runtime::new_request;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// End a run from outside.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run cancel run_0193f2c4a1b2 --reason 'ordered twice'
  abide run cancel run_0193f2c4a1b2 --cascade")]
pub(crate) struct Cancel {
    /// The run: its id or the beginning of it
    id: String,
    /// Its open children end too, and theirs
    #[arg(long)]
    cascade: bool,
    /// Why, for those who read the run later
    #[arg(long, default_value = "cancelled from the command line", value_name = "TEXT")]
    reason: String,
}

impl Cancel {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = source.find(&self.id)?;
        let command = Command::Cancel {
            run,
            request: new_request(screen.now()),
            cascade: self.cascade,
            reason: Arc::new(ErrorInfo::terminal("cancelled", &self.reason)),
        };
        source.tell(run, command)?;
        if screen.is_text() {
            screen.remark(&format!("{run} is cancelled"));
        } else {
            screen.document(&json!({"run": run, "status": "cancelled", "cascade": self.cascade}))?;
        }
        Ok(Exit::Ok)
    }
}
