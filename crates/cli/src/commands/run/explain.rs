//! `abide run explain`: why a run does not move, with the evidence and what would move it.

use clap::Args;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// Say why a run does not move, and what would move it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run explain run_0193f2c4a1b2
  abide -o json run explain 0193f2c4 | jq -r .reason")]
pub(crate) struct Explain {
    /// The run: its id or the beginning of it
    id: String,
}

impl Explain {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = source.find(&self.id)?;
        let explanation = source.explain(run, screen.now())?;
        if !screen.is_text() {
            screen.document(&explanation)?;
            return Ok(Exit::Ok);
        }
        let mut fields = vec![("why", Cell::toned(&explanation.sentence, Tone::Strong))];
        let evidence = explanation.evidence.iter();
        fields.extend(evidence.map(|(name, value)| (name.as_str(), Cell::new(value))));
        let actions = explanation.next_actions.iter().map(|action| screen.command(action));
        fields.extend(actions.map(|action| ("do", Cell::toned(action, Tone::Busy))));
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}
