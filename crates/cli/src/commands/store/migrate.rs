//! `abide store migrate`: a store of an earlier release is brought to this release's format. Opening it with an
//! engine does the same.

use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::Screen;

/// Bring a store of an earlier release to this release's format.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide --store sqlite:abide.db store migrate")]
pub(crate) struct Migrate {}

impl Migrate {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        // Whoever opens a store as its owner migrates it; there is nothing to do beyond that.
        let stats = place.change(async |owner| Ok(owner.engine.stats()?))?;
        if screen.is_text() {
            screen.remark(&format!("{} has format {}", place.shown(), stats.format));
        } else {
            screen.document(&json!({"format": stats.format}))?;
        }
        Ok(Exit::Ok)
    }
}
