//! `cargo xtask mutants`: changes the kernel in small ways, one at a time, and runs its tests. A change that no test notices
//! is a miss; every miss stands in `crates/kernel/mutants.txt` with a reason, or this ends non-zero. cargo-mutants says which
//! changes there are. They are built all at once, each behind a switch, because two thousand builds would take hours.

mod trial;
mod weave;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use self::trial::{Tree, Verdict};
use self::weave::Mutant;
use crate::setup;

/// Known misses: one on a line, then a tab and the reason. Lines with `#` are for the reader.
const KNOWN: &str = "crates/kernel/mutants.txt";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only files that match, such as `crates/kernel/src/transition/claim.rs`; may be given several times.
    #[arg(long)]
    file: Vec<String>,
    /// How many changes are tested at a time; as many as there are processors, unless said otherwise.
    #[arg(long)]
    jobs: Option<usize>,
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let known = known(&std::fs::read_to_string(root.join(KNOWN)).with_context(|| format!("reading {KNOWN}"))?)?;
    let mutants = list(root, &options.file)?;
    let tree = Tree::copy(root, &target(root).join("mutants"))?;
    let (unviable, apart) = tree.weave(&mutants)?;
    println!("{} changes, of which {} do not compile", mutants.len(), unviable.len());
    let mut verdicts: Vec<(String, Verdict)> = Vec::new();
    let mut told = |mutant: &Mutant, verdict: Verdict| {
        let place_free = place_free(&mutant.name);
        if verdict == Verdict::Missed && !known.contains_key(&place_free) {
            println!("missed, without a reason: {}", mutant.name);
        }
        verdicts.push((place_free, verdict));
        if verdicts.len().is_multiple_of(200) {
            println!("{} of {}", verdicts.len(), mutants.len());
        }
    };
    mutants.iter().filter(|mutant| unviable.contains(&mutant.id)).for_each(|mutant| told(mutant, Verdict::Unviable));
    let woven: Vec<&Mutant> = mutants.iter().filter(|m| !unviable.contains(&m.id) && !apart.contains(&m.id)).collect();
    let jobs = options.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    tree.try_woven(&woven, jobs, &mut told)?;
    let tree = Tree::copy(root, &target(root).join("mutants"))?;
    for mutant in mutants.iter().filter(|mutant| apart.contains(&mutant.id)) {
        told(mutant, tree.try_alone(mutant)?);
    }
    report(&verdicts, &known, options.file.is_empty())
}

/// Prints how many there are of each, and fails for misses without a reason and for reasons without a miss.
fn report(verdicts: &[(String, Verdict)], known: &BTreeMap<String, String>, whole: bool) -> Result<()> {
    let count = |wanted: Verdict| verdicts.iter().filter(|(_, verdict)| *verdict == wanted).count();
    let misses = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Missed);
    let misses: Vec<&String> = misses.map(|(miss, _)| miss).collect();
    let unexplained = misses.iter().filter(|miss| !known.contains_key(miss.as_str())).count();
    let stale: Vec<&String> = known.keys().filter(|miss| whole && !misses.contains(miss)).collect();
    stale.iter().for_each(|miss| println!("explained, and not missed any more: {miss}"));
    let object = serde_json::json!({
        "caught": count(Verdict::Caught),
        "hung": count(Verdict::Hung),
        "missed": misses.len(),
        "unexplained": unexplained,
        "unviable": count(Verdict::Unviable),
    });
    println!("{object}");
    ensure!(unexplained == 0, "{unexplained} changes were missed and are not explained in {KNOWN}");
    ensure!(stale.is_empty(), "{} explanations in {KNOWN} are of changes that are noticed, or gone", stale.len());
    Ok(())
}

/// The changes that there are, by file and place.
fn list(root: &Path, files: &[String]) -> Result<Vec<Mutant>> {
    let mut command = Command::new(install(root)?);
    command.current_dir(root).args(["mutants", "--package", "abide-kernel", "--list", "--json"]);
    let output =
        command.args(files.iter().flat_map(|file| ["--file", file])).output().context("starting cargo-mutants")?;
    ensure!(output.status.success(), "cargo-mutants: {}", String::from_utf8_lossy(&output.stderr));
    let values: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).context("reading its list")?;
    values.iter().enumerate().map(|(id, value)| Mutant::read(id, value)).collect()
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
