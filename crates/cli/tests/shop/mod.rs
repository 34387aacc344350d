//! A store in a folder of its own, an engine on it, and the command line as a person would use it.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod served;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abide::{Engine, EngineBuilder, Machine, await_signal, done, hours, sleep};
use serde_json::Value;
use tempfile::TempDir;

/// What a command came to.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// Standard output as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

pub struct Shop {
    folder: TempDir,
}

impl Shop {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder") }
    }

    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("abide.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    /// Runs the real binary in the folder, on the store in it.
    pub fn abide(&self, args: &[&str]) -> Answer {
        self.abide_with(args, "")
    }

    /// The real binary in the folder, untouched by the settings of whoever runs the test.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        let foreign = |name: &str| {
            let others = ["NO_COLOR", "XDG_CONFIG_HOME", "DATABASE_URL"];
            name.starts_with("ABIDE_") || others.contains(&name)
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(foreign)) {
            command.env_remove(name);
        }
        command
    }

    pub fn abide_with(&self, args: &[&str], input: &str) -> Answer {
        self.abide_in(args, input, &[])
    }

    /// With these variables in its environment.
    pub fn abide_in(&self, args: &[&str], input: &str, env: &[(&str, &str)]) -> Answer {
        use std::io::Write;
        let mut child = self
            .command()
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        // A command that does not read its input may have ended before it gets it.
        let _ = child.stdin.take().expect("it has an input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        Answer {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("data is UTF-8"),
            err: String::from_utf8(output.stderr).expect("remarks are UTF-8"),
        }
    }

    /// An engine with a workflow that waits for `paid`, and one that sleeps.
    pub fn engine(&self) -> EngineBuilder {
        let waits = Machine::<Value>::new("waits").step("wait", async |ctx, state: Value| {
            match ctx.signal::<Value>("paid")? {
                None => Ok(await_signal("paid", state)),
                Some(paid) => Ok(done(&paid)),
            }
        });
        let sleeps = Machine::<Value>::new("sleeps")
            .step("rest", async |_, state: Value| Ok(sleep(hours(1), state).then("wake")))
            .step("wake", async |_, state: Value| Ok(done(&state)));
        Engine::open(&self.url()).register(waits).register(sleeps).node("the test's engine")
    }

    /// Starts a run by the command line, while nobody holds the store.
    pub fn start(&self, workflow: &str, more: &[&str]) -> String {
        let mut args = vec!["run", "start", workflow];
        args.extend(more);
        self.abide(&args).ok().out.trim().to_owned()
    }

    /// Changes the file behind everybody's back; answers with how many rows the last statement changed.
    pub fn edit(&self, sql: &str) -> u64 {
        let connection = rusqlite::Connection::open(self.path()).expect("the file opens");
        connection.execute_batch(sql).expect("the statements run");
        connection.changes()
    }

    /// Waits until the run shows this status.
    pub fn await_status(&self, run: &str, status: &str) {
        eventually(|| {
            let shown = self.abide(&["run", "show", run, "--json"]);
            (shown.code == 0 && shown.json()["status"] == status).then_some(())
        });
    }
}

/// Asks until there is an answer.
pub fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "it did not come about in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}
