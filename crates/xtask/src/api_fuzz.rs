//! `cargo xtask api-fuzz`: whatever the OpenAPI document allows, and what it does not, is asked of a server with runs in all
//! kinds of states, by schemathesis. No answer may be a failure of ours, and every answer must be one that is documented.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use abide::{Client, Engine, Failure, FnCtx, Function, RunId, Status};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::setup;

/// The tester, pinned: another version may know other tests.
const TESTER: &str = "schemathesis==4.32.5";
/// What every answer is held against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,missing_required_header,unsupported_method,allow_header_conformance";
/// Streams do not end, so that nothing can be said of them as a whole; they have tests of their own.
const STREAMS: &str = "/events$";

#[derive(Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 10, value_name = "N")]
    minutes: u64,
    /// Where the tester's chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The short form, for the checks of every change. The server has been built.
pub(crate) fn perform_shortly(root: &Path) -> Result<()> {
    test(root, &Options { minutes: 1, seed: 1 })
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let mut build = Command::new(setup::cargo_path());
    build.current_dir(root).args(["build", "--quiet", "--package", "abide-cli"]);
    ensure!(build.status().context("cargo could not be started")?.success(), "the command line does not build");
    test(root, options)
}

fn test(root: &Path, options: &Options) -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let binary = target.join("debug/abide");
    ensure!(binary.exists(), "expected the server at {}, found none; cargo xtask api-fuzz builds it", binary.display());
    let tester = tester(&target)?;
    let folder = tempfile::tempdir().context("making a folder")?;
    let (server, url, token) = Served::begin(&binary, folder.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (worker, runs) = runtime.block_on(populate(&url, &token))?;
    std::fs::write(folder.path().join("schemathesis.toml"), known(&runs)).context("writing what the tester knows")?;

    let mut tested = Command::new(tester);
    tested
        .current_dir(folder.path())
        .args(["run", &format!("{url}/v1/openapi.json"), "--no-color", "--checks", CHECKS])
        .args(["--header", &format!("Authorization: Bearer {token}"), "--exclude-path-regex", STREAMS])
        .args(["--max-time", &(options.minutes * 60).to_string(), "--seed", &options.seed.to_string()])
        .args(["--request-timeout", "70", "--warnings", "off"]);
    let done = tested.stderr(Stdio::inherit()).output().context("starting the tester")?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    eprintln!("{said}");
    runtime.block_on(worker.stop(Duration::from_secs(10)));
    server.end()?;
    let cases = count(&said, " generated").context("the tester says how many requests it made")?;
    let operations = count(&said, "Tested: ").context("the tester says what it tested")?;
    println!("{}", json!({"minutes": options.minutes, "seed": options.seed, "operations": operations, "cases": cases}));
    ensure!(done.status.success(), "the tester ended with {}: see above", done.status);
    Ok(())
}

/// The number before or behind a word, in the first line that has it.
fn count(said: &str, word: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains(word))?;
    line.split(|letter: char| !letter.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
}

/// The tester in an environment of its own, made when it is needed.
fn tester(target: &Path) -> Result<PathBuf> {
    let place = target.join("api-fuzz");
    let tester = place.join("bin/st");
    if !tester.exists() {
        setup::need(&[("python3", "python3")])?;
        let make = || Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place).status();
        if !make().context("starting python3")?.success() {
            setup::install(&["python3-venv"])?;
            ensure!(make()?.success(), "python3 -m venv does not make an environment");
        }
        let pip = Command::new(place.join("bin/pip")).args(["install", "--quiet", TESTER]).status();
        ensure!(pip.context("starting pip")?.success(), "{TESTER} cannot be installed");
    }
    Ok(tester)
}

/// A server that ends with the chore.
struct Served(Child);

impl Served {
    /// The server, its URL, and a token for everything.
    fn begin(binary: &Path, folder: &Path) -> Result<(Self, String, String)> {
        let abide = || {
            let mut abide = Command::new(binary);
            abide.current_dir(folder).env("ABIDE_STORE", "sqlite:fuzz.db");
            abide
        };
        let made = abide().args(["token", "create", "--name", "fuzz", "--scope", "admin", "--in", "*"]).output();
        let made = made.context("making a token")?;
        ensure!(made.status.success(), "abide token create ended with {}", made.status);
        let token = String::from_utf8(made.stdout)?.trim().to_owned();
        let serving = abide().args(["serve", "--json", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn();
        let mut served = Self(serving.context("starting the server")?);
        let output = served.0.stdout.take().context("the server's output")?;
        let mut text = String::new();
        for line in BufReader::new(output).lines() {
            text.push_str(&line?);
            if let Ok(said) = serde_json::from_str::<Value>(&text) {
                let url = said["url"].as_str().context("an address")?.to_owned();
                return Ok((served, url, token));
            }
        }
        bail!("the server ended before it listened: {text}")
    }

    /// Tells it to stop; it must still be there, and end in order.
    fn end(mut self) -> Result<()> {
        ensure!(self.0.try_wait()?.is_none(), "the server ended under test");
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let ended = self.0.wait()?;
        ensure!(ended.success(), "the server ended with {ended}");
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker, and runs: one that has ended, one that is cancelled, and some that wait for a signal, for people, and for a worker
/// that never comes.
async fn populate(url: &str, token: &str) -> Result<(Engine, Vec<RunId>)> {
    let waits = Function::new("waits", async |ctx: FnCtx, how: String| {
        match how.as_str() {
            "signal" | "cancelled" => drop(ctx.signal::<Value>("go").await?),
            "approval" => drop(ctx.approval("release").payload(&how).await?),
            "task" => drop(ctx.task::<Value>("do it", &how).await?),
            _ => {}
        }
        Ok::<_, Failure>(how)
    });
    let worker = Engine::open(url).token(token).node("fuzz").register(waits).start().await?;
    let client: Client = worker.client();
    let mut runs = Vec::new();
    for how in ["ended", "signal", "approval", "task", "cancelled"] {
        let run = client.start("waits", how).key(how).await?;
        match how {
            "ended" => drop(run.result::<String>().await?),
            "cancelled" => run.cancel("enough").await?,
            _ => {
                while run.show().await?.status() == Status::Runnable || run.show().await?.status() == Status::Executing
                {
                }
            }
        }
        runs.push(run.id());
    }
    runs.push(client.start("nobody has it", &Value::Null).await?.id());
    Ok((worker, runs))
}

/// What the tester uses beside what it makes up.
fn known(runs: &[RunId]) -> String {
    let list = |texts: Vec<String>| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ");
    let ids = list(runs.iter().map(ToString::to_string).collect());
    let boundary = |run: &RunId| format!("manual_{}.1", run.to_string().trim_start_matches("run_"));
    let boundaries = list(runs.iter().skip(2).take(2).map(boundary).collect());
    format!(
        "[parameters]\n\"path.namespace\" = \"default\"\n\"path.run\" = [{ids}]\n\"path.boundary\" = [{boundaries}]\n"
    )
}
