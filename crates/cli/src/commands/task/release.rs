//! `abide task release`: a task is given back, for others to take.

use clap::Args;

use crate::commands::people::Person;
use crate::failure::Outcome;
use crate::options::Globals;

/// Give a task back, for others to take.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide task release manual_0193f2c4a1b2.1 --as ada --note 'on leave'")]
pub(crate) struct Release {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
    #[command(flatten)]
    person: Person,
    /// Also when somebody else has it
    #[arg(long)]
    take_over: bool,
}

impl Release {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        self.person.assign(globals, &self.id, None, self.take_over)
    }
}
