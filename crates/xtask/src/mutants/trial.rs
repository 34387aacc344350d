//! A build of the kernel with all its changes, and its tests run once for each: only those that reach the change, the
//! quickest first, until one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::weave::{self, Mutant};
use crate::setup;

const PACKAGE: &str = "abide-kernel";
const KERNEL: &str = "crates/kernel";

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// A test failed.
    Caught,
    /// A test did not end in time.
    Hung,
    /// No test noticed.
    Missed,
    /// It does not compile.
    Unviable,
}

/// A copy of the kernel in a workspace of its own, in which it is changed.
pub(super) struct Tree {
    root: PathBuf,
    workspace: PathBuf,
}

/// A test, in its binary, and how long it takes.
#[derive(Clone)]
struct Test {
    binary: PathBuf,
    name: String,
    takes: Duration,
}

impl Tree {
    /// Copies the kernel to `root`.
    pub(super) fn copy(workspace: &Path, root: &Path) -> Result<Self> {
        let manifest = std::fs::read_to_string(workspace.join("Cargo.toml")).context("reading Cargo.toml")?;
        let kept = manifest.lines().filter(|line| !line.starts_with("default-members"));
        let alone = kept.map(|line| if line.starts_with("members") { r#"members = ["crates/kernel"]"# } else { line });
        let tree = Self { root: root.to_owned(), workspace: workspace.to_owned() };
        if root.join(KERNEL).exists() {
            std::fs::remove_dir_all(root.join(KERNEL)).context("clearing the copy")?;
        }
        copy_folder(&workspace.join(KERNEL), &root.join(KERNEL))?;
        std::fs::write(root.join("Cargo.toml"), alone.collect::<Vec<_>>().join("\n"))?;
        std::fs::copy(workspace.join("Cargo.lock"), root.join("Cargo.lock"))?;
        Ok(tree)
    }

    fn source(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.workspace.join(file)).with_context(|| format!("reading {file}"))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        std::fs::write(self.root.join(file), text).with_context(|| format!("writing {file}"))
    }

    /// Writes all files with those of their changes that compile. Gives those that do not, and those that stand apart.
    pub(super) fn weave(&self, mutants: &[Mutant]) -> Result<(BTreeSet<usize>, BTreeSet<usize>)> {
        let mut unviable = BTreeSet::new();
        let files: BTreeSet<&str> = mutants.iter().map(|mutant| &*mutant.file).collect();
        // The compiler stops at the first stage that finds something, so that there are a few rounds.
        for _ in 0..20 {
            let mut left = BTreeSet::new();
            for file in &files {
                let its = mutants.iter().filter(|mutant| mutant.file == *file && !unviable.contains(&mutant.id));
                let woven = weave::weave(&self.source(file)?, &its.cloned().collect::<Vec<_>>())?;
                left.extend(woven.left);
                self.write(file, &woven.text)?;
            }
            let lib = format!("{KERNEL}/src/lib.rs");
            self.write(&lib, &(self.source(&lib)? + weave::SWITCH))?;
            let wrong = self.errors()?;
            if wrong.is_empty() {
                return Ok((unviable, left));
            }
            unviable.extend(wrong);
        }
        bail!("the changed kernel does not compile")
    }

    /// The changes that the compiler names.
    fn errors(&self) -> Result<BTreeSet<usize>> {
        let mut wrong = BTreeSet::new();
        for message in self.cargo(&["check"])?.0 {
            let message = &message["message"];
            let spans: Vec<&Value> = message["spans"].as_array().into_iter().flatten().collect();
            if message["level"] != "error" || spans.is_empty() {
                continue;
            }
            let (main, others): (Vec<&Value>, Vec<&Value>) =
                spans.into_iter().partition(|span| span["is_primary"] == true);
            let found = main.into_iter().chain(others).find_map(|span| self.change_of(span));
            let text =
                || format!("an error that no change explains:\n{}", message["rendered"].as_str().unwrap_or_default());
            wrong.insert(found.with_context(text)?);
        }
        Ok(wrong)
    }

    /// The change in whose code a place is that the compiler names.
    fn change_of(&self, place: &Value) -> Option<usize> {
        let mut place = place;
        while place["expansion"].is_object() {
            place = &place["expansion"]["span"];
        }
        let text = std::fs::read_to_string(self.root.join(place["file_name"].as_str()?)).ok()?;
        weave::change_at(&text, place["byte_start"].as_u64()? as usize)
    }

    /// Runs cargo on the copy: what it says, and whether it was content.
    fn cargo(&self, args: &[&str]) -> Result<(Vec<Value>, bool)> {
        let mut cargo = Command::new(setup::cargo_path());
        cargo.current_dir(&self.root).args(args).args(["--package", PACKAGE, "--message-format", "json"]);
        // Without what only a debugger reads, and with the tests a little quicker, because they run so often.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        cargo.env("RUSTFLAGS", "--cap-lints=allow").env("CARGO_TARGET_DIR", self.root.join("target"));
        let output = cargo.stderr(Stdio::null()).output().context("starting cargo")?;
        let lines = String::from_utf8_lossy(&output.stdout);
        Ok((lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(), output.status.success()))
    }

    /// Builds the tests; `None` when they do not compile.
    fn binaries(&self) -> Result<Option<Vec<PathBuf>>> {
        let (messages, built) = self.cargo(&["test", "--no-run"])?;
        let binaries = messages.iter().filter_map(|message| message["executable"].as_str()).map(PathBuf::from);
        Ok(built.then(|| binaries.collect()))
    }

    /// Tries every change that is woven in, `jobs` at a time, and says what became of each.
    pub(super) fn try_woven(
        &self,
        mutants: &[&Mutant],
        jobs: usize,
        told: &mut impl FnMut(&Mutant, Verdict),
    ) -> Result<()> {
        let binaries = self.binaries()?.context("the changed kernel builds")?;
        let reaching = self.reaching(&binaries)?;
        let (next, nobody) = (AtomicUsize::new(0), Vec::new());
        let (sender, verdicts) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                let (sender, next, reaching, nobody) = (sender.clone(), &next, &reaching, &nobody);
                scope.spawn(move || {
                    while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let tests = reaching.get(&mutant.id).unwrap_or(nobody);
                        let verdict = self.run(tests, &[("ABIDE_MUTANT", mutant.id.to_string())]);
                        if sender.send((*mutant, verdict)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (mutant, verdict) in verdicts {
                told(mutant, verdict?);
            }
            Ok(())
        })
    }

    /// Tries a change that cannot be switched, in a build of its own.
    pub(super) fn try_alone(&self, mutant: &Mutant) -> Result<Verdict> {
        let source = self.source(&mutant.file)?;
        self.write(&mutant.file, &mutant.replace(&source))?;
        let binaries = self.binaries()?;
        self.write(&mutant.file, &source)?;
        let Some(binaries) = binaries else { return Ok(Verdict::Unviable) };
        let mut tests = Vec::new();
        for binary in binaries {
            let takes = Duration::from_secs(10);
            tests.extend(names(&binary)?.into_iter().map(|name| Test { binary: binary.clone(), name, takes }));
        }
        self.run(&tests, &[])
    }

    /// Every test by the changes that it reaches, the quickest first.
    fn reaching(&self, binaries: &[PathBuf]) -> Result<BTreeMap<usize, Vec<Test>>> {
        let mut reaching: BTreeMap<usize, Vec<Test>> = BTreeMap::new();
        let list = self.root.join("reached.txt");
        for binary in binaries {
            for name in names(binary)? {
                let _ = std::fs::remove_file(&list);
                let begun = Instant::now();
                let test = Test { binary: binary.clone(), name, takes: Duration::from_secs(60) };
                let verdict =
                    self.run(std::slice::from_ref(&test), &[("ABIDE_MUTANTS_REACHED", list.display().to_string())])?;
                ensure!(verdict == Verdict::Missed, "{} fails without any change", test.name);
                let test = Test { takes: begun.elapsed(), ..test };
                for id in std::fs::read_to_string(&list).unwrap_or_default().lines() {
                    reaching.entry(id.parse().context("an id")?).or_default().push(test.clone());
                }
            }
        }
        reaching.values_mut().for_each(|tests| tests.sort_by_key(|test| test.takes));
        Ok(reaching)
    }

    /// Runs tests in a few processes, and says whether one failed.
    fn run(&self, tests: &[Test], environment: &[(&str, String)]) -> Result<Verdict> {
        for group in groups(tests) {
            let Some(first) = group.first() else { continue };
            let mut command = Command::new("sh");
            // A change may well ask for all the memory there is.
            command.args(["-c", "ulimit -v 4000000; exec \"$0\" \"$@\""]).arg(&first.binary).arg("--exact");
            command.args(group.iter().map(|test| &test.name)).current_dir(self.root.join(KERNEL));
            command.env("RUST_TEST_THREADS", "1").env("RUST_BACKTRACE", "0").env("RANDOM_SHRINKS", "0");
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            let patience = Duration::from_secs(3) + 20 * group.iter().map(|test| test.takes).sum::<Duration>();
            // On a machine that slept meanwhile, everything seems to hang: once more, to be certain.
            let ended = match wait(&mut command, patience)? {
                None => wait(&mut command, patience)?,
                ended => ended,
            };
            match ended {
                Some(true) => {}
                Some(false) => return Ok(Verdict::Caught),
                None => return Ok(Verdict::Hung),
            }
        }
        Ok(Verdict::Missed)
    }
}

/// The first few of each binary together, then the other quick ones, then the slow ones one by one.
fn groups(tests: &[Test]) -> Vec<Vec<&Test>> {
    const FEW: usize = 6;
    let slow = |test: &Test| test.takes > Duration::from_millis(600);
    let binaries: BTreeSet<&Path> = tests.iter().map(|test| &*test.binary).collect();
    let mut groups = Vec::new();
    for binary in binaries {
        let quick: Vec<&Test> = tests.iter().filter(|test| test.binary == binary && !slow(test)).collect();
        let (first, rest) = quick.split_at(quick.len().min(FEW));
        groups.extend([first.to_vec(), rest.to_vec()]);
    }
    groups.extend(tests.iter().filter(|test| slow(test)).map(|test| vec![test]));
    groups
}

/// Whether a process ends well, or `None` when it does not end in time.
fn wait(command: &mut Command, patience: Duration) -> Result<Option<bool>> {
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("starting tests")?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if begun.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The tests of a binary.
fn names(binary: &Path) -> Result<Vec<String>> {
    let output =
        Command::new(binary).arg("--list").output().with_context(|| format!("listing {}", binary.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
