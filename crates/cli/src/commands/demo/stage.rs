//! The worker as a process: started, spoken to, listened to, and killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::protocol::{Ask, Told};
use crate::failure::{Exit, Failure};

/// How many lines may wait to be heard.
const LINES_MAX: usize = 10_000;
/// How long a worker may take to stop when it is asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker that lives. Dropping it kills it: nothing is left behind.
pub(super) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    heard: Receiver<Told>,
    listener: Option<JoinHandle<()>>,
}

/// What came of listening for a while.
pub(super) enum Heard {
    Told(Told),
    Nothing,
    Gone,
}

impl Worker {
    /// Executes this same binary as a worker on the store in `dir`.
    pub(super) fn start(dir: &Path, shards: u16) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("demo-worker")
            .arg("--dir")
            .arg(dir)
            .args(["--shards", &shards.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let input = child.stdin.take();
        let output =
            child.stdout.take().ok_or_else(|| Failure::new(Exit::Failure, "io", "the worker has no output"))?;
        let (sender, heard) = sync_channel(LINES_MAX);
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // A line that was cut by the kill says nothing.
                if let Ok(told) = serde_json::from_str(&line)
                    && sender.send(told).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { child, input, heard, listener: Some(listener) })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks for something. A worker that has just died does not hear it, and does not acknowledge it.
    pub(super) fn ask(&mut self, ask: &Ask) {
        let line = serde_json::to_string(ask).unwrap_or_default();
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    pub(super) fn listen(&self, most: Duration) -> Heard {
        match self.heard.recv_timeout(most) {
            Ok(told) => Heard::Told(told),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::Gone,
        }
    }

    /// SIGKILL. Gives what it had said before it died and had not been heard: acknowledgements count.
    pub(super) fn kill(&mut self) -> Result<(bool, Vec<Told>), Failure> {
        self.child.kill()?;
        let status = self.child.wait()?;
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        Ok((was_killed(status), self.heard.try_iter().collect()))
    }

    /// Asks it to stop in good order, and waits.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.input = None;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            // Listening goes on, or a full pipe would keep it from stopping.
            if matches!(self.listen(Duration::from_millis(20)), Heard::Gone) && self.child.try_wait()?.is_some() {
                return Ok(());
            }
        }
        Err(Failure::new(Exit::Failure, "demo", "the worker did not stop when it was asked to"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
fn was_killed(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

#[cfg(not(unix))]
fn was_killed(status: std::process::ExitStatus) -> bool {
    !status.success()
}
