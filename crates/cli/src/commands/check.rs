//! `abide check`: exported journals, as far as they can be checked without the code of their workflows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use abide::testing::read_journal;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};

/// Look whether exported journals are whole, and which workflows and versions they need; exit 1 if one is not.
#[derive(Debug, Args)]
#[command(after_help = "\
Whether today's code fits a journal only today's code can tell: call abide::testing::Journals from a test, or from a
binary of your own, with the workflows and this directory. See docs/testing.md.

Examples:
  abide check --journals tests/journals
  abide check --journals tests/journals --json")]
pub(crate) struct Check {
    /// A directory of journals (*.jsonl) as `abide run export` writes them, or one file
    #[arg(long, value_name = "DIR")]
    journals: PathBuf,
}

/// What is known of one journal.
struct Checked {
    file: String,
    found: Result<Found, String>,
}

struct Found {
    run: String,
    workflow: String,
    version: u32,
    status: abide_kernel::Status,
    rows: usize,
}

impl Check {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut files = Vec::new();
        find(&self.journals, &mut files)?;
        files.sort();
        if files.is_empty() {
            let what = format!("there are no journals (*.jsonl) in {}", self.journals.display());
            let hint = "abide run export RUN > journals/NAME.jsonl writes one";
            return Err(Failure::new(Exit::NotFound, "no_journals", what).hint(hint));
        }
        let checked: Vec<Checked> = files.iter().map(|file| check(file)).collect();
        let broken = checked.iter().filter(|checked| checked.found.is_err()).count();
        let exit = if broken == 0 { Exit::Ok } else { Exit::Failure };
        if !screen.is_text() {
            let journals: Vec<Value> = checked.iter().map(as_json).collect();
            screen.documents("journals", &journals)?;
            return Ok(exit);
        }
        screen
            .table(&["JOURNAL", "WORKFLOW", "STATUS", "ROWS", "WHAT IS WRONG"], checked.iter().map(as_row).collect())?;
        let needed: BTreeSet<String> =
            checked.iter().filter_map(|checked| checked.found.as_ref().ok()).map(Found::code).collect();
        let needed: Vec<String> = needed.into_iter().collect();
        match broken {
            0 => screen.remark(&format!("{} journals are whole; they need {}", checked.len(), needed.join(", "))),
            _ => screen.remark(&format!("{broken} of {} journals cannot be replayed", checked.len())),
        }
        Ok(exit)
    }
}

impl Found {
    fn code(&self) -> String {
        format!("{} v{}", self.workflow, self.version)
    }
}

fn find(path: &Path, into: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        into.push(path.to_owned());
        return Ok(());
    }
    let unreadable = |error: std::io::Error| {
        Failure::new(Exit::Failure, "unreadable", format!("{} cannot be read: {error}", path.display()))
    };
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            find(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            into.push(path);
        }
    }
    Ok(())
}

fn check(file: &Path) -> Checked {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let found = text.and_then(|text| read_journal(&text).map_err(|bad| bad.to_string())).map(|(rows, run)| Found {
        run: run.id.to_string(),
        workflow: run.started.spec.workflow.to_string(),
        version: run.started.spec.version,
        status: run.status(),
        rows: rows.len(),
    });
    Checked { file: file.display().to_string(), found }
}

fn as_json(checked: &Checked) -> Value {
    match &checked.found {
        Ok(found) => json!({
            "journal": checked.file, "ok": true, "run": found.run, "workflow": found.workflow,
            "version": found.version, "status": found.status, "rows": found.rows,
        }),
        Err(problem) => json!({"journal": checked.file, "ok": false, "problem": problem}),
    }
}

fn as_row(checked: &Checked) -> Vec<Cell> {
    let name = Cell::toned(&checked.file, Tone::Strong);
    match &checked.found {
        Ok(found) => vec![
            name,
            Cell::new(found.code()),
            Cell::status(found.status),
            Cell::new(found.rows.to_string()),
            Cell::new("-"),
        ],
        Err(problem) => vec![name, Cell::new("-"), Cell::new("-"), Cell::new("-"), Cell::toned(problem, Tone::Bad)],
    }
}
