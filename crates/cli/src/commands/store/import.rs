//! `abide store import`: a new store is filled with what another one held.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use abide_runtime::house;
use clap::Args;

use super::told;
use crate::failure::{Failure, Outcome};
use crate::options::Globals;
use crate::owner::name;
use crate::place::Place;
use crate::screen::Screen;

/// Fill a new store with what another one held.
#[derive(Debug, Args)]
#[command(after_help = "\
The file is looked through before anything is written, and what was written is read back and held against it. Until that
has come to its end, no engine can open the store. In PostgreSQL it is done by the role that owns the tables.

Examples:
  abide --store postgres://abide@db/shop store import --from shop.jsonl
  abide --store sqlite:laptop.db store import --from shop.jsonl --json")]
pub(crate) struct Import {
    /// The file that `abide store export` wrote
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// How many shards a store that is made new gets: 1, or 64 in PostgreSQL
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
}

impl Import {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let file = File::open(&self.from).map_err(|error| {
            Failure::usage("unreadable", format!("{} cannot be read: {error}", self.from.display()))
        })?;
        let contents = house::import(|| place.at.open(self.shards), &name(), &mut BufReader::new(file))?;
        told(&screen, &contents, &format!("are in {}", place.shown()))
    }
}
