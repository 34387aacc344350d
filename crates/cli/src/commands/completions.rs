//! `abide completions`: what a shell needs to complete commands.

use std::io;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::failure::{Exit, Outcome};

/// Write what a shell needs to complete commands.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide completions bash > ~/.local/share/bash-completion/completions/abide
  abide completions zsh > ~/.zfunc/_abide
  abide completions fish > ~/.config/fish/completions/abide.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn perform(self) -> Outcome {
        let mut text = Vec::new();
        generate(self.shell, &mut crate::Cli::command(), "abide", &mut text);
        io::Write::write_all(&mut io::stdout(), &text)?;
        Ok(Exit::Ok)
    }
}
