//! `abide run purge`: the record of a run that has ended is removed for good.

use abide_kernel::shard::Command;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Remove the record of a run that has ended.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run purge run_0193f2c4a1b2 --yes")]
pub(crate) struct Purge {
    /// The run: its id or the beginning of it
    id: String,
    /// Yes, remove it: there is no way back
    #[arg(long)]
    yes: bool,
}

impl Purge {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = source.find(&self.id)?;
        if !self.yes {
            let what = format!("{run} would be removed with its journal, its inbox and its result");
            return Err(Failure::usage("not_confirmed", what).hint("say --yes; there is no way back"));
        }
        source.tell(run, Command::Purge { run })?;
        if screen.is_text() {
            screen.remark(&format!("{run} is removed"));
        } else {
            screen.document(&json!({"run": run, "purged": true}))?;
        }
        Ok(Exit::Ok)
    }
}
