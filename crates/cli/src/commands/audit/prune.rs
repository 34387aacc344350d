//! `abide audit prune`: what is old goes from the audit, for good.

use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::input::{When, when};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// Remove what is old.
#[derive(Debug, Args)]
#[command(after_help = "\
A server removes it by itself where abide serve is given --audit-keep.

Examples:
  abide audit prune --before 30d --dry-run
  abide audit prune --before 2026-01-01T00:00:00Z --yes")]
pub(crate) struct Prune {
    /// What is older than this: an instant, or how long ago
    #[arg(long, value_name = "WHEN", value_parser = when)]
    before: When,
    /// Only say how many changes it would be
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Yes, remove them: there is no way back
    #[arg(long)]
    yes: bool,
}

impl Prune {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let at = self.before.from(screen.now());
        let count = if self.yes { source.prune_audit(at)? } else { source.audit_before(at)? };
        if !self.yes && !self.dry_run {
            let what = format!("{count} changes from before {} would be removed from the audit", screen.time(at));
            return Err(Failure::usage("not_confirmed", what).hint("say --yes; there is no way back"));
        }
        if screen.is_text() {
            let done = if self.yes { "are removed" } else { "would be removed" };
            screen.remark(&format!("{count} changes {done}"));
        } else {
            screen.document(&json!({"changes": count, "removed": self.yes}))?;
        }
        Ok(Exit::Ok)
    }
}
