//! `cargo xtask test`: every check the project has, in the order in which a failure is cheapest to find. It
//! stops at the first stage that fails and says how to repeat it alone. `.ci/run` calls exactly this, so a
//! green run here is a green run there.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};

use crate::{api_fuzz, clients, crash, setup, sim, tidy};

#[derive(Args)]
pub(crate) struct Options {
    /// Run one stage only.
    #[arg(long, value_name = "STAGE")]
    only: Option<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Stage {
    Fmt,
    Clippy,
    Test,
    Doc,
    Clients,
    Api,
    Crash,
    Sim,
    Tidy,
}

impl Stage {
    const IN_ORDER: [Stage; 9] = [
        Stage::Fmt,
        Stage::Clippy,
        Stage::Test,
        Stage::Doc,
        Stage::Clients,
        Stage::Api,
        Stage::Crash,
        Stage::Sim,
        Stage::Tidy,
    ];

    fn name(self) -> &'static str {
        match self {
            Stage::Fmt => "fmt",
            Stage::Clippy => "clippy",
            Stage::Test => "test",
            Stage::Doc => "doc",
            Stage::Clients => "clients",
            Stage::Api => "api",
            Stage::Crash => "crash",
            Stage::Sim => "sim",
            Stage::Tidy => "tidy",
        }
    }
}

/// Whether cargo may change `Cargo.lock`. A build machine has to test the committed versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    MayChange,
    Locked,
}

impl Lock {
    fn of(ci: Option<&str>) -> Lock {
        if ci == Some("true") { Lock::Locked } else { Lock::MayChange }
    }
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let lock = Lock::of(std::env::var("CI").ok().as_deref());
    setup::prepare()?;
    if lock == Lock::Locked {
        require_committed_lock(root)?;
    }
    let mut tests_passed = None;
    for stage in Stage::IN_ORDER {
        if options.only.is_some_and(|only| only != stage) {
            continue;
        }
        let name = stage.name();
        eprintln!("xtask: {name}");
        let started = Instant::now();
        let outcome = run_stage(root, stage, lock);
        eprintln!("xtask: {name} took {:.1} s", started.elapsed().as_secs_f64());
        let passed = outcome.map_err(|error| {
            anyhow!("stage `{name}` failed ({error:#}); to repeat only it: cargo xtask test --only {name}")
        })?;
        tests_passed = tests_passed.or(passed);
    }
    if let Some(passed) = tests_passed {
        println!("tests: {passed}");
    }
    Ok(())
}

/// The number of tests that passed, from the one stage that runs tests.
fn run_stage(root: &Path, stage: Stage, lock: Lock) -> Result<Option<u64>> {
    let mut cargo = Command::new(setup::cargo_path());
    cargo.current_dir(root).args(cargo_arguments(stage, lock));
    match stage {
        Stage::Fmt | Stage::Clippy => run(&mut cargo).map(|()| None),
        Stage::Test => run_counting(&mut cargo).map(Some),
        Stage::Doc => run(cargo.env("RUSTDOCFLAGS", "-D warnings")).map(|()| None),
        Stage::Clients => run(&mut cargo).and_then(|()| clients::perform(root)).map(|()| None),
        Stage::Api => api_fuzz::perform_shortly(root).map(|()| None),
        Stage::Crash => crash::perform_shortly(root).map(|()| None),
        Stage::Sim => sim::perform_shortly(root).map(|()| None),
        Stage::Tidy => tidy::perform(root).map(|()| None),
    }
}

fn run(cargo: &mut Command) -> Result<()> {
    let status = cargo.status().context("cargo could not be started")?;
    ensure!(status.success(), "cargo ended with {status}");
    Ok(())
}

fn cargo_arguments(stage: Stage, lock: Lock) -> Vec<&'static str> {
    let mut arguments = match stage {
        // Formatting resolves no dependency, and `cargo fmt` knows no `--locked`.
        Stage::Fmt => return vec!["fmt", "--all", "--check"],
        // These run in this process, without cargo.
        Stage::Api | Stage::Crash | Stage::Sim | Stage::Tidy => return Vec::new(),
        Stage::Clippy => vec!["clippy", "--workspace", "--all-targets"],
        // All failures of a run are worth more than a quick end at the first. Doc tests are part of it, which
        // `--all-targets` would leave out.
        Stage::Test => vec!["test", "--workspace", "--no-fail-fast"],
        Stage::Doc => vec!["doc", "--no-deps", "--workspace"],
        // The server that the clients are held against, as the tests before have built it.
        Stage::Clients => vec!["test", "--workspace", "--no-run"],
    };
    if lock == Lock::Locked {
        arguments.push("--locked");
    }
    if stage == Stage::Clippy {
        arguments.extend(["--", "-D", "warnings"]);
    }
    arguments
}

/// Passes the output of `cargo test` through, line by line, and adds up what libtest says it passed.
fn run_counting(cargo: &mut Command) -> Result<u64> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo could not be started")?;
    let output = child.stdout.take().context("cargo's output was asked for as a pipe, found none")?;
    let passed = copy_and_count(BufReader::new(output), &mut std::io::stdout().lock());
    let status = child.wait().context("cargo could not be waited for")?;
    ensure!(status.success(), "cargo ended with {status}");
    passed
}

fn copy_and_count(mut from: impl BufRead, to: &mut impl Write) -> Result<u64> {
    let mut total = 0;
    // Bytes, because a test may print what is not UTF-8.
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        total += passed_in(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(total)
}

/// The count in a line such as `test result: ok. 12 passed; 0 failed; …`, else nought.
fn passed_in(line: &str) -> u64 {
    line.strip_prefix("test result: ok. ")
        .and_then(|rest| rest.split_once(" passed"))
        .and_then(|(count, _)| count.parse().ok())
        .unwrap_or(0)
}

/// `cargo xtask` itself is started without `--locked`, and may have brought `Cargo.lock` up to date on its
/// way here; the stages would then test versions nobody committed. So the file is compared with the commit.
fn require_committed_lock(root: &Path) -> Result<()> {
    if !root.join(".git").exists() {
        return Ok(());
    }
    let git = |arguments: &[&str]| {
        Command::new("git")
            .current_dir(root)
            // A build machine often mounts the clone under another owner.
            .args(["-c", "safe.directory=*"])
            .args(arguments)
            .stdout(Stdio::null())
            .status()
            .context("git could not be started")
    };
    if !git(&["ls-files", "--error-unmatch", "Cargo.lock"])?.success() {
        bail!("CI is true and Cargo.lock is not committed; run `cargo check --workspace` and commit it");
    }
    if !git(&["diff", "--quiet", "HEAD", "--", "Cargo.lock"])?.success() {
        bail!("CI is true and Cargo.lock differs from the commit; run `cargo check --workspace` and commit it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passed_tests_of_all_binaries_add_up_and_every_line_is_passed_on() {
        let output = "running 2 tests\ntest result: ok. 12 passed; 0 failed; 1 ignored\n\
                      test result: ok. 3 passed; 0 failed\nlast line without an end";
        let mut echoed = Vec::new();
        let passed = copy_and_count(output.as_bytes(), &mut echoed).expect("memory does not fail");
        assert_eq!(passed, 15);
        assert_eq!(echoed, output.as_bytes());
    }

    #[test]
    fn a_failed_binary_and_a_quoted_result_count_nothing() {
        assert_eq!(passed_in("test result: FAILED. 5 passed; 1 failed"), 0);
        assert_eq!(passed_in("it printed: test result: ok. 5 passed"), 0);
    }

    #[test]
    fn output_that_is_not_text_is_passed_on_as_it_is() {
        let mut echoed = Vec::new();
        copy_and_count(&b"\xff\xfe\n"[..], &mut echoed).expect("memory does not fail");
        assert_eq!(echoed, b"\xff\xfe\n");
    }

    #[test]
    fn ci_locks_every_stage_that_resolves_dependencies() {
        let lock = Lock::of(Some("true"));
        for stage in [Stage::Clippy, Stage::Test, Stage::Doc] {
            let arguments = cargo_arguments(stage, lock);
            let locked = arguments.iter().position(|argument| *argument == "--locked");
            let separator = arguments.iter().position(|argument| *argument == "--");
            assert!(locked.is_some(), "{stage:?}");
            assert!(separator.is_none() || locked < separator, "{stage:?}: cargo must see it, not clippy");
        }
    }

    #[test]
    fn a_developer_may_change_the_lock() {
        assert_eq!(Lock::of(None), Lock::MayChange);
        assert_eq!(Lock::of(Some("false")), Lock::MayChange);
        assert!(!cargo_arguments(Stage::Test, Lock::MayChange).contains(&"--locked"));
    }
}
