//! The clients in other languages: their own tests, the vectors that all of them share, and a server of this tree.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup;

/// Runs their tests. The server has been built.
pub(crate) fn perform(root: &Path) -> Result<()> {
    setup::need(&[("python3", "python3")])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let server = target.join("debug/abide");
    ensure!(server.exists(), "expected the server at {}, found none", server.display());
    let mut python = Command::new("python3");
    python.args(["-m", "unittest", "discover", "tests"]).current_dir(root.join("clients/python"));
    let status = python.env("ABIDE_BIN", &server).status().context("starting python3")?;
    ensure!(status.success(), "the tests of clients/python ended with {status}");
    Ok(())
}
