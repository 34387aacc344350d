//! `abide demo`: orders go through a workflow while the process that executes it is killed again and again. At the
//! end the store is audited and the life of one order is drawn.

mod kills;
mod machines;
mod protocol;
mod stage;
mod story;
mod timeline;
mod verdict;
mod worker;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

pub(crate) use worker::DemoWorker;

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::Screen;

/// The store, in the demo's directory.
pub(crate) const STORE: &str = "abide.db";
/// The book of the card service, beside it.
pub(crate) const CHARGES: &str = "charges.txt";

/// Watch a workflow survive being killed again and again.
#[derive(Debug, Args)]
#[command(after_help = "\
A child process executes orders: each fans out to three children, retries, waits for a signal, sleeps, and ships.
This process really kills it with SIGKILL, at named moments and at random, starts it again, and remembers every
acknowledgement. At the end every one of them must be found in the store.

Examples:
  abide demo
  abide demo --dir shop && abide --store sqlite:shop/abide.db run list
  abide demo --kills 12 --shards 4 --json")]
pub(crate) struct Demo {
    /// How often the worker is killed
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=40))]
    kills: u32,
    /// Where the store goes, and stays; a directory that is removed afterwards if absent
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Shards of the store
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
}

impl Demo {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let kept = self.dir.clone();
        let scratch;
        let dir: &Path = match &kept {
            Some(dir) => {
                fresh(dir)?;
                dir
            }
            None => {
                scratch = tempfile::Builder::new().prefix("abide-demo-").tempdir()?;
                scratch.path()
            }
        };
        let story = story::play(&screen, dir, self.kills as usize, self.shards)?;
        let verdict = verdict::judge(dir, &story)?;
        let sound = verdict.lost == 0 && verdict.terminal_twice == 0 && verdict.problems == 0;
        let exit = if sound { Exit::Ok } else { Exit::Failure };
        if !screen.is_text() {
            screen.document(&json!({
                "kills": story.kills.len(),
                "kills_by_point": story.kills_by_point(),
                "runs": verdict.runs,
                "orders": story.orders.len(),
                "acknowledged": verdict.acknowledged,
                "lost": verdict.lost,
                "terminal_twice": verdict.terminal_twice,
                "problems": verdict.problems,
                "attempts": verdict.attempts,
                "attempts_lost": verdict.attempts_lost,
                "retries": verdict.retries,
                "charge_calls": verdict.charge_calls,
                "charged_twice": verdict.charged_twice,
                "seconds": story.took.as_secs_f64(),
                "store": kept.as_ref().map(|dir| dir.join(STORE)),
            }))?;
            return Ok(exit);
        }
        timeline::draw(&screen, dir, &story)?;
        verdict.tell(&screen, &story)?;
        match kept {
            Some(dir) => screen.line(&format!(
                "  look around: abide --store sqlite:{} run list",
                crate::text::clean(&dir.join(STORE).display().to_string())
            ))?,
            None => screen.line("  to keep the store and look around: abide demo --dir shop")?,
        }
        Ok(exit)
    }
}

/// Makes the directory, and refuses one in which something of another demo is.
fn fresh(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(|error| {
        let what = format!("the directory {} cannot be made: {error}", dir.display());
        Failure::usage("bad_dir", what)
    })?;
    if dir.join(STORE).exists() || dir.join(CHARGES).exists() {
        let what = format!("{} holds a store already", dir.display());
        return Err(Failure::usage("not_fresh", what).hint("give a directory that is new or empty"));
    }
    Ok(())
}
