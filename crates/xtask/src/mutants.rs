//! `cargo xtask mutants`: changes the kernel in small ways, one at a time, and runs its tests. A change that no test notices
//! is a miss; every miss stands in `crates/kernel/mutants.txt` with a reason, or this ends non-zero. It takes hours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup;

/// Known misses: one on a line, then a tab and the reason. Lines with `#` are for the reader.
const KNOWN: &str = "crates/kernel/mutants.txt";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only files that match, such as `crates/kernel/src/transition/claim.rs`; may be given several times.
    #[arg(long)]
    file: Vec<String>,
    /// How many mutants are tested at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// How many seconds the tests may take before a mutant counts as one that hangs.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let tool = install(root)?;
    let out = target(root).join("mutants");
    let mut command = Command::new(tool);
    command.current_dir(root).args(["mutants", "--package", "abide-kernel", "--no-shuffle", "--colors", "never"]);
    // Its own tests only: what the kernel promises is shown at the kernel.
    command.args(["--test-package", "abide-kernel", "--jobs", &options.jobs.to_string()]);
    command.args(["--timeout", &options.timeout.to_string()]).arg("--output").arg(&out);
    command.args(options.file.iter().flat_map(|file| ["--file", file]));
    let status = command.status().context("starting cargo-mutants")?;
    // It ends with 2 when mutants were missed and with 3 when some hung: both are looked at below.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo-mutants ended with {status}");
    let read = |name: &str| lines(&out.join("mutants.out").join(name));
    let (caught, missed) = (read("caught.txt")?, read("missed.txt")?);
    let (hung, unviable) = (read("timeout.txt")?.len(), read("unviable.txt")?.len());
    let known = known(&std::fs::read_to_string(root.join(KNOWN)).with_context(|| format!("reading {KNOWN}"))?)?;
    let unexplained: Vec<&String> = missed.iter().filter(|miss| !known.contains_key(&place_free(miss))).collect();
    unexplained.iter().for_each(|miss| println!("missed, without a reason: {miss}"));
    let object = serde_json::json!({
        "caught": caught.len(),
        "hung": hung,
        "missed": missed.len(),
        "unexplained": unexplained.len(),
        "unviable": unviable,
    });
    println!("{object}");
    ensure!(unexplained.is_empty(), "{} mutants were missed and are not explained in {KNOWN}", unexplained.len());
    Ok(())
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The path of cargo-mutants, which is installed when it is missing.
fn install(root: &Path) -> Result<PathBuf> {
    let tools = target(root).join("tools");
    let tool = tools.join("bin/cargo-mutants");
    if !tool.exists() {
        let mut cargo = Command::new(setup::cargo_path());
        let status = cargo.args(["install", "--locked", "cargo-mutants", "--root"]).arg(&tools).status();
        ensure!(status.context("installing cargo-mutants")?.success(), "cargo-mutants could not be installed");
    }
    Ok(tool)
}

fn lines(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// The misses that are explained, and why.
fn known(text: &str) -> Result<BTreeMap<String, String>> {
    let mut known = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (miss, reason) = line.split_once('\t').with_context(|| format!("{KNOWN}: a miss without a tab: {line}"))?;
        ensure!(!reason.trim().is_empty(), "{KNOWN}: a miss without a reason: {miss}");
        known.insert(miss.to_owned(), reason.to_owned());
    }
    Ok(known)
}

/// A miss without line and column, which change with every edit: the file, and what was changed in which function.
fn place_free(miss: &str) -> String {
    let mut parts = miss.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(change)) => format!("{file}:{change}"),
        _ => miss.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_known_wherever_its_line_went() {
        let known = known("# why\ncrates/a.rs: replace f -> u8 with 0\tnobody asks\n").unwrap();
        let miss = place_free("crates/a.rs:12:5: replace f -> u8 with 0");
        assert_eq!(known.get(&miss).map(String::as_str), Some("nobody asks"));
    }

    #[test]
    fn a_reason_is_demanded() {
        assert!(known("crates/a.rs: replace f\n").is_err());
        assert!(known("crates/a.rs: replace f\t \n").is_err());
    }
}
