//! `cargo xtask sim`: worlds from seeds, in a build of its own that is fast enough for thousands.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// What the simulator is told: `--seeds N`, `--from N`, `--seed N`, `--model`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--release", "--package", "abide-sim", "--"])
        .args(&options.arguments)
        .current_dir(root)
        .status()
        .context("starting the simulator")?;
    ensure!(status.success(), "the simulator found something wrong");
    Ok(())
}
