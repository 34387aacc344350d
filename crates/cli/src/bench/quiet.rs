//! A server with a crowd that waits: what it costs while nothing happens. The crowd is a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use super::crowd::Woken;
use super::report::{Report, resident_mb_of};

/// Workers and watchers of a server.
pub(crate) struct Quiet {
    pub(crate) workers: usize,
    pub(crate) watchers: usize,
    pub(crate) seconds: u64,
}

/// How long the server may still be busy with those who came last.
const SETTLING: Duration = Duration::from_secs(2);
/// In which Linux tells of times, whatever the kernel counts by.
const TICKS_PER_SECOND: f64 = 100.0;

impl Quiet {
    pub(crate) fn measure(&self, dir: &Path) -> anyhow::Result<Report> {
        let store = format!("sqlite:{}", dir.join("idle.db").display());
        let serve = ["serve", "--no-auth", "--json", "--listen", "127.0.0.1:0", "--store", &store];
        let mut server = Process::start(&serve)?;
        let said: Value = server.hear().context("the server did not begin")?;
        let url = said["url"].as_str().context("the server says where it listens")?.to_owned();
        let (workers, watchers) = (self.workers.to_string(), self.watchers.to_string());
        let mut crowd =
            Process::start(&["bench", "crowd", "--url", &url, "--workers", &workers, "--watchers", &watchers])?;
        crowd.hear::<String>()?;
        std::thread::sleep(SETTLING);

        let (before, began) = (server.cpu_seconds()?, Instant::now());
        std::thread::sleep(Duration::from_secs(self.seconds));
        let busy = server.cpu_seconds()? - before;
        let mut report = Report::default();
        report.add("cpu_percent", busy / began.elapsed().as_secs_f64() * 100.0);
        report.add("rss_mb", resident_mb_of(server.child.id()));
        // They are still there: whoever is concerned hears of it.
        crowd.tell("wake")?;
        let woken: Woken = crowd.hear()?;
        if let Some(us) = woken.watcher_us {
            report.add("watcher_woken_us", us as f64);
        }
        if let Some(us) = woken.worker_us {
            report.add("worker_woken_us", us as f64);
        }
        Ok(report)
    }
}

/// Another process of this program, which ends with this.
struct Process {
    child: Child,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .env_remove("ABIDE_STORE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process")?;
        let from = BufReader::new(child.stdout.take().context("it has an output")?);
        Ok(Self { child, from })
    }

    fn tell(&mut self, word: &str) -> anyhow::Result<()> {
        let to = self.child.stdin.as_mut().context("it has an input")?;
        writeln!(to, "{word}").context("nobody listens")
    }

    /// The next document that it writes, on however many lines.
    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> anyhow::Result<T> {
        let mut text = String::new();
        while self.from.read_line(&mut text)? > 0 {
            if let Ok(said) = serde_json::from_str(&text) {
                return Ok(said);
            }
        }
        bail!("it ended before it was told to, {}: {text}", self.child.wait()?)
    }

    /// The time that its threads have had so far, also those that have ended.
    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program stands in parentheses and may hold anything; times are the 14th and 15th field.
        let after = text.rsplit(')').next().context("what follows the name")?;
        let times: Vec<u64> = after.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        anyhow::ensure!(times.len() == 2, "expected two times of the process, found {text:?}");
        Ok(times.iter().sum::<u64>() as f64 / TICKS_PER_SECOND)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
