//! Set-up: what a fresh Debian machine lacks before the checks can run. It installs Debian packages where it
//! may, and otherwise says what to install; it never changes the Rust toolchain, because that choice is the
//! developer's.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};

/// A command the checks call, and the Debian packages that bring it.
struct Tool {
    command: &'static str,
    packages: &'static [&'static str],
}

const TOOLS: &[Tool] = &[
    // The C library's headers are only recommended by gcc, and we install without recommendations.
    Tool { command: "cc", packages: &["gcc", "libc6-dev"] },
    Tool { command: "git", packages: &["git"] },
    Tool { command: "sqlite3", packages: &["sqlite3"] },
    // Tests start servers of their own, as the user that the package makes.
    Tool { command: "initdb", packages: &["postgresql"] },
];

/// Parts of the toolchain, as rustup names them, and the cargo verb each one brings.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

/// Leaves the machine ready for every stage of `cargo xtask test`, or says what is missing and how to get it.
pub(crate) fn prepare() -> Result<()> {
    require_components()?;
    let missing = missing_tools(TOOLS, is_on_path);
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages).copied().collect();
    let commands: Vec<&str> = missing.iter().map(|tool| tool.command).collect();
    ensure!(
        is_root() && is_on_path("apt-get"),
        "expected {} on the path, found none, and this user may not install it; run: sudo apt-get install {}",
        commands.join(", "),
        packages.join(" "),
    );
    install(&packages)
}

/// Leaves commands on the path that only one chore needs, each with the Debian package that brings it.
pub(crate) fn need(commands: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&(&str, &str)> = commands.iter().filter(|(command, _)| !is_on_path(command)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let names: Vec<&str> = missing.iter().map(|(command, _)| *command).collect();
    ensure!(
        is_root() && is_on_path("apt-get"),
        "expected {} on the path, found none, and this user may not install it; run: sudo apt-get install {}",
        names.join(", "),
        packages.join(" "),
    );
    install(&packages)
}

fn require_components() -> Result<()> {
    for (component, verb) in COMPONENTS {
        let present = Command::new(cargo_path())
            .args([verb, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        ensure!(present, "`cargo {verb}` is missing; run: rustup component add {component}");
    }
    Ok(())
}

/// The cargo that started us, so that every stage uses the same toolchain.
pub(crate) fn cargo_path() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn missing_tools(tools: &[Tool], is_present: impl Fn(&str) -> bool) -> Vec<&Tool> {
    tools.iter().filter(|tool| !is_present(tool.command)).collect()
}

fn is_on_path(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(postgres_folders()).any(|folder| folder.join(command).is_file())
}

/// Debian keeps the programs of a PostgreSQL server apart from the path, by version.
fn postgres_folders() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin"))
}

pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

pub(crate) fn install(packages: &[&str]) -> Result<()> {
    eprintln!("xtask: installing the missing Debian packages {}", packages.join(", "));
    // A stale list only matters if the install then fails, which is reported below.
    if !apt_get(&["update"])? {
        eprintln!("xtask: apt-get update failed; trying with the package lists at hand");
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    if !apt_get(&arguments)? {
        bail!("apt-get could not install {0}; install by hand and try again: apt-get install {0}", packages.join(" "));
    }
    Ok(())
}

/// Whether it went well. Its output goes to standard error: standard output belongs to the checks.
fn apt_get(arguments: &[&str]) -> Result<bool> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_on_the_path_is_missing() {
        assert!(missing_tools(TOOLS, |_| true).is_empty());
        let missing = missing_tools(TOOLS, |command| command != "sqlite3");
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].packages, ["sqlite3"]);
    }

    #[test]
    fn a_command_nobody_has_is_not_on_the_path() {
        assert!(!is_on_path("no-such-command-of-abide"));
        assert!(is_on_path("sh"));
    }
}
