//! `cargo xtask sim --known-bugs`: bugs that were thought of, each a patch, are put into a copy of the tree one after the
//! other; the simulator must find every one of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::setup::cargo_path;

/// Seeds within which a bug must be found.
const SEEDS_MAX: &str = "2000";

/// Bugs of the claim protocol, which the model check must find as well: it tries every order, and needs no luck.
const BY_MODEL: &[&str] = &[
    "attempt-given-before-its-claim-is-durable",
    "gathered-while-writing-let-out",
    "lease-ended-early",
    "lease-not-rearmed",
    "outcome-keyed-by-run-only",
];

/// Which bugs are looked for.
#[derive(Default)]
pub(crate) struct Which {
    /// The first so many.
    pub(crate) most: Option<usize>,
    /// One alone, by its name.
    pub(crate) only: Option<String>,
}

/// Looks for bugs: all of them, unless told otherwise.
pub(crate) fn perform(root: &Path, which: &Which) -> Result<()> {
    let patches = patches(root)?;
    let Scratch { folder, tree, target } = Scratch::of(root);
    for name in BY_MODEL.iter().copied().chain(which.only.as_deref()) {
        ensure!(patches.iter().any(|patch| name_of(patch) == name), "{name} is no patch of crates/sim/bugs");
    }
    copy(root, &tree)?;
    // All of them, whichever are looked for: one that no longer applies would else go unnoticed where only a few are.
    for patch in &patches {
        ensure!(
            apply(patch, &tree, &folder, &["--check"])?,
            "{} no longer applies: bring it up to date",
            name_of(patch)
        );
    }
    let wanted = |patch: &&PathBuf| which.only.as_deref().is_none_or(|only| name_of(patch) == only);
    let mut found = serde_json::Map::new();
    let (mut modelled, mut missed) = (Vec::new(), Vec::new());
    for patch in patches.iter().filter(wanted).take(which.most.unwrap_or(usize::MAX)) {
        let name = name_of(patch);
        copy(root, &tree)?;
        ensure!(apply(patch, &tree, &folder, &[])?, "{name} could not be put into the copy");
        match look_for(&tree, &target)? {
            Some(seed) => {
                eprintln!("{name}: found by seed {seed}");
                found.insert(name.to_owned(), json!(seed));
            }
            None => missed.push(name.to_owned()),
        }
        if BY_MODEL.contains(&name) {
            ensure!(breaks_model(&tree, &target)?, "the model check calls itself complete, and has not found {name}");
            eprintln!("{name}: found by the model check");
            modelled.push(name.to_owned());
        }
    }
    let bugs = found.len() + missed.len();
    println!("{}", json!({ "bugs": bugs, "found_by_seed": found, "found_by_model": modelled, "missed": missed }));
    ensure!(missed.is_empty(), "these bugs were not found in {SEEDS_MAX} seeds: {missed:?}");
    Ok(())
}

/// Lives through seeds in a copy without a bug, whose build is the one that the bugs are then put into.
pub(crate) fn simulate(root: &Path, arguments: &[&str]) -> Result<()> {
    let Scratch { tree, target, .. } = Scratch::of(root);
    copy(root, &tree)?;
    let status = simulator(&tree, &target).args(arguments).status().context("starting the simulator")?;
    ensure!(status.success(), "the simulator found something wrong");
    Ok(())
}

/// Where the copy is, and what is built of it.
struct Scratch {
    folder: PathBuf,
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    fn of(root: &Path) -> Self {
        let folder = root.join("target/known-bugs");
        Self { tree: folder.join("tree"), target: folder.join("target"), folder }
    }
}

fn name_of(patch: &Path) -> &str {
    patch.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Puts a bug into the copy, with what else git is told. Whether it can be done.
fn apply(patch: &Path, tree: &Path, folder: &Path, told: &[&str]) -> Result<bool> {
    let mut apply = Command::new("git");
    apply.args(["apply", "--whitespace=nowarn"]).args(told).arg(patch).current_dir(tree);
    // The copy is no repository of its own: what it lies in must not count.
    apply.env("GIT_CEILING_DIRECTORIES", folder);
    Ok(apply.status().context("starting git")?.success())
}

fn patches(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join("crates/sim/bugs");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut patches: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    patches.sort();
    if patches.is_empty() {
        bail!("there are no patches in {}", folder.display());
    }
    Ok(patches)
}

/// Copies what a build needs. Files that are as they were keep their age, so that only what changes is built again.
fn copy(root: &Path, tree: &Path) -> Result<()> {
    std::fs::create_dir_all(tree).context("making the copy")?;
    for part in ["Cargo.toml", "Cargo.lock", ".cargo", "crates"] {
        copy_part(&root.join(part), &tree.join(part))?;
    }
    Ok(())
}

fn copy_part(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        std::fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy_part(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let text = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if std::fs::read(to).ok().as_ref() != Some(&text) {
        std::fs::write(to, text).with_context(|| format!("writing {}", to.display()))?;
    }
    Ok(())
}

/// The simulator of a copy, to be told what to do.
fn simulator(tree: &Path, target: &Path) -> Command {
    let mut command = Command::new(cargo_path());
    command
        .args(["run", "--quiet", "--release", "--package", "abide-sim", "--"])
        .current_dir(tree)
        // Of its own: cargo would take what is built from the copy for what is built from the tree.
        .env("CARGO_TARGET_DIR", target)
        // Built anew for every bug and run for a moment: what is built quickly is better here than what runs quickly.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        // What a build for users only believes is checked here.
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("RUSTFLAGS", "--cap-lints=allow");
    command
}

/// The first seed that fails, if one does.
fn look_for(tree: &Path, target: &Path) -> Result<Option<u64>> {
    let mut command = simulator(tree, target);
    command.args(["--first", "--seeds", SEEDS_MAX]).stderr(std::process::Stdio::inherit());
    let output = command.output().context("starting the simulator")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains("\"seeds\""), "the simulator did not run: {said}");
    let first = said.lines().find_map(|line| line.strip_prefix("seed ")?.split(':').next()?.parse().ok());
    Ok(first.filter(|_| !output.status.success()))
}

/// Whether the model check of the copy comes to a law that does not hold.
fn breaks_model(tree: &Path, target: &Path) -> Result<bool> {
    let mut command = simulator(tree, target);
    command.args(["--model", "--first"]).stderr(std::process::Stdio::inherit());
    let output = command.output().context("starting the simulator")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains("\"complete\":"), "the model check did not run: {said}");
    Ok(!output.status.success() && said.contains("\"complete\":false"))
}
