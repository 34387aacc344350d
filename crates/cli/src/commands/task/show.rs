//! `abide task show`: what a person is asked, whose it is, and what happened to it.

use abide_kernel::Payload;
use clap::Args;

use crate::commands::people;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
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
    let found = people::show(&Place::of(globals)?, id)?;
    if !screen.is_text() {
        screen.document(&found.json())?;
        return Ok(Exit::Ok);
    }
    let payload = |payload: &Payload| Cell::new(cut(payload.text(), PAYLOAD_SHOWN));
    let asked = &found.manual.asked;
    let tone = if found.manual.end.is_none() { Tone::Waiting } else { Tone::Faint };
    let mut fields = vec![
        (asked.kind.name(), Cell::toned(found.id().to_string(), Tone::Strong)),
        ("name", Cell::new(&*asked.key)),
        ("standing", Cell::toned(found.standing(), tone)),
        ("run", Cell::new(found.run.id.to_string())),
        ("workflow", Cell::new(&*found.run.started.spec.workflow)),
        ("step", Cell::new(&*asked.step)),
        ("payload", payload(&asked.payload)),
    ];
    if !asked.roles.is_empty() {
        fields.push(("roles", Cell::new(asked.roles.join(", "))));
    }
    if let Some(assignee) = &found.manual.assignee {
        fields.push(("assignee", Cell::new(&**assignee)));
    }
    if let Some(until) = asked.until {
        fields.push(("until", Cell::new(screen.time(until))));
    }
    if let Some(decided) = found.manual.decided() {
        fields.push(("handed in", payload(&decided.payload)));
    }
    for event in &found.manual.events {
        let by = event.actor.as_ref().map(|actor| format!(" by {actor}")).unwrap_or_default();
        let to = event.to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        let note = event.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        fields.push((event.kind.name(), Cell::new(format!("{}{to}{by}{note}", screen.time(event.at)))));
    }
    screen.fields(&fields)?;
    Ok(Exit::Ok)
}
