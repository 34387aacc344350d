//! Views of a store: everything that can be read of it, each call on its own, as lines that can be compared.

use std::path::Path;

use abide_kernel::{RunId, Seq, Status, Timestamp};
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
    /// A run that has children.
    pub(crate) parent: Option<RunId>,
}

const MOST: usize = 10_000;

/// What the store was filled with, so that it can be asked for.
pub(crate) const LABEL: (&str, &str) = ("colour", "red");
pub(crate) const QUEUE: &str = "elsewhere";
pub(crate) const KEY: &str = "key";
pub(crate) const TOKEN: &str = "token-1";
/// A kind, and an id.
pub(crate) const KEPT: (&str, &str) = ("limit", "limit-1");

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
        // The same, as whoever reads a long journal page by page.
        let places = reader.trail(*run, *head, 0, MOST);
        let rows = places.as_ref().map_or(Ok(Vec::new()), |places| reader.rows(*run, places, usize::MAX));
        views.add(&format!("pages {run}"), Kind::Records, rows.map(|rows| rows.iter().map(text).collect()));
        views.add(&format!("trail {run}"), Kind::Index, places.map(|places| places.iter().map(text).collect()));
    }
    let page = Page { most: MOST, before: None };
    for (name, filter) in filters(known) {
        let listed = reader.list(&filter, &page).map(|rows| rows.iter().map(text).collect());
        views.add(&format!("list by {name}"), Kind::Index, listed);
    }
    views.add(
        "list",
        Kind::Records,
        reader.list(&Filter::default(), &page).map(|rows| rows.iter().map(text).collect()),
    );
    views.add("letters", Kind::Records, reader.dead_letters().map(|rows| rows.iter().map(text).collect()));
    views.add("find", Kind::Index, reader.find("", MOST).map(|rows| rows.iter().map(text).collect()));
    views.add("watermarks", Kind::Index, reader.watermarks().map(|rows| rows.iter().map(text).collect()));
    views.add("stats", Kind::Index, reader.stats().map(|stats| vec![text(stats)]));
    views.add("depths", Kind::Index, reader.depths(None).map(|rows| rows.iter().map(text).collect()));
    views.add("tokens", Kind::Records, reader.tokens().map(|rows| rows.iter().map(text).collect()));
    views.add("token", Kind::Records, reader.token(TOKEN).map(|row| row.iter().map(text).collect()));
    views.add("kept", Kind::Records, reader.kept(KEPT.0, None, MOST).map(|rows| rows.iter().map(text).collect()));
    views.add("kept as", Kind::Records, reader.kept_as(KEPT.0, KEPT.1).map(|row| row.iter().map(text).collect()));
    views.add("outcomes", Kind::Records, reader.outcomes(None, MOST).map(|rows| rows.iter().map(text).collect()));
}

/// Lists by everything that a file has an index for.
fn filters(known: &Known) -> Vec<(String, Filter)> {
    let mut filters = Vec::new();
    let mut add = |name: String, ask: &dyn Fn(&mut Filter)| {
        let mut filter = Filter::default();
        ask(&mut filter);
        filters.push((name, filter));
    };
    add("label".to_owned(), &|filter| filter.labels = vec![(LABEL.0.into(), LABEL.1.into())]);
    add("queue".to_owned(), &|filter| filter.queue = Some(QUEUE.into()));
    add("parent".to_owned(), &|filter| filter.parent = known.parent);
    add("time".to_owned(), &|filter| filter.updated.from = Some(Timestamp(1)));
    add("key".to_owned(), &|filter| filter.key = Some(KEY.into()));
    for workflow in ["plain", "long", "signalled"] {
        add(format!("workflow {workflow}"), &|filter| filter.workflow = Some(workflow.into()));
    }
    for status in Status::ALL {
        add(format!("status {status}"), &|filter| filter.statuses = vec![status]);
    }
    filters
}

fn own(views: &mut Views, store: &mut dyn Store, known: &Known) {
    for shard in store.map().all() {
        // Names are of one call each: an answer must be the one to its own question.
        let of = |what: &str| format!("{what} {}", shard.0);
        let opened = store.open_shard(shard, "flips").map(|opened| vec![text(opened)]);
        views.add(&of("open shard"), Kind::Index, opened);
        let envelopes = store.read_envelopes(shard, MOST).map(|rows| rows.iter().map(text).collect());
        views.add(&of("envelopes"), Kind::Records, envelopes);
        let due = store.read_due(shard, Timestamp(0), MOST).map(|due| vec![text(due)]);
        views.add(&of("due"), Kind::Index, due);
        let claimed = store.read_claimed(shard).map(|rows| rows.iter().map(text).collect());
        views.add(&of("claimed"), Kind::Index, claimed);
        let lines = store.read_lines(shard);
        for line in lines.iter().flatten() {
            let ready = store.read_ready(shard, line, None, Timestamp(i64::MAX), MOST);
            views.add(&of(&format!("ready {line}")), Kind::Index, ready.map(|ready| vec![text(ready)]));
        }
        views.add(&of("lines"), Kind::Index, lines);
    }
    for key in &known.keys {
        views.add(&format!("key {key}"), Kind::Index, store.read_key(key).map(|run| run.iter().map(text).collect()));
    }
}

fn text(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}
