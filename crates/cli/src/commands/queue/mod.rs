//! `abide queue …`: lanes of attempts that workers subscribe to.

mod limit;
mod list;
mod pause;
mod resume;

use abide_protocol::QueueHeld;
use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::{QueueChange, Source};
use crate::text::span;

/// Queues: list, pause, resume, limit.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List queues: what waits in them, and what holds for them.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Let nothing of a queue begin.
    Pause(pause::Pause),
    /// Let a queue that was paused go on.
    Resume(resume::Resume),
    /// Say what a queue may do at most.
    Limit(limit::Limit),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Pause(pause) => pause.perform(globals),
            Verb::Resume(resume) => resume.perform(globals),
            Verb::Limit(limit) => limit.perform(globals),
        }
    }
}

/// Changes what holds for a queue, and says what holds then.
fn change(globals: &Globals, queue: &str, change: QueueChange) -> Outcome {
    // Of paths, . and .. would mean another one.
    if ["", ".", ".."].contains(&queue) || queue.contains(char::is_control) {
        let what = format!("expected the name of a queue, as runs are started with --queue NAME, found {queue:?}");
        return Err(Failure::usage("bad_id", what).hint("abide queue list shows them; without --queue it is default"));
    }
    let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
    let held = source.change_queue(queue, change)?;
    if screen.is_text() {
        screen.remark(&format!("queue {}: {}", held.queue, words(&held)));
    } else {
        screen.document(&held)?;
    }
    Ok(Exit::Ok)
}

/// What holds for a queue, in words.
fn words(held: &QueueHeld) -> String {
    let mut words = vec![if held.paused { "paused".to_owned() } else { "open".to_owned() }];
    words.extend(held.limits.at_most.map(|most| format!("at most {most} at once")));
    words.extend(held.limits.rate.map(|rate| format!("{} in {}", rate.count, span(rate.per_ms))));
    words.join(", ")
}
