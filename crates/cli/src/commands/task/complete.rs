//! `abide task complete`: the result of a task is handed in.

use std::path::PathBuf;

use abide_kernel::Choice;
use clap::Args;

use crate::commands::people::Person;
use crate::failure::Outcome;
use crate::input::payload;
use crate::options::Globals;

/// Hand in the result of a task.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide task complete manual_0193f2c4a1b2.1 --as ada --result '{\"weight\":3}'
  abide task complete manual_0193f2c4a1b2.1 --as ada --result-file form.json --note 'the box was wet'")]
pub(crate) struct Complete {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
    #[command(flatten)]
    person: Person,
    /// The result, as JSON, or - for standard input; null if absent
    #[arg(long, value_name = "JSON", allow_negative_numbers = true, conflicts_with = "result_file")]
    result: Option<String>,
    /// A file that holds the result
    #[arg(long, value_name = "FILE")]
    result_file: Option<PathBuf>,
}

impl Complete {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let result = payload("the result", self.result.as_deref(), self.result_file.as_ref())?;
        self.person.decide(globals, &self.id, Choice::Complete, result)
    }
}
