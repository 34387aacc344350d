//! I/O errors: the n-th sync fails, then the n-th write finds no room, then it fails, then it writes nothing and says so,
//! then the n-th read fails, for n = 1, 2, 3 … until a process gets through without being hit. Nothing acknowledged may be
//! lost at any n. After a sync that failed the process must say that it has stopped, and neither write to the store nor
//! sync it again; started anew it recovers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::{Options, audit};
use crate::setup;

/// Runs of a life: few, because every sync and every write among them is a life of its own.
const RUNS: u64 = 3;
/// Large runs of a life: enough to fill the log once.
const LARGE_RUNS: u64 = 24;
/// A life that takes more than this has lost its end.
const N_MAX: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sync,
    Room,
    Write,
    Short,
    Read,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Sync, Self::Room, Self::Write, Self::Short, Self::Read];

    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync_eio",
            Self::Room => "write_enospc",
            Self::Write => "write_eio",
            Self::Short => "write_short",
            Self::Read => "read_eio",
        }
    }

    /// Large runs make thousands of writes that are all alike, but hardly more syncs than small ones.
    fn beginnings(self) -> &'static [Beginning] {
        match self {
            Self::Sync => &[Beginning::Nothing, Beginning::Killed, Beginning::Closed, Beginning::Large],
            Self::Room | Self::Write | Self::Short | Self::Read => {
                &[Beginning::Nothing, Beginning::Killed, Beginning::Closed]
            }
        }
    }

    fn injection(self, n: u64) -> String {
        match self {
            Self::Sync => format!("inject=fsync,fdatasync:error=EIO:when={n}"),
            Self::Room => format!("inject=pwrite64:error=ENOSPC:when={n}"),
            Self::Write => format!("inject=pwrite64:error=EIO:when={n}"),
            // The call is not made, so that any other number would be a lie.
            Self::Short => format!("inject=pwrite64:retval=0:when={n}"),
            Self::Read => format!("inject=pread64:error=EIO:when={n}"),
        }
    }
}

/// What a life begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// No store: it is made.
    Nothing,
    /// A store whose process was killed, with frames in its log.
    Killed,
    /// A store that was closed: opening it syncs little, so that what comes then has its turn.
    Closed,
    /// The same, and runs so large that the log is brought into the file while they go on.
    Large,
}

/// What became of the lives of one kind.
#[derive(Default)]
struct Count {
    lives: u64,
    hit: u64,
    of_store: u64,
    stopped: u64,
    went_on: u64,
    refused_to_open: u64,
}

struct Harness<'a> {
    options: &'a Options,
    folder: PathBuf,
    /// A store whose process was killed, and what it had acknowledged.
    killed: (PathBuf, Ledger),
    /// A store whose process has stopped in good order, and what it had acknowledged.
    closed: (PathBuf, Ledger),
    acknowledged: usize,
    lost: u64,
    unfinished: u64,
    retried: Vec<String>,
    problems: Vec<String>,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    setup::need(&[("strace", "strace")])?;
    // In memory: a sync that takes its time makes the engine change threads, and calls are counted thread by thread.
    let place = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "." };
    let folder = tempfile::Builder::new().prefix("abide-io-").tempdir_in(place).context("making a directory")?;
    let folder_path = folder.path().canonicalize()?;
    let killed = kill_one(options, &folder_path)?;
    let closed = close_one(options, &folder_path)?;
    let mut harness = Harness {
        options,
        acknowledged: 0,
        folder: folder_path,
        killed,
        closed,
        lost: 0,
        unfinished: 0,
        retried: Vec::new(),
        problems: Vec::new(),
    };
    let mut kinds = serde_json::Map::new();
    for kind in Kind::ALL {
        let mut count = Count::default();
        for beginning in kind.beginnings() {
            harness.every_n(kind, *beginning, &mut count)?;
        }
        kinds.insert(kind.name().to_owned(), count.json());
        eprintln!("{}: {}", kind.name(), count.json());
    }
    harness.report(kinds)
}

impl Count {
    fn json(&self) -> Value {
        json!({
            "lives": self.lives, "hit": self.hit, "of_store": self.of_store, "stopped": self.stopped, "went_on": self.went_on,
            "refused_to_open": self.refused_to_open,
        })
    }
}

/// A store whose process was killed under load.
fn kill_one(options: &Options, folder: &Path) -> Result<(PathBuf, Ledger)> {
    let store = folder.join("killed.db");
    let mut ledger = Ledger::default();
    let process = Plan::new(options, &store, options.seed, Task::Load).start()?;
    process.listen(&mut ledger, 100, PATIENCE)?;
    process.kill(&mut ledger)?;
    ensure!(beside(&store, "-wal").metadata().is_ok_and(|log| log.len() > 0), "the killed store has no log");
    Ok((store, ledger))
}

/// A store whose process has stopped in good order.
fn close_one(options: &Options, folder: &Path) -> Result<(PathBuf, Ledger)> {
    let store = folder.join("closed.db");
    let mut ledger = Ledger::default();
    let status = Plan::new(options, &store, options.seed, Task::Few(5)).start()?.end(&mut ledger, PATIENCE)?;
    let log = beside(&store, "-wal").metadata().map_or(0, |log| log.len());
    ensure!(status.success() && log == 0, "the store was not closed in good order");
    Ok((store, ledger))
}

fn beside(store: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", store.display()))
}

impl Harness<'_> {
    /// One life for each n, until one is not hit.
    fn every_n(&mut self, kind: Kind, beginning: Beginning, count: &mut Count) -> Result<()> {
        let before = count.of_store;
        for n in 1..=N_MAX {
            let hit = self
                .life(kind, beginning, n, count)
                .with_context(|| format!("{} at n = {n}, beginning with {beginning:?}", kind.name()))?;
            if !hit {
                ensure!(
                    count.of_store > before,
                    "no {} of the store was hit, beginning with {beginning:?}",
                    kind.name()
                );
                return Ok(());
            }
        }
        bail!("{} lives and no end: is the fault injected at all?", N_MAX)
    }

    fn life(&mut self, kind: Kind, beginning: Beginning, n: u64, count: &mut Count) -> Result<bool> {
        let life = tempfile::Builder::new().prefix("life-").tempdir_in(&self.folder)?;
        let store = life.path().join("abide.db");
        let mut ledger = self.begin(beginning, &store)?;
        let before = ledger.acknowledged();
        let said = life.path().join("strace.txt");
        let under = strace(kind, beginning, n, &store, &said);
        let task = if beginning == Beginning::Large { Task::Large(LARGE_RUNS) } else { Task::Few(RUNS) };
        let plan = Plan::new(self.options, &store, self.options.seed, task);
        let status = plan.clone().under(&under).start()?.end(&mut ledger, PATIENCE)?;
        let calls = std::fs::read_to_string(&said).context("reading what strace says")?;
        let hit = Hit::find(&calls, &store);
        count.lives += 1;
        count.hit += u64::from(hit.is_some());
        count.of_store += u64::from(hit.as_ref().is_some_and(|hit| hit.is_of_store));
        let opened = ledger.acknowledged() > before || !ledger.closed.is_empty();
        match (&hit, status.success()) {
            (None, true) => {}
            (None, false) => bail!("no call was hit, and the process ended with {status}: {:?}", ledger.closed),
            (Some(hit), true) if kind == Kind::Sync && hit.is_of_store => {
                self.problems.push(format!("n = {n}: it went on after {}", hit.call));
            }
            (Some(_), true) => count.went_on += 1,
            (Some(_), false) if !ledger.closed.is_empty() => count.stopped += 1,
            (Some(_), false) if !opened => count.refused_to_open += 1,
            (Some(_), false) => self.problems.push(format!("n = {n}: it ended with {status} and did not say why")),
        }
        // What SQLite rolls back while it makes the file is nothing to anybody.
        let unborn = beginning == Beginning::Nothing && !opened;
        if let Some(hit) = hit.as_ref().filter(|hit| kind == Kind::Sync && hit.is_of_store && !unborn) {
            self.retried.extend(hit.after.iter().map(|call| format!("n = {n}, after {}: {call}", hit.call)));
        }
        self.recover(&plan, &mut ledger, n)?;
        Ok(hit.is_some())
    }

    /// Puts the store there that a life begins with; answers with what was acknowledged on it.
    fn begin(&self, beginning: Beginning, store: &Path) -> Result<Ledger> {
        let (from, ledger) = match beginning {
            Beginning::Nothing => return Ok(Ledger::default()),
            Beginning::Killed => &self.killed,
            Beginning::Closed | Beginning::Large => &self.closed,
        };
        for suffix in ["", "-wal"] {
            if beside(from, suffix).exists() {
                std::fs::copy(beside(from, suffix), beside(store, suffix))?;
            }
        }
        Ok(ledger.clone())
    }

    /// Opened anew, everything acknowledged is there, and everything comes to its end.
    fn recover(&mut self, plan: &Plan, ledger: &mut Ledger, n: u64) -> Result<()> {
        let mut plan = plan.clone();
        plan.task = Task::Drain;
        let status = plan.start()?.end(ledger, PATIENCE)?;
        ensure!(status.success(), "opened anew, the process ended with {status}");
        let found = audit::audit(&plan.store, ledger)?;
        ledger.add(&found);
        self.acknowledged += ledger.acknowledged();
        self.lost += ledger.lost + ledger.terminal_twice + ledger.rebuild_mismatches;
        self.unfinished += found.open;
        self.problems.extend(ledger.problems.iter().map(|problem| format!("n = {n}: {problem}")));
        Ok(())
    }

    fn report(&self, kinds: serde_json::Map<String, Value>) -> Result<()> {
        for problem in self.problems.iter().take(20).chain(self.retried.iter().take(20)) {
            eprintln!("problem: {problem}");
        }
        println!(
            "{}",
            json!({
                "kinds": kinds, "acknowledged": self.acknowledged, "lost": self.lost, "unfinished": self.unfinished,
                "retried_after_failed_sync": self.retried.len(), "unsaid": self.problems.len(),
            })
        );
        let wrong = self.lost + self.unfinished + (self.retried.len() + self.problems.len()) as u64;
        ensure!(wrong == 0, "{wrong} things are not as they were promised");
        ensure!(self.acknowledged > 0, "nothing was acknowledged, so nothing was shown");
        Ok(())
    }
}

fn strace(kind: Kind, beginning: Beginning, n: u64, store: &Path, said: &Path) -> Vec<String> {
    // What is asked after a failed sync is of interest; reads are many, and looked at only when they are to fail.
    let calls = if kind == Kind::Read { "trace=pread64" } else { "trace=fsync,fdatasync,pwrite64" };
    let tool = ["strace", "-f", "-qq", "-y", "--seccomp-bpf", "-e", calls, "-e"];
    let mut words: Vec<String> = tool.map(str::to_owned).to_vec();
    words.extend([kind.injection(n), "-o".to_owned(), said.display().to_string()]);
    if beginning == Beginning::Large {
        // Only the file itself: it is synced when the log is brought into it, whichever thread does that.
        words.extend(["-P".to_owned(), store.display().to_string()]);
    }
    words
}

/// The call that was made to fail, and what was asked of the store's files after it.
struct Hit {
    call: String,
    /// Whether it was about the store's file or its log; SQLite does without word from a folder, and we ask for it.
    is_of_store: bool,
    after: Vec<String>,
}

impl Hit {
    fn find(calls: &str, store: &Path) -> Option<Self> {
        let lines: Vec<&str> = calls.lines().collect();
        let at = lines.iter().position(|line| line.contains("(INJECTED)"))?;
        let process = lines[at].split_whitespace().next()?;
        let files = ["", "-wal"].map(|suffix| format!("<{}>", beside(store, suffix).display()));
        let is_of_store = |line: &str| files.iter().any(|file| line.contains(file));
        // A call that another thread interrupted stands in two lines, and the first one names the file.
        let begun = lines[..=at].iter().rev().find(|line| line.starts_with(process) && line.contains("</"))?;
        let after = lines[at + 1..].iter().filter(|line| is_of_store(line)).map(|line| (*line).to_owned());
        Some(Self { call: (*begun).to_owned(), is_of_store: is_of_store(begun), after: after.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_a_failed_sync_is_seen() {
        let calls = "7 pwrite64(9</x/abide.db-wal>, \"\", 24, 0) = 24\n\
                     7 fdatasync(9</x/abide.db-wal>) = -1 EIO (Input/output error) (INJECTED)\n\
                     7 fdatasync(8</x>) = 0\n\
                     8 fdatasync(9</x/abide.db-wal>) = 0\n";
        let hit = Hit::find(calls, Path::new("/x/abide.db")).unwrap();
        assert!(hit.is_of_store);
        assert_eq!(hit.after.len(), 1, "the folder is another matter");
        assert!(Hit::find("7 fdatasync(9</x/abide.db>) = 0\n", Path::new("/x/abide.db")).is_none());
    }
}
