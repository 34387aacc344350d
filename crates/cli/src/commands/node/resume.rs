//! `abide node resume`: a node that drains takes its share again.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::{ask, find, membership, shards};
use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::Screen;

/// How long the word is given to arrive; it is not needed.
const ARRIVES: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Have a node that drains take its share again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide node resume shop-1")]
pub(crate) struct Resume {
    /// The node: its name, or its process or the beginning of that
    node: String,
}

impl Resume {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let seen = membership(&place)?;
        let member = &find(&seen, &self.node)?.member;
        ask(&place, &seen, &member.process, false, || wait(&place, &member.process))?;
        if screen.is_text() {
            screen.remark(&format!("{} takes its share again, when it next renews its lease", member.node));
        } else {
            screen.document(&json!({"node": &*member.node, "process": &*member.process, "draining": false}))?;
        }
        Ok(Exit::Ok)
    }
}

/// Stays until the node serves something, or for a moment.
fn wait(place: &Place, process: &str) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < ARRIVES && shards(&membership(place)?, process).is_empty() {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
