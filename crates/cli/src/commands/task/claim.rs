//! `abide task claim`: a task becomes somebody's, who alone may complete it then.

use clap::Args;

use crate::commands::people::Person;
use crate::failure::Outcome;
use crate::options::Globals;

/// Take a task, or give it to somebody: nobody else may complete it then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide task claim manual_0193f2c4a1b2.1 --as ada --role store
  abide task claim manual_0193f2c4a1b2.1 --as lead --for eve --take-over")]
pub(crate) struct Claim {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
    #[command(flatten)]
    person: Person,
    /// Whose it becomes; without it, whoever acts
    #[arg(long = "for", value_name = "NAME")]
    to: Option<String>,
    /// Also when somebody else has it
    #[arg(long)]
    take_over: bool,
}

impl Claim {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let to = match &self.to {
            Some(to) => to,
            None => self.person.name(globals)?,
        };
        self.person.assign(globals, &self.id, Some(to), self.take_over)
    }
}
