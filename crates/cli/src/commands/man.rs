//! `abide man`: a page of the manual for every verb.

use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::failure::{Exit, Failure, Outcome};

/// Write a page of the manual for every verb.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide man --dir /usr/local/share/man/man1
  abide man --dir man1 && man ./man1/abide-serve.1")]
pub(crate) struct Man {
    /// The folder in which the pages are written; it is made if it is not there
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
}

impl Man {
    pub(crate) fn perform(self) -> Outcome {
        let failed = |error: std::io::Error| {
            Failure::usage("unwritable", format!("{} cannot be written: {error}", self.dir.display()))
        };
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        let mut command = crate::Cli::command().disable_help_subcommand(true);
        command.build();
        write(&self.dir, &command, "abide").map_err(failed)?;
        Ok(Exit::Ok)
    }
}

/// The page of a verb, and of those below it.
fn write(folder: &Path, command: &Command, name: &str) -> std::io::Result<()> {
    let mut text = Vec::new();
    Page::new(command.clone().display_name(name)).render(&mut text)?;
    std::fs::write(folder.join(format!("{name}.1")), text)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(folder, below, &format!("{name}-{}", below.get_name()))?;
    }
    Ok(())
}
