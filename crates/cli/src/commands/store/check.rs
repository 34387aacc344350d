//! `abide store check`: everything is read and held against itself. Nothing is repaired.

use abide_runtime::{Audit, Problem};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};

/// Read everything and hold it against itself; exit 1 if something is wrong.
#[derive(Debug, Args)]
#[command(after_help = "\
It reads the checksum of every row, looks for gaps, follows every run from row to row, folds it, and compares it
with its checkpoint. It may run beside an engine; what is written meanwhile is left for another time.

Examples:
  abide store check
  abide --store sqlite:backup.db store check --json")]
pub(crate) struct Check {}

impl Check {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let mut audit = Audit::of(place.reader()?.as_mut())?;
        let of_file = place.file_reader()?.map(|reader| reader.integrity()).transpose()?;
        for what in of_file.unwrap_or_default() {
            audit.found += 1;
            audit.problems.push(Problem { run: None, position: None, what });
        }
        let exit = if audit.found == 0 { Exit::Ok } else { Exit::Failure };
        if !screen.is_text() {
            let problems: Vec<Value> = audit.problems.iter().map(problem_json).collect();
            screen.document(&json!({
                "ok": audit.found == 0, "rows": audit.rows, "runs": audit.runs, "purged": audit.purged,
                "found": audit.found, "problems": problems,
            }))?;
            return Ok(exit);
        }
        let rows = audit.problems.iter().map(|problem| {
            let place = problem.position.map_or("-".into(), |(shard, seq)| format!("{}/{}", shard.0, seq.0));
            vec![
                Cell::toned(problem.run.map_or("-".into(), |run| screen.id(run)), Tone::Strong),
                Cell::new(place),
                Cell::toned(&problem.what, Tone::Bad),
            ]
        });
        if audit.found > 0 {
            screen.table(&["RUN", "SHARD/ROW", "WHAT IS WRONG"], rows.collect())?;
        }
        let looked = format!("{} rows and {} runs were read", audit.rows, audit.runs);
        match audit.found {
            0 => screen.remark(&format!("{looked}: all is as it was written")),
            found => {
                screen.remark(&format!("{looked}: {found} problems; keep the file, and restore a backup beside it"));
            }
        }
        Ok(exit)
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "run": problem.run,
        "shard": problem.position.map(|(shard, _)| shard.0),
        "position": problem.position.map(|(_, seq)| seq.0),
        "what": problem.what,
    })
}
