//! `abide task show`: what a person is asked, whose it is, and what happened to it.

use abide_kernel::Payload;
use clap::Args;

use crate::commands::people;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::cut;

/// The most of a payload that is shown as text; JSON has it whole.
const PAYLOAD_SHOWN: usize = 400;

/// Show what a person is asked, and all that happened to it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide task show manual_0193f2c4a1b2.1
  abide -o json task show manual_0193f2c4a1b2.1 | jq .payload")]
pub(crate) struct Show {
    /// The boundary: its id as `list` shows it, of which the part before the dot may be cut short
    id: String,
}

impl Show {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        show_boundary(globals, &self.id)
    }
}

/// Prints a boundary, whatever its kind.
pub(crate) fn show_boundary(globals: &Globals, id: &str) -> Outcome {
    let screen = Screen::new(globals);
    let found = people::show(<dyn Source>::of(globals)?.as_mut(), id)?;
    if !screen.is_text() {
        screen.document(&found)?;
        return Ok(Exit::Ok);
    }
    let payload = |payload: &Payload| Cell::new(cut(payload.text(), PAYLOAD_SHOWN));
    let tone = if found.is_open() { Tone::Waiting } else { Tone::Faint };
    let mut fields = vec![
        (found.kind.name(), Cell::toned(found.boundary.to_string(), Tone::Strong)),
        ("name", Cell::new(&found.name)),
        ("standing", Cell::toned(&found.standing, tone)),
        ("run", Cell::new(found.run.to_string())),
        ("workflow", Cell::new(&found.workflow)),
        ("step", Cell::new(&found.step)),
        ("payload", payload(&found.payload)),
    ];
    if !found.roles.is_empty() {
        fields.push(("roles", Cell::new(found.roles.join(", "))));
    }
    if let Some(assignee) = &found.assignee {
        fields.push(("assignee", Cell::new(assignee)));
    }
    if let Some(until) = found.until {
        fields.push(("until", Cell::new(screen.time(until.0))));
    }
    if let Some(decided) = &found.decision {
        fields.push(("handed in", payload(&decided.payload)));
    }
    for event in &found.events {
        let by = event.actor.as_ref().map(|actor| format!(" by {actor}")).unwrap_or_default();
        let to = event.to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        let note = event.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        fields.push((event.event.as_str(), Cell::new(format!("{}{to}{by}{note}", screen.time(event.at.0)))));
    }
    screen.fields(&fields)?;
    Ok(Exit::Ok)
}
