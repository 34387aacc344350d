//! Exported journals: one JSON object for each row, as `abide run export` prints them.

use abide_kernel::{Fact, Rev, Row, Run, RunId, Seq, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of the export format.
pub const JOURNAL_FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Line {
    format: u8,
    run: RunId,
    rev: u64,
    seq: u64,
    #[serde(default)]
    prior: u64,
    at: i64,
    facts: Vec<Fact>,
}

/// What is wrong with an exported journal.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
#[non_exhaustive]
pub struct BadJournal {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// A journal as text: one line for each row.
#[must_use]
pub fn write_journal(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let line = Line {
            format: JOURNAL_FORMAT,
            run: row.run,
            rev: row.rev.0,
            seq: row.seq.0,
            prior: row.prior.0,
            at: row.at.0,
            facts: row.facts.to_vec(),
        };
        // Facts are read from JSON and written as JSON; the rest are numbers.
        text.push_str(&serde_json::to_string(&line).expect("a row has a JSON form"));
        text.push('\n');
    }
    text
}

/// Reads a journal that was exported, and folds it: the rows, and the run they make.
///
/// # Errors
/// When a line does not decode, or the rows are not the whole journal of one run.
pub fn read_journal(text: &str) -> Result<(Vec<Row>, Run), BadJournal> {
    let mut rows: Vec<Row> = Vec::new();
    let mut run: Option<Run> = None;
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |problem: String| BadJournal { line: index + 1, problem };
        let row = read_row(line, rows.last()).map_err(bad)?;
        match &mut run {
            Some(run) => run.apply_row(&row),
            None => run = Some(Run::begin(&row).map_err(|problem| bad(problem.to_string()))?),
        }
        rows.push(row);
    }
    match run {
        Some(run) => Ok((rows, run)),
        None => Err(BadJournal { line: 1, problem: "expected the rows of a journal, found none".into() }),
    }
}

fn read_row(line: &str, before: Option<&Row>) -> Result<Row, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if line.format != JOURNAL_FORMAT {
        return Err(format!("expected format {JOURNAL_FORMAT}, found {}", line.format));
    }
    if let Some(before) = before {
        if before.run != line.run {
            return Err(format!("expected a row of {}, found one of {}", before.run, line.run));
        }
        // A file may say anything, the last revision there is included.
        let expected = before.rev.0.saturating_add(1);
        if expected != line.rev || expected == before.rev.0 {
            return Err(format!("expected revision {expected}, found {}: a row is missing", line.rev));
        }
    }
    Ok(Row {
        seq: Seq(line.seq),
        run: line.run,
        rev: Rev(line.rev),
        prior: Seq(line.prior),
        at: Timestamp(line.at),
        facts: line.facts.into_iter().collect(),
    })
}
