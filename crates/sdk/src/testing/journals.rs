//! Journals: today's code over all that was exported, or over the open runs of a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_kernel::{Row, Run, Status};
use abide_runtime::{Program, Snapshot};
use abide_store::sqlite::open_read_only;
use abide_store::{Fault, Filter, Page};

use super::journal::{read_journal, write_journal};
use super::replay::{Replayed, replay};
use crate::Workflow;

/// How many runs of a store are listed at a time.
const PAGE_RUNS: usize = 1_000;

/// Journals that today's code is to be run over.
///
/// ```no_run
/// use abide::testing::Journals;
/// # fn order() -> abide::Machine<u32> { abide::Machine::new("order") }
/// Journals::new().register(order()).check("tests/journals").assert_ok();
/// ```
#[must_use = "nothing is replayed before check()"]
#[derive(Default)]
pub struct Journals {
    programs: Vec<Arc<dyn Program>>,
}

impl Journals {
    /// Without code yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Today's code of a workflow.
    ///
    /// # Panics
    /// When the workflow is not as it should be.
    pub fn register(mut self, workflow: impl Workflow) -> Self {
        let program = workflow.into_program().unwrap_or_else(|(workflow, problem)| panic!("{workflow}: {problem}"));
        self.programs.push(program);
        self
    }

    /// Runs the code over every `.jsonl` file below a directory, or over one file.
    pub fn check(&self, path: impl AsRef<Path>) -> JournalReport {
        let mut files = Vec::new();
        let mut journals = Vec::new();
        if let Err(error) = find(path.as_ref(), &mut files) {
            let why = error.to_string();
            journals.push((path.as_ref().display().to_string(), Replayed::Unreadable { why }));
        }
        files.sort();
        for file in files {
            let replayed = match std::fs::read_to_string(&file) {
                Ok(text) => self.check_text(&text),
                Err(error) => Replayed::Unreadable { why: error.to_string() },
            };
            journals.push((file.display().to_string(), replayed));
        }
        JournalReport { journals }
    }

    /// Runs the code over one journal.
    #[must_use]
    pub fn check_text(&self, text: &str) -> Replayed {
        let (rows, run) = match read_journal(text) {
            Ok(read) => read,
            Err(bad) => return Replayed::Unreadable { why: bad.to_string() },
        };
        self.replay(&rows, &run)
    }

    /// Runs the code over the open runs of a store in a file, also beside the engine that holds it. Nothing is written.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn check_store(&self, path: impl AsRef<Path>) -> Result<JournalReport, Fault> {
        let mut snapshot = Snapshot::read(Box::new(open_read_only(path.as_ref())?))?;
        let mut filter = Filter::default();
        filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        let mut page = Page { most: PAGE_RUNS, before: None };
        let mut journals = Vec::new();
        loop {
            let listed = snapshot.list(&filter, &page)?;
            for run in listed.iter().map(|listed| listed.run) {
                let replayed = match snapshot.journal(run, 0).map(Option::unwrap_or_default) {
                    // As text, as it would be exported: what is checked is what can be read again.
                    Ok(rows) => self.check_text(&write_journal(&rows)),
                    Err(fault) => Replayed::Unreadable { why: fault.to_string() },
                };
                journals.push((run.to_string(), replayed));
            }
            page.before = listed.last().map(|listed| listed.run);
            if listed.len() < page.most {
                return Ok(JournalReport { journals });
            }
        }
    }

    fn replay(&self, rows: &[Row], run: &Run) -> Replayed {
        let spec = &run.started.spec;
        let fits = |program: &&Arc<dyn Program>| {
            let known = program.definition();
            known.workflow == spec.workflow && known.version == spec.version
        };
        match self.programs.iter().find(fits) {
            Some(program) => replay(program.as_ref(), rows, run),
            None => Replayed::NoCode { workflow: spec.workflow.to_string(), version: spec.version },
        }
    }
}

fn find(path: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        into.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            into.push(path);
        }
    }
    Ok(())
}

/// Fails the test when today's code of a workflow does not fit a journal, or a directory of them.
///
/// # Panics
/// Then, and when nothing was found; the message says where and why.
pub fn assert_replays(workflow: impl Workflow, path: impl AsRef<Path>) {
    Journals::new().register(workflow).check(path).assert_ok();
}

/// What came of running today's code over many journals. Print it to read it.
#[derive(Clone, Debug)]
#[must_use = "a report that nobody looks at shows nothing; see assert_ok"]
#[non_exhaustive]
pub struct JournalReport {
    /// Each file or run by its name, and what came of it.
    pub journals: Vec<(String, Replayed)>,
}

impl JournalReport {
    /// Whether the code fits all of them, and there were some.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        let fits = |(_, replayed): &(String, Replayed)| matches!(replayed, Replayed::Fits { .. });
        !self.journals.is_empty() && self.journals.iter().all(fits)
    }

    /// Fails the test unless the code fits all of them.
    ///
    /// # Panics
    /// Then, with the whole report.
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }
}

impl fmt::Display for JournalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.journals.is_empty() {
            return writeln!(f, "expected journals (*.jsonl) or open runs, found none");
        }
        self.journals.iter().try_for_each(|(name, replayed)| writeln!(f, "{name}: {replayed}"))
    }
}
