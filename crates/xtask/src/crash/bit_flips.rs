//! Bit flips: one bit in every byte of a small closed store, and every bit where a page says what is on it. Whatever is
//! read afterwards is as it was written, or something says that it is not: the call itself, or `abide store check`.
//! Nothing panics.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abide::{Engine, StatusSet};
use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::shard::Batch;
use abide_kernel::{RunId, ShardEpoch, ShardId};
use abide_store::sqlite::{SqliteStore, open_read_only};
use abide_store::transaction::{Place, Transacted};
use abide_store::{Durability, Filter, Kept, Page, Reader, Store, StoredToken};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::views::{self, Kind, Known, View};
use super::{Options, workload};

/// The store must be small enough for every byte to have its turn.
const BYTES_MAX: usize = 256 * 1024;
const SHARDS: u16 = 2;
/// How large a page of the file is, and how much of it says what is on it: there each bit has its turn, because one alone can
/// bring back what was on the page before.
const PAGE_BYTES: usize = 8_192;
const HEAD_BYTES: usize = 12;

/// What became of a flip.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Something said that the store is not as it was.
    Detected(By),
    /// Everything that is read is as it was written.
    Harmless,
    /// Something that was read is not, and nobody said so.
    Wrong(String),
    Panic,
}

/// Who said so, the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Open,
    Read,
    /// A read, of what the check had found sound.
    ReadOnly,
    CheckOnly,
}

#[derive(Default)]
struct Count {
    flips: u64,
    harmless: u64,
    by: BTreeMap<By, u64>,
    wrong: Vec<String>,
    panics: Vec<String>,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    let place = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "." };
    let folder = tempfile::Builder::new().prefix("abide-flips-").tempdir_in(place).context("making a directory")?;
    let sound = folder.path().join("sound.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(make(&sound, options.seed))?;
    let bytes = std::fs::read(&sound)?;
    ensure!(bytes.len() <= BYTES_MAX, "the store has {} bytes, more than {BYTES_MAX}", bytes.len());
    let known = known(&sound)?;
    let truth = fresh(&folder.path().join("truth.db"), &bytes, &known)?;
    let alarms: Vec<&View> = truth
        .iter()
        .filter(|view| view.lines.is_err() || view.kind == Kind::Check && view.lines != Ok(vec![]))
        .collect();
    ensure!(alarms.is_empty(), "the sound store is not: {alarms:?}");
    let names: BTreeSet<&String> = truth.iter().map(|view| &view.name).collect();
    ensure!(names.len() == truth.len(), "{} questions have {} names", truth.len(), names.len());
    let count = flip_all(options, folder.path(), &bytes, &known, &truth);
    report(&count, bytes.len())
}

/// Every byte, by as many threads as there are cores.
fn flip_all(options: &Options, folder: &Path, bytes: &[u8], known: &Known, truth: &[View]) -> Count {
    let drawn = |place: usize| fastrand::Rng::with_seed(options.seed ^ (place as u64) << 8).u8(0..8);
    let one_each = (0..bytes.len()).step_by(options.every.max(1)).map(|place| (place, drawn(place)));
    let in_head = |place: &usize| place % PAGE_BYTES < HEAD_BYTES;
    let heads = (0..bytes.len()).filter(in_head).flat_map(|place| (0..8).map(move |bit| (place, bit)));
    let places: Vec<(usize, u8)> = one_each.filter(|(place, _)| !in_head(place)).chain(heads).collect();
    let (next, count) = (AtomicUsize::new(0), Mutex::new(Count::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let watch = Watch::new(threads);
    // What panics is counted; it need not be told a hundred thousand times.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        scope.spawn(|| watch.watch());
        for thread in 0..threads {
            let (next, count, places, watch) = (&next, &count, &places, &watch);
            let path = folder.join(format!("flipped-{thread}.db"));
            scope.spawn(move || {
                while let Some((place, bit)) = places.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    let mut flipped = bytes.to_vec();
                    flipped[place] ^= 1 << bit;
                    watch.begin(thread, Some((place, bit)));
                    let verdict = judge(&path, &flipped, known, truth);
                    let mut count = count.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    count.add(place, bit, verdict);
                    if count.flips.is_multiple_of(10_000) {
                        eprintln!("{} of {} flips, {} wrong", count.flips, places.len(), count.wrong.len());
                    }
                }
                watch.begin(thread, None);
            });
        }
    });
    std::panic::set_hook(hook);
    count.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What each thread is at, and since when: a flip that makes a reader go in circles is as bad as a wrong answer, and
/// there is no way to go on after it.
struct Watch(Mutex<Vec<Watched>>);

#[derive(Clone, Copy)]
enum Watched {
    Unbegun,
    /// The byte, the bit, and how often it was looked at since.
    At(usize, u8, u32),
    Done,
}

impl Watch {
    /// Looks, not time: a process that was itself stopped for a while has not gone in circles.
    const LOOKS_MAX: u32 = 1_200;
    const LOOK: Duration = Duration::from_millis(50);

    fn new(threads: usize) -> Self {
        Self(Mutex::new(vec![Watched::Unbegun; threads]))
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn begin(&self, thread: usize, at: Option<(usize, u8)>) {
        self.all()[thread] = at.map_or(Watched::Done, |(place, bit)| Watched::At(place, bit, 0));
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(Self::LOOK);
            let mut all = self.all();
            if all.iter().all(|watched| matches!(watched, Watched::Done)) {
                return;
            }
            for watched in all.iter_mut() {
                if let Watched::At(place, bit, looks) = watched {
                    *looks += 1;
                    if *looks > Self::LOOKS_MAX {
                        eprintln!("xtask: byte {place}, bit {bit}: reading does not end");
                        std::process::exit(1);
                    }
                }
            }
        }
    }
}

impl Count {
    fn add(&mut self, place: usize, bit: u8, verdict: Verdict) {
        self.flips += 1;
        match verdict {
            Verdict::Detected(by) => *self.by.entry(by).or_default() += 1,
            Verdict::Harmless => self.harmless += 1,
            Verdict::Wrong(what) => self.wrong.push(format!("byte {place}, bit {bit}: {what}")),
            Verdict::Panic => self.panics.push(format!("byte {place}, bit {bit}")),
        }
    }
}

fn judge(path: &Path, flipped: &[u8], known: &Known, truth: &[View]) -> Verdict {
    match catch_unwind(AssertUnwindSafe(|| fresh(path, flipped, known))) {
        Ok(Ok(found)) => compare(&found, truth),
        Ok(Err(error)) => Verdict::Wrong(format!("the harness failed: {error:#}")),
        Err(_) => Verdict::Panic,
    }
}

/// The views of a file with these bytes.
fn fresh(path: &Path, bytes: &[u8], known: &Known) -> Result<Vec<View>> {
    for suffix in ["-wal", "-shm", "-journal", ".lock"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
    std::fs::write(path, bytes)?;
    Ok(views::all(path, known))
}

fn compare(found: &[View], truth: &[View]) -> Verdict {
    let written = |name: &str| truth.iter().find(|other| other.name == name);
    let as_written = |view: &View| written(&view.name).is_some_and(|other| other.lines == view.lines);
    let (mut opened, mut read, mut checked) = (true, true, true);
    // What was asked of the sound store is asked of this one too, unless somebody says why it can not be.
    let asked = |name: &String| found.iter().any(|view| view.name == *name);
    let mut differs = truth.iter().map(|view| &view.name).find(|name| !asked(name)).cloned();
    for view in found {
        match (&view.lines, view.kind) {
            (Err(_), _) if view.name.starts_with("open") => opened = false,
            (Err(_), Kind::Check) => checked = false,
            (Err(_), _) => read = false,
            (Ok(problems), Kind::Check) => checked &= problems.is_empty(),
            (Ok(_), _) if as_written(view) => {}
            (Ok(lines), Kind::Records) => {
                let known = written(&view.name).and_then(|other| other.lines.as_ref().ok());
                let invents = |line: &&String| known.is_none_or(|known| !known.contains(line));
                if let Some(invented) = lines.iter().find(invents) {
                    return Verdict::Wrong(format!("{} answers with what was never written: {invented}", view.name));
                }
                differs = Some(view.name.clone());
            }
            (Ok(_), Kind::Index) => differs = Some(view.name.clone()),
        }
    }
    match (opened, read, checked, differs) {
        (false, ..) => Verdict::Detected(By::Open),
        (true, false, false, _) => Verdict::Detected(By::Read),
        (true, false, true, _) => Verdict::Detected(By::ReadOnly),
        (true, true, false, _) => Verdict::Detected(By::CheckOnly),
        (true, true, true, Some(name)) => Verdict::Wrong(format!("{name} differs, and nobody says so")),
        (true, true, true, None) => Verdict::Harmless,
    }
}

fn report(count: &Count, bytes: usize) -> Result<()> {
    for problem in count.wrong.iter().take(20) {
        eprintln!("wrong: {}", problem.chars().take(400).collect::<String>());
    }
    for problem in count.panics.iter().take(20) {
        eprintln!("panic: {problem}");
    }
    let by = |by| count.by.get(&by).copied().unwrap_or_default();
    println!(
        "{}",
        json!({
            "bytes": bytes,
            "flips": count.flips,
            "detected": count.by.values().sum::<u64>(),
            "detected_by": {
                "open": by(By::Open), "read": by(By::Read), "read_only": by(By::ReadOnly),
                "check_only": by(By::CheckOnly),
            },
            "harmless": count.harmless,
            "wrong": count.wrong.len(),
            "panics": count.panics.len(),
        })
    );
    let wrong = count.wrong.len() + count.panics.len();
    ensure!(wrong == 0, "{wrong} flips became an answer or a panic");
    let unchecked = by(By::ReadOnly);
    ensure!(unchecked == 0, "{unchecked} flips are met by readers, and the check finds nothing");
    Ok(())
}

/// A closed store with runs in many states, a key that is held, a label, a message on its way, one that was set aside, and
/// what stands beside the runs.
async fn make(path: &Path, seed: u64) -> Result<()> {
    let engine = Engine::open(&format!("sqlite:{}", path.display()))
        .register(workload::plain())
        .register(workload::signalled())
        .register(workload::long())
        .register(workload::parent())
        .register(workload::flaky())
        .shards(SHARDS)
        .start()
        .await?;
    let client = engine.client();
    let start = client.start("signalled", &Vec::<u32>::new()).key(views::KEY);
    let run = start.occupied(StatusSet::OPEN).await?;
    run.signal("go", &1u32).dedup("first").await?;
    for workflow in ["plain", "long", "parent"] {
        let _ = client.start(workflow, &0u32).await?.result::<serde_json::Value>().await;
    }
    let _ = client.start("plain", &0u32).delay(Duration::from_secs(86_400)).await?;
    let _ = client.start("plain", &0u32).queue(views::QUEUE).label(views::LABEL.0, views::LABEL.1).await?;
    engine.stop(Duration::from_secs(10)).await;
    drop((client, engine));
    let mut store = SqliteStore::open(path, Durability::Full, SHARDS, "flips")?;
    let epoch = store.open_shard(ShardId(0), "flips")?;
    let envelope = |number| Envelope {
        from: ShardId(0),
        to: ShardId(1),
        number,
        message: Message::Begun { reservation: RunId(u128::from(seed)) },
    };
    let number = epoch.sent.get(1).copied().unwrap_or_default() + 1;
    let dead = vec![DeadEnvelope { envelope: envelope(number + 1), reason: "on purpose".into() }];
    let (envelopes, consumed) = (vec![envelope(number)], vec![(ShardId(1), 7)]);
    let batch = Batch { epoch: epoch.epoch, envelopes, consumed, dead, ..Batch::default() };
    store.append(&[batch])?;
    keep(&mut store, epoch.epoch)?;
    store.close()?;
    Ok(())
}

/// What stands beside the runs: tokens, what a server wrote down, and what a transaction came to.
fn keep(store: &mut SqliteStore, epoch: ShardEpoch) -> Result<()> {
    for id in [views::TOKEN, "token-2"] {
        store.write_token(&StoredToken { id: id.to_owned(), body: r#"{"may":"everything"}"#.to_owned() })?;
    }
    let (kind, id) = views::KEPT;
    let kept = |id: &str| Kept { kind: kind.to_owned(), id: id.to_owned(), body: r#"{"most":7}"#.to_owned() };
    store.keep(&[kept(id), kept("limit-2")])?;
    for key in ["write", "write again"] {
        let place = Place { run: RunId(7), key: key.to_owned(), shard: ShardId(0), epoch };
        let done = store.transact(&place, Duration::from_secs(10), &mut |_| Some(r#"{"row":7}"#.to_owned()))?;
        ensure!(matches!(done, Transacted::Outcome(_)), "the transaction came to {done:?}");
    }
    Ok(())
}

/// What there is to ask for in the sound store.
fn known(path: &Path) -> Result<Known> {
    let mut reader = open_read_only(path)?;
    let runs = reader.list(&Filter::default(), &Page { most: 1_000, before: None })?;
    let mut known = Known::default();
    for listed in runs {
        known.parent = known.parent.or(listed.parent);
        let stored = reader.read_run(listed.run)?.context("a run that is listed is there")?;
        known.runs.push((listed.run, stored.head));
    }
    let connection = rusqlite::Connection::open(path)?;
    let mut statement = connection.prepare("SELECT occupies FROM run WHERE occupies IS NOT NULL")?;
    known.keys = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let whole = !known.keys.is_empty() && known.runs.len() >= 5 && known.parent.is_some();
    ensure!(whole, "the store has not what is to be damaged: {known:?}");
    Ok(known)
}
