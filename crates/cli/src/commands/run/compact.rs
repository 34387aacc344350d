//! `abide run compact`: a run's journal begins anew with the run as it stands.

use abide_kernel::shard::{Answer, Command};
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Let a run's journal begin anew: what was before goes for good.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run compact run_0193f2c4a1b2 --yes")]
pub(crate) struct Compact {
    /// The run: its id or the beginning of it
    id: String,
    /// Yes, drop its history: there is no way back
    #[arg(long)]
    yes: bool,
}

impl Compact {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = source.find(&self.id)?;
        if !self.yes {
            let what = format!("the history of {run} would be dropped; the run itself goes on as it stands");
            return Err(Failure::usage("not_confirmed", what).hint("say --yes; there is no way back"));
        }
        let answer = source.tell(run, Command::Compact { run })?;
        let nothing_to_drop = matches!(answer, Answer::Recorded { duplicate: true, .. });
        if !screen.is_text() {
            screen.document(&json!({"run": run, "compacted": !nothing_to_drop}))?;
        } else if nothing_to_drop {
            screen.remark(&format!("{run} has a journal of one row; there is nothing to drop"));
        } else {
            screen.remark(&format!("{run} is compacted"));
        }
        Ok(Exit::Ok)
    }
}
