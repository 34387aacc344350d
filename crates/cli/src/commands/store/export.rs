//! `abide store export`: everything a store holds, in one file, for another store.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use abide_runtime::house;
use clap::Args;

use super::told;
use crate::failure::{Failure, Outcome};
use crate::options::Globals;
use crate::owner::name;
use crate::place::Place;
use crate::screen::Screen;

/// Write everything the store holds to a file, for another store.
#[derive(Debug, Args)]
#[command(after_help = "\
Nobody may work on the store meanwhile, or ask by SQL: stop its engines first, and who asks. Runs go with their journals: open and ended ones, with
their timers, signals, effects and everything that is answered only once; and dead letters. The last line says what all
that adds up to. The file holds what runs were given and returned: keep it as you keep the store.

Examples:
  abide --store sqlite:abide.db store export --to shop.jsonl
  abide --store postgres://abide@db/shop store import --from shop.jsonl")]
pub(crate) struct Export {
    /// The file to write; it must not be there yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl Export {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        place.at.check_exists()?;
        if self.to.exists() {
            let what = format!("{} is there already", self.to.display());
            return Err(Failure::usage("file_exists", what).hint("give another name, or remove it"));
        }
        // Under its own name only when it is whole.
        let part = part(&self.to);
        let mut out = BufWriter::new(create(&part).map_err(|error| unwritable(&part, &error))?);
        let exported = house::export(|| place.at.open(None), &name(), screen.now(), &mut out);
        let contents = exported.map_err(Failure::from).and_then(|contents| {
            out.flush().and_then(|()| out.get_ref().sync_all()).map_err(|error| unwritable(&part, &error))?;
            fs::rename(&part, &self.to).map_err(|error| unwritable(&self.to, &error))?;
            Ok(contents)
        });
        if contents.is_err() {
            let _ = fs::remove_file(&part);
        }
        told(&screen, &contents?, &format!("are in {}", self.to.display()))
    }
}

/// A file that only its owner may read, in place of what an export left that was killed.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn part(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage("unwritable", format!("{} cannot be written: {error}", path.display()))
}
