//! `abide node resume`: a node that drains takes its share again.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::{find, shards};
use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

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
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let seen = source.nodes()?;
        let node = find(&seen, &self.node)?;
        source.drain(&node.process, false)?;
        wait(source.as_mut(), &node.process)?;
        if screen.is_text() {
            screen.remark(&format!("{} takes its share again, when it next renews its lease", node.node));
        } else {
            screen.document(&json!({"node": node.node, "process": node.process, "draining": false}))?;
        }
        Ok(Exit::Ok)
    }
}

/// Stays until the node serves something, or for a moment.
fn wait(source: &mut dyn Source, process: &str) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < ARRIVES && shards(source, process)? == 0 {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
