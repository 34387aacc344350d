//! `abide run resume`: a person lets a paused run go on.

use abide_kernel::Choice;
use clap::Args;

use crate::commands::people::Person;
use crate::failure::Outcome;
use crate::input::payload;
use crate::options::Globals;

/// Let a run go on that pauses for a person.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run resume manual_0193f2c4a1b2.1 --as ada --note 'the launch is today'")]
pub(crate) struct Resume {
    /// The boundary: its id as `run show` and `run explain` have it, of which the part before the dot may be cut short
    id: String,
    #[command(flatten)]
    person: Person,
    /// What they hand in with it, as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    payload: Option<String>,
}

impl Resume {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let payload = payload("the payload", self.payload.as_deref(), None)?;
        self.person.decide(globals, &self.id, Choice::Resume, payload)
    }
}
