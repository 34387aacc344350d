//! `abide queue list`: what waits in queues, and what holds for them.

use abide_protocol::Queue;
use clap::Args;

use super::words;
use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;

/// List queues: what waits in them, and what holds for them.
#[derive(Debug, Args)]
#[command(after_help = "\
Queues in which something waits or executes, or for which something holds, of one namespace: default unless -n says
otherwise.

Examples:
  abide queue list
  abide -n shop queue list --json | jq '.queues[] | select(.depth > 100)'")]
pub(crate) struct List {}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let queues = source.queues(screen.now())?;
        if !screen.is_text() {
            screen.documents("queues", &queues)?;
            return Ok(Exit::Ok);
        }
        if queues.is_empty() {
            screen.remark("nothing waits in any queue, and nothing holds for any");
        }
        let rows = queues.iter().map(|queue| row(&screen, queue)).collect();
        screen.table(&["QUEUE", "WAITING", "RUNNING", "OLDEST", "STATE"], rows)?;
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, queue: &Queue) -> Vec<Cell> {
    let oldest = queue.oldest_at.map_or_else(|| "-".into(), |at| screen.time(at.0));
    vec![
        Cell::toned(&queue.held.queue, Tone::Strong),
        Cell::new(queue.depth.to_string()),
        Cell::new(queue.running.to_string()),
        Cell::toned(oldest, Tone::Faint),
        Cell::toned(words(&queue.held), if queue.held.paused { Tone::Waiting } else { Tone::Plain }),
    ]
}
