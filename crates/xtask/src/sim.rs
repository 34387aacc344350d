//! `cargo xtask sim`: worlds from seeds, in a build of its own that is fast enough for thousands.

use std::path::Path;

use anyhow::Result;

use crate::known_bugs::{self, Which};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Put each bug of `crates/sim/bugs` into a copy, and look whether it is found.
    #[arg(long)]
    known_bugs: bool,
    /// With --known-bugs: only the first so many.
    #[arg(long, value_name = "N", requires = "known_bugs")]
    most: Option<usize>,
    /// With --known-bugs: the one of this name, and no other.
    #[arg(long, value_name = "NAME", requires = "known_bugs", conflicts_with = "most")]
    only: Option<String>,
    /// What the simulator is told: `--seeds N`, `--from N`, `--seed N`, `--each-fault`, `--model`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    if options.known_bugs {
        return known_bugs::perform(root, &Which { most: options.most, only: options.only.clone() });
    }
    let arguments: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
    known_bugs::simulate(root, &arguments)
}

/// What every check of the project does of this: the same few seeds, those that once failed, each fault of the store once, and
/// two of the known bugs, of which each is a build.
pub(crate) fn perform_shortly(root: &Path) -> Result<()> {
    known_bugs::simulate(root, &["--seeds", SEEDS, "--regressions"])?;
    known_bugs::simulate(root, &["--each-fault"])?;
    known_bugs::perform(root, &Which { most: Some(BUGS), ..Which::default() })
}

const SEEDS: &str = "120";
const BUGS: usize = 2;
