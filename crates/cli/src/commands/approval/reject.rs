//! `abide approval reject`: a person says no.

use abide_kernel::Choice;
use clap::Args;

use crate::commands::people::Person;
use crate::failure::Outcome;
use crate::input::payload;
use crate::options::Globals;

/// Say no to what a run asks.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide approval reject manual_0193f2c4a1b2.1 --as ada
  abide approval reject manual_0193f2c4a1b2.1 --as ada --role finance --note 'seen with Eve'")]
pub(crate) struct Reject {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
    #[command(flatten)]
    person: Person,
    /// What they hand in with it, as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    payload: Option<String>,
}

impl Reject {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let payload = payload("the payload", self.payload.as_deref(), None)?;
        self.person.decide(globals, &self.id, Choice::Reject, payload)
    }
}
