//! `cargo xtask mutants`: changes the kernel in small ways, one at a time, and runs its tests. A change that no test notices
//! is a miss; every miss stands in `crates/kernel/mutants.txt` with a reason, or this ends non-zero. Changes of one name, such
//! as two `>` of a function, have a line each. cargo-mutants says which changes there are. They are built all at once, each
//! behind a switch, because two thousand builds would take hours.

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

/// How many there are of each name. Without its place, which every edit moves, a change is not the only one of its name: who
/// explained one of them would have explained them all.
type Counts = BTreeMap<String, usize>;

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
    let mut missed = Counts::new();
    let mut told = |mutant: &Mutant, verdict: Verdict| {
        if verdict == Verdict::Missed {
            let name = place_free(&mutant.name);
            let explained = known.get(&name).copied().unwrap_or_default();
            let missed = missed.entry(name).or_default();
            *missed += 1;
            if *missed > explained {
                println!("missed, without a reason: {}", mutant.name);
            }
        }
        verdicts.push((mutant.name.clone(), verdict));
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
fn report(verdicts: &[(String, Verdict)], known: &Counts, whole: bool) -> Result<()> {
    let count = |wanted: Verdict| verdicts.iter().filter(|(_, verdict)| *verdict == wanted).count();
    let misses = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Missed);
    let misses: Vec<&String> = misses.map(|(miss, _)| miss).collect();
    let missed = counts(misses.iter().map(|miss| place_free(miss)));
    let unexplained = surplus(&missed, known);
    for (name, more) in unexplained.iter().filter(|(name, _)| known.contains_key(*name)) {
        println!("{more} without a reason, of those that were missed of one name:");
        misses.iter().filter(|miss| place_free(miss) == **name).for_each(|miss| println!("  {miss}"));
    }
    let stale = if whole { surplus(known, &missed) } else { Vec::new() };
    for (name, more) in &stale {
        println!("explained, and not missed any more: {name} ({more} of {} lines)", known[*name]);
    }
    let sum = |surplus: &[(&str, usize)]| surplus.iter().map(|(_, more)| more).sum::<usize>();
    let (unexplained, stale) = (sum(&unexplained), sum(&stale));
    let object = serde_json::json!({
        "caught": count(Verdict::Caught),
        "hung": count(Verdict::Hung),
        "missed": misses.len(),
        "unexplained": unexplained,
        "unviable": count(Verdict::Unviable),
    });
    println!("{object}");
    ensure!(unexplained == 0, "{unexplained} changes were missed and are not explained in {KNOWN}");
    ensure!(stale == 0, "{stale} explanations in {KNOWN} are of changes that are noticed, or gone");
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

/// The misses that are explained, each by a line of its own.
fn known(text: &str) -> Result<Counts> {
    let mut known = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (miss, reason) = line.split_once('\t').with_context(|| format!("{KNOWN}: a miss without a tab: {line}"))?;
        ensure!(!reason.trim().is_empty(), "{KNOWN}: a miss without a reason: {miss}");
        known.push(miss.to_owned());
    }
    Ok(counts(known.into_iter()))
}

fn counts(names: impl Iterator<Item = String>) -> Counts {
    let mut counts = Counts::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// The names of which there are more in `these` than in `those`, and how many more.
fn surplus<'a>(these: &'a Counts, those: &Counts) -> Vec<(&'a str, usize)> {
    let more = |(name, count): (&'a String, &usize)| {
        let more = count.saturating_sub(those.get(name).copied().unwrap_or_default());
        (more > 0).then_some((&**name, more))
    };
    these.iter().filter_map(more).collect()
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

    const LINE: &str = "crates/a.rs: replace > with < in f\tnobody asks\n";

    fn reported(lines: usize, missed: &[&str], whole: bool) -> Result<(), String> {
        let known = known(&format!("# why\n{}", LINE.repeat(lines))).unwrap();
        let verdicts: Vec<_> = missed.iter().map(|name| ((*name).to_owned(), Verdict::Missed)).collect();
        report(&verdicts, &known, whole).map_err(|error| error.to_string())
    }

    #[test]
    fn a_miss_is_known_wherever_its_line_went() {
        assert_eq!(reported(1, &["crates/a.rs:12:5: replace > with < in f"], true), Ok(()));
        let other = reported(1, &["crates/a.rs:12:5: replace > with < in g"], false).unwrap_err();
        assert!(other.starts_with("1 changes were missed"), "{other}");
    }

    /// The first line for a change used to explain all of its name, also those that were made later.
    #[test]
    fn every_change_of_a_name_has_a_line() {
        let both = ["crates/a.rs:12:5: replace > with < in f", "crates/a.rs:14:9: replace > with < in f"];
        let missed = reported(1, &both, true).unwrap_err();
        assert!(missed.starts_with("1 changes were missed"), "{missed}");
        assert_eq!(reported(2, &both, true), Ok(()));
        let stale = reported(3, &both, true).unwrap_err();
        assert!(stale.starts_with("1 explanations"), "{stale}");
        assert_eq!(reported(3, &both, false), Ok(()), "the others may be of files that were not looked at");
    }

    #[test]
    fn a_reason_is_demanded() {
        assert!(known("crates/a.rs: replace f\n").is_err());
        assert!(known("crates/a.rs: replace f\t \n").is_err());
    }
}
