//! The clients in other languages: their own tests, the vectors that all of them share, and a server of this tree.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup;

/// The oldest Node that the TypeScript client promises to run on.
const NODE_MIN: u32 = 20;

/// Runs their tests. The server has been built.
pub(crate) fn perform(root: &Path) -> Result<()> {
    setup::need(&[("python3", "python3"), ("node", "nodejs"), ("npm", "npm")])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    // The clients' tests start it from folders of their own.
    let server = std::path::absolute(target.join("debug/abide")).context("the folder of the build has no path")?;
    ensure!(server.exists(), "expected the server at {}, found none", server.display());
    test(root, &server, "clients/python", "python3", &["-m", "unittest", "discover", "tests"])?;
    require_node()?;
    // This also compiles it.
    test(root, &server, "clients/typescript", "npm", &["ci", "--no-fund", "--no-audit"])?;
    test(root, &server, "clients/typescript", "npm", &["test"])
}

fn test(root: &Path, server: &Path, folder: &str, command: &str, arguments: &[&str]) -> Result<()> {
    let mut tests = Command::new(command);
    tests.args(arguments).current_dir(root.join(folder)).env("ABIDE_BIN", server);
    let status = tests.status().with_context(|| format!("starting {command}"))?;
    ensure!(status.success(), "{command} {} in {folder} ended with {status}", arguments.join(" "));
    Ok(())
}

fn require_node() -> Result<()> {
    let told = Command::new("node").arg("--version").output().context("starting node")?;
    let version = String::from_utf8_lossy(&told.stdout);
    let found = major(&version);
    ensure!(
        found.is_some_and(|major| major >= NODE_MIN),
        "expected node {NODE_MIN} or newer, found {}; install a newer one, and put it first on the path",
        version.trim(),
    );
    Ok(())
}

/// The first number of `v20.1.2`.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_of_node_is_its_first_number() {
        assert_eq!(major("v20.20.2\n"), Some(20));
        assert_eq!(major("v9.0.0"), Some(9));
        assert_eq!(major("20.0.0"), None);
        assert_eq!(major(""), None);
    }
}
