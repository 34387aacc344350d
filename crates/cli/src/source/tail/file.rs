//! The tail of a store in a file: its changes are heard from the file system, and what they are is read. Where the file
//! system tells nothing, as across a network, it is looked at every other second.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{Refusal, RunId};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::{Seen, Telling};
use crate::failure::Failure;
use crate::place::Place;

/// A change is heard when it is written, and seen a moment later, when it is durable: so long after it, it is looked again.
const LOOKS: [Duration; 5] = [
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
];
/// How long it is trusted that nothing is heard.
const TRUST: Duration = Duration::from_secs(2);

/// A run of a store in a file.
pub(crate) struct FileTail {
    place: Place,
    telling: Telling,
    changed: Arc<Notify>,
    /// How often it was looked since something was heard.
    looks: usize,
    /// Listens as long as it is there; where that is not possible it is looked from time to time.
    _watcher: Option<RecommendedWatcher>,
}

impl FileTail {
    pub(super) fn new(place: &Place, path: &Path, run: RunId) -> Result<Self, Failure> {
        let changed = Arc::new(Notify::new());
        let watcher = listen(path, changed.clone()).ok();
        Ok(Self { place: place.clone(), telling: Telling::new(run), changed, looks: 0, _watcher: watcher })
    }

    pub(super) async fn next(&mut self) -> Result<Option<Seen>, Failure> {
        loop {
            if let Some(seen) = self.telling.waiting.pop_front() {
                return Ok(Some(seen));
            }
            self.look()?;
            if !self.telling.waiting.is_empty() {
                continue;
            }
            let pause = LOOKS.get(self.looks).copied().unwrap_or(TRUST);
            self.looks += 1;
            if tokio::time::timeout(pause, self.changed.notified()).await.is_ok() {
                self.looks = 0;
            }
        }
    }

    fn look(&mut self) -> Result<(), Failure> {
        let mut snapshot = self.place.snapshot()?;
        let run = self.telling.run;
        let Some(stored) = snapshot.show(run)? else { return Err(Refusal::NotFound { run }.into()) };
        let rows = match stored.run.rev.0 > self.telling.told {
            true => snapshot.journal(run, self.telling.told + 1)?.unwrap_or_default(),
            false => Vec::new(),
        };
        self.telling.note(&stored.run, rows);
        Ok(())
    }
}

/// Hears what is written to the store: to its file, or to the log beside it.
fn listen(path: &Path, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let path = std::path::absolute(path)?;
    let (folder, name) =
        (path.parent().unwrap_or(Path::new(".")).to_owned(), path.file_name().unwrap_or_default().to_owned());
    let mut log = name.clone();
    log.push("-wal");
    let mut watcher = notify::recommended_watcher(move |heard: notify::Result<notify::Event>| {
        let ours = |path: &std::path::PathBuf| path.file_name().is_some_and(|found| found == name || found == log);
        // What is lost is as good as heard.
        let is_ours = heard.map_or(true, |event| {
            !matches!(event.kind, EventKind::Access(_)) && (event.need_rescan() || event.paths.iter().any(ours))
        });
        if is_ours {
            changed.notify_one();
        }
    })?;
    watcher.watch(&folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
