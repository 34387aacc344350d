//! `abide effect resolve`: someone says what became of an effect that is in doubt.

use std::sync::Arc;

use abide_kernel::shard::Command;
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{ErrorInfo, Resolution};
use abide_runtime::new_request;
use clap::Args;
use serde_json::json;

use super::show::find;
use crate::failure::{Exit, Outcome};
use crate::input::payload;
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Say what became of an effect that is in doubt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide effect resolve run_0193f2c4a1b2 refund --result '{\"id\":\"re_1\"}' --note 'seen at the bank'
  abide effect resolve run_0193f2c4a1b2 refund --retry
  abide effect resolve run_0193f2c4a1b2 refund --fail 'the bank refused it'
  abide effect resolve run_0193f2c4a1b2 refund --compensated")]
pub(crate) struct Resolve {
    /// The run: its id or the beginning of it
    id: String,
    /// The effect's key, as the list shows it
    effect: String,
    #[command(flatten)]
    how: How,
    /// Only if this is the interrupt that waits for an answer, as `effect show` says
    #[arg(long, value_name = "N")]
    interrupt: Option<u32>,
    /// Who says so; if absent, whose token a server is asked with, or the user of this terminal
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// A role in which they do, for a retry of an effect that was reviewed; give it again for another
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct How {
    /// It took place: its result, as JSON, or - for standard input
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    result: Option<String>,
    /// It did not take place, or not well
    #[arg(long, value_name = "MESSAGE")]
    fail: Option<String>,
    /// Execute it once more
    #[arg(long)]
    retry: bool,
    /// It took place and was undone by hand
    #[arg(long)]
    compensated: bool,
}

impl Resolve {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let (run, effect) = find(source.as_mut(), &self.id, &self.effect)?;
        let how = match &self.how {
            How { result: Some(result), .. } => Resolution::Value(payload("the result", Some(result), None)?),
            How { fail: Some(message), .. } => {
                Resolution::Failed(Arc::new(ErrorInfo::terminal("resolved_as_failed", message)))
            }
            How { compensated: true, .. } => Resolution::Compensated,
            How { .. } => Resolution::Retry,
        };
        let user = || match globals.server {
            // It knows whose token it is.
            Some(_) => String::new(),
            None => std::env::var("USER").unwrap_or_else(|_| "somebody".into()),
        };
        let resolving = Resolving {
            key: effect.key.as_str().into(),
            interrupt: self.interrupt.or(effect.interrupt),
            how,
            actor: self.actor.unwrap_or_else(user).as_str().into(),
            roles: self.roles.iter().map(|role| role.as_str().into()).collect(),
            note: self.note.as_deref().map(Into::into),
            request: new_request(screen.now()),
        };
        source.tell(run, Command::Resolve { run, resolving: Box::new(resolving) })?;
        if screen.is_text() {
            screen.remark(&format!("effect {} of {run} is resolved", effect.key));
        } else {
            screen.document(&json!({"run": run, "effect": effect.key, "resolved": true}))?;
        }
        Ok(Exit::Ok)
    }
}
