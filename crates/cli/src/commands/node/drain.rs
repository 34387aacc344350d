//! `abide node drain`: a node hands its shards to the others and takes none, before it is stopped or looked at.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::{find, shards};
use crate::failure::{Exit, Failure, Outcome};
use crate::input::duration;
use crate::interrupt::Interrupt;
use crate::options::Globals;
use crate::screen::Screen;
use crate::source::Source;

/// How often it is looked whether it has handed everything over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Have a node hand its shards to the others and take none.
#[derive(Debug, Args)]
#[command(after_help = "\
The node is told at once, or finds out when it next renews its lease: after a third of it at the latest. What executes
on it goes on to its end. It takes commands as before; a process that starts anew is another one and takes its share.

Examples:
  abide node drain shop-1
  abide node drain 1a2b-0193f2c4a1b2c3d4 --timeout 1m")]
pub(crate) struct Drain {
    /// The node: its name, or its process or the beginning of that
    node: String,
    /// How long to wait until it serves nothing
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    timeout: Duration,
}

impl Drain {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let seen = source.nodes()?;
        let node = find(&seen, &self.node)?;
        source.drain(&node.process, true)?;
        wait(source.as_mut(), &node.process, self.timeout)?;
        let others = seen.nodes.iter().filter(|other| other.living && other.process != node.process);
        if others.filter(|other| !other.draining).count() == 0 {
            screen.remark("no other node takes shards: nothing is served until one comes or this one is resumed");
        }
        if screen.is_text() {
            let back = screen.command(&format!("abide node resume {}", node.node));
            screen.remark(&format!("{} serves nothing now; {back} is the way back", node.node));
        } else {
            screen.document(&json!({"node": node.node, "process": node.process, "draining": true}))?;
        }
        Ok(Exit::Ok)
    }
}

/// Looks from time to time until the node serves nothing.
fn wait(source: &mut dyn Source, process: &str, timeout: Duration) -> Result<(), Failure> {
    let began = Instant::now();
    let interrupt = Interrupt::listen()?;
    loop {
        interrupt.check()?;
        let left = shards(source, process)?;
        if left == 0 {
            return Ok(());
        }
        if began.elapsed() >= timeout {
            let what = format!("it was asked to drain and still serves {left} shards");
            return Err(Failure::new(Exit::Unknown, "timeout", what).hint("abide node list shows when it has let go"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
