//! The journal of a run, and its state at a revision.

use abide_kernel::{Refusal, Run};
use abide_protocol::limits::ROWS;
use abide_protocol::{Instant, Journal, JournalRow, State};
use abide_runtime::Trail;

use crate::answer::{Answered, Refused, internal, json};
use crate::call::{Call, in_time};
use crate::limits::PAGE_BYTES_MAX;

pub(crate) async fn read(call: Call) -> Answered {
    let (from, most) = (call.number("from").unwrap_or(1), call.number("limit").unwrap_or(ROWS));
    let run = call.run().await?.id;
    let mut trail = Trail::new(run, from);
    let rows = in_time(call.engine.read_on(&mut trail, most as usize, PAGE_BYTES_MAX)).await??;
    let next = trail.next();
    let rows = rows.into_iter().map(|row| JournalRow {
        rev: row.rev.0,
        seq: row.seq.0,
        at: Instant(row.at),
        facts: row.facts,
    });
    json(&Journal { rows: rows.collect(), next })
}

pub(crate) async fn state(call: Call) -> Answered {
    let rev = call.number("rev");
    let run = call.run().await?;
    match rev {
        Some(rev) if rev != run.rev.0 => json(&of(&at(&call, &run, rev).await?)),
        Some(_) | None => json(&of(&run)),
    }
}

fn of(run: &Run) -> State {
    State { run: run.id, rev: run.rev.0, status: run.status(), state: run.visible_state().clone() }
}

/// The run as it stood at a revision: its journal, folded up to there.
async fn at(call: &Call, run: &Run, rev: u64) -> Result<Run, Refused> {
    let rows = in_time(call.engine.journal(run.id, 0)).await??;
    let (first, rest) = rows.split_first().ok_or_else(|| internal(&format_args!("{} has no journal", run.id)))?;
    if rev < first.rev.0 || rev > run.rev.0 {
        let expected = format!("a revision from {} to {}", first.rev.0, run.rev.0);
        return Err(Refusal::Invalid { what: "rev".into(), expected, found: rev.to_string() }.into());
    }
    let mut folded = Run::begin(first).map_err(|bad| internal(&bad))?;
    rest.iter().take_while(|row| row.rev.0 <= rev).for_each(|row| folded.apply_row(row));
    Ok(folded)
}
