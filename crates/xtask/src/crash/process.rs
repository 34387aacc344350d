//! The process under test: how it is started, under which tool, and how its acknowledgements are read.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Options;
use super::ledger::Ledger;

/// So much is kept of what a process complains of.
const COMPLAINTS_MAX: usize = 4_096;

/// What a process does with its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Makes load until it is killed.
    Load,
    /// The same beside another process on the same file. What it asks for in vain it gives up, and goes on with something else.
    Contend,
    /// Makes so many runs, one after the other, and stops.
    Few(u64),
    /// The same with runs so large that each fills the log.
    Large(u64),
    /// Makes no load; lets everything end, then stops.
    Drain,
}

/// How a process is started.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) store: PathBuf,
    pub(crate) shards: u16,
    pub(crate) seed: u64,
    pub(crate) task: Task,
    pub(crate) durability: String,
    pub(crate) sabotage: Option<String>,
    /// The point at which it kills itself, and at which visit.
    pub(crate) point: Option<(String, u64)>,
    /// How long its claims last.
    pub(crate) lease_ms: Option<u64>,
    /// The database that it shares with others, in place of the file.
    pub(crate) shared: Option<Shared>,
    /// The tool it runs under, with arguments.
    pub(crate) under: Vec<OsString>,
}

/// How a process is one node of several.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) url: String,
    /// Its name, which no other life has.
    pub(crate) node: String,
    /// How long it is believed to live.
    pub(crate) lease_ms: u64,
    /// Where it listens for the others, and the address that they are told.
    pub(crate) door: Option<(SocketAddr, SocketAddr)>,
}

impl Plan {
    pub(crate) fn new(options: &Options, store: &Path, seed: u64, task: Task) -> Self {
        Self {
            store: store.to_owned(),
            shards: options.shards,
            seed,
            task,
            durability: options.durability.clone(),
            sabotage: options.sabotage.clone(),
            point: None,
            lease_ms: None,
            shared: None,
            under: Vec::new(),
        }
    }

    /// The same under a tool, such as `strace -f`.
    pub(crate) fn under<S: AsRef<str>>(mut self, tool: &[S]) -> Self {
        self.under = tool.iter().map(|word| word.as_ref().into()).collect();
        self
    }

    pub(crate) fn start(&self) -> Result<Process> {
        let me = std::env::current_exe().context("finding this program")?;
        let mut command = match self.under.split_first() {
            Some((tool, arguments)) => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(me);
                command
            }
            None => Command::new(me),
        };
        command.args([
            "crash-worker",
            "--seed",
            &self.seed.to_string(),
            "--shards",
            &self.shards.to_string(),
            "--store",
        ]);
        match &self.shared {
            None => drop(command.arg(format!("sqlite:{}?durability={}", self.store.display(), self.durability))),
            Some(Shared { url, node, lease_ms, door }) => {
                command.arg(url).args(["--node", node, "--node-lease-ms", &lease_ms.to_string()]);
                if let Some((listen, advertise)) = door {
                    command.args(["--listen", &listen.to_string(), "--advertise", &advertise.to_string()]);
                }
            }
        }
        if let Some((point, count)) = &self.point {
            command.arg("--point").arg(point).arg("--count").arg(count.to_string());
        }
        if let Some(sabotage) = &self.sabotage {
            command.arg("--sabotage").arg(sabotage);
        }
        if let Some(lease_ms) = self.lease_ms {
            command.arg("--lease-ms").arg(lease_ms.to_string());
        }
        match self.task {
            Task::Load => {}
            Task::Contend => drop(command.arg("--contend")),
            Task::Few(runs) => drop(command.arg("--few").arg(runs.to_string())),
            Task::Large(runs) => drop(command.arg("--large").arg(runs.to_string())),
            Task::Drain => drop(command.arg("--drain")),
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting the process")?;
        let stdout = child.stdout.take().context("the process has an output")?;
        let stderr = child.stderr.take().context("the process has an output for errors")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = Arc::new(Mutex::new(String::new()));
        let heard = complaints.clone();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{line}");
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                if heard.len() < COMPLAINTS_MAX {
                    heard.push_str(&line);
                    heard.push('\n');
                }
            }
        });
        Ok(Process { child, lines, complaints, listener: Some(listener) })
    }
}

/// A process under test. Dropped, it is gone: a harness that gives up leaves nobody behind.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
    /// What it wrote to its output for errors.
    complaints: Arc<Mutex<String>>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Notes what it says until `acknowledged` things are noted altogether. Whether it was still there then.
    pub(crate) fn listen(&self, ledger: &mut Ledger, acknowledged: usize, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        while ledger.acknowledged() < acknowledged {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => ledger.note(&line),
                Err(RecvTimeoutError::Timeout) => bail!("the process acknowledged nothing more for {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Notes what it says for a while.
    pub(crate) fn listen_for(&self, ledger: &mut Ledger, while_: Duration) {
        let deadline = Instant::now() + while_;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            ledger.note(&line);
        }
    }

    /// Kills it, and notes what it had said. One that had ended by itself was not killed, and shows nothing.
    pub(crate) fn kill(mut self, ledger: &mut Ledger) -> Result<()> {
        self.child.kill().context("killing the process")?;
        let status = self.rest(ledger)?;
        ensure!(killed(status), "the process ended by itself with {status}: {}", self.said(ledger));
        Ok(())
    }

    /// Puts an end to it, whatever became of it before, and notes what it had said.
    pub(crate) fn put_down(mut self, ledger: &mut Ledger) -> Result<ExitStatus> {
        self.child.kill().context("killing the process")?;
        self.rest(ledger)
    }

    /// Waits until it has killed itself at its point, and notes what it says. Any other end is an error, and so is none.
    pub(crate) fn die(mut self, ledger: &mut Ledger, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if Instant::now() < deadline => ledger.note(&line),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {
                    bail!("the process did not come to its point in {limit:?}: {}", self.said(ledger))
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.rest(ledger)?;
        ensure!(killed(status), "the process ended with {status} before its point: {}", self.said(ledger));
        Ok(())
    }

    /// Why it went, in its own words.
    pub(crate) fn said(&self, ledger: &Ledger) -> String {
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        format!("it closed because of {:?} and said {:?}", ledger.closed, complaints.trim())
    }

    /// Waits for its end, not longer than `limit` without a word, and notes what it says.
    pub(crate) fn end(mut self, ledger: &mut Ledger, limit: Duration) -> Result<ExitStatus> {
        loop {
            match self.lines.recv_timeout(limit) {
                Ok(line) => ledger.note(&line),
                Err(RecvTimeoutError::Disconnected) => return self.rest(ledger),
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill().context("killing the process")?;
                    self.rest(ledger)?;
                    bail!("the process neither ended nor said a word for {limit:?}");
                }
            }
        }
    }

    fn rest(&mut self, ledger: &mut Ledger) -> Result<ExitStatus> {
        let status = self.child.wait().context("waiting for the process")?;
        for line in self.lines.iter() {
            ledger.note(&line);
        }
        // Its last words may still be on their way.
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        Ok(status)
    }
}

pub(crate) fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}
