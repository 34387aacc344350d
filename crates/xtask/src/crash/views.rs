//! Views of a store: everything that can be read of it, each call on its own, as lines that can be compared.

use std::path::Path;

use abide_kernel::{RunId, Seq, Timestamp};
use abide_runtime::Audit;
use abide_store::sqlite::{SqliteStore, open_read_only};
use abide_store::{Durability, Fault, Filter, Page, Reader, Store};

/// What one call answered with.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) lines: Result<Vec<String>, String>,
}

/// What a difference in a view means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Records: one that was never written is wrong, whatever else is said; one that is missing must be missed.
    Records,
    /// What the file's own indexes and counters say: any difference must be noticed by the check.
    Index,
    /// What `abide store check` finds. Each line is a problem.
    Check,
}

/// What there is to ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) runs: Vec<(RunId, Seq)>,
    pub(crate) keys: Vec<String>,
}

const MOST: usize = 10_000;

/// Everything a store answers, beside an owner and as its owner. The owner writes to the file, so it comes last.
pub(crate) fn all(path: &Path, known: &Known) -> Vec<View> {
    let mut views = Views::default();
    match open_read_only(path) {
        Ok(mut reader) => {
            views.add("check", Kind::Check, check(&mut reader));
            read(&mut views, &mut reader, known);
        }
        Err(fault) => views.add("open to read", Kind::Index, Err(fault)),
    }
    match SqliteStore::open(path, Durability::Full, 1, "flips") {
        Ok(mut store) => own(&mut views, &mut store, known),
        Err(fault) => views.add("open", Kind::Index, Err(fault)),
    }
    views.0
}

#[derive(Default)]
struct Views(Vec<View>);

impl Views {
    fn add(&mut self, name: &str, kind: Kind, lines: Result<Vec<String>, Fault>) {
        let lines = lines.map_err(|fault| format!("{:?}: {fault}", fault.kind));
        self.0.push(View { name: name.to_owned(), kind, lines });
    }
}

fn check(reader: &mut abide_store::sqlite::SqliteReader) -> Result<Vec<String>, Fault> {
    let audit = Audit::of(reader)?;
    let mut problems: Vec<String> = audit.problems.into_iter().map(|problem| problem.what).collect();
    problems.extend(reader.integrity()?);
    Ok(problems)
}

fn read(views: &mut Views, reader: &mut dyn Reader, known: &Known) {
    for shard in reader.map().all() {
        let rows =
            reader.scan(shard, Seq(0), MOST).and_then(|rows| rows.into_iter().map(|row| row.map(text)).collect());
        views.add(&format!("scan {}", shard.0), Kind::Records, rows);
    }
    for (run, head) in &known.runs {
        let stored = reader.read_run(*run).map(|stored| stored.iter().map(text).collect());
        views.add(&format!("run {run}"), Kind::Records, stored);
        let rows = reader.journal(*run, *head, 0).map(|rows| rows.iter().map(text).collect());
        views.add(&format!("journal {run}"), Kind::Records, rows);
    }
    let page = Page { most: MOST, before: None };
    views.add(
        "list",
        Kind::Records,
        reader.list(&Filter::default(), &page).map(|rows| rows.iter().map(text).collect()),
    );
    views.add("letters", Kind::Records, reader.dead_letters().map(|rows| rows.iter().map(text).collect()));
    views.add("find", Kind::Index, reader.find("", MOST).map(|rows| rows.iter().map(text).collect()));
    views.add("watermarks", Kind::Index, reader.watermarks().map(|rows| rows.iter().map(text).collect()));
    views.add("stats", Kind::Index, reader.stats().map(|stats| vec![text(stats)]));
}

fn own(views: &mut Views, store: &mut dyn Store, known: &Known) {
    for shard in store.map().all() {
        views.add("open shard", Kind::Index, store.open_shard(shard, "flips").map(|opened| vec![text(opened)]));
        let envelopes = store.read_envelopes(shard, MOST).map(|rows| rows.iter().map(text).collect());
        views.add("envelopes", Kind::Records, envelopes);
        views.add("due", Kind::Index, store.read_due(shard, Timestamp(0), MOST).map(|due| vec![text(due)]));
        views.add("claimed", Kind::Index, store.read_claimed(shard).map(|rows| rows.iter().map(text).collect()));
        let lines = store.read_lines(shard);
        for line in lines.iter().flatten() {
            let ready = store.read_ready(shard, line, None, Timestamp(i64::MAX), MOST);
            views.add("ready", Kind::Index, ready.map(|ready| vec![text(ready)]));
        }
        views.add("lines", Kind::Index, lines);
    }
    for key in &known.keys {
        views.add("key", Kind::Index, store.read_key(key).map(|run| run.iter().map(text).collect()));
    }
}

fn text(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}
