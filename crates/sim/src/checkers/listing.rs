//! A listing shows what its filter says, newest first, and of every run what its journal says; nothing else, and nothing
//! twice, whatever of it is in index rows and whatever only in the memory of nodes.

use abide::{Filter, Listed, Run, RunId, Status};

use super::View;
use crate::Violation;

/// Compares all pages of a listing with the journals.
pub(crate) fn agrees(view: &View, filter: &Filter, listed: &[Listed]) -> Result<(), Violation> {
    let matching = view.runs.iter().rev().filter(|(_, told)| !told.run.is_reservation() && matches(filter, &told.run));
    let expected: Vec<(RunId, Status, u64)> =
        matching.map(|(id, told)| (*id, told.run.status(), told.run.rev.0)).collect();
    let found: Vec<(RunId, Status, u64)> = listed.iter().map(|run| (run.run, run.status, run.rev)).collect();
    if expected == found {
        return Ok(());
    }
    let missing = expected.iter().find(|run| !found.contains(run));
    let more = found.iter().find(|run| !expected.contains(run));
    Err(format!("listing: {filter:?} lacks {missing:?}, or shows {more:?}, or is in another order"))
}

fn matches(filter: &Filter, run: &Run) -> bool {
    let spec = &run.started.spec;
    let key = spec.key.as_ref().map(|key| &key.key);
    filter.namespace.as_ref().is_none_or(|wanted| spec.namespace == *wanted)
        && filter.workflow.as_ref().is_none_or(|wanted| spec.workflow == *wanted)
        && filter.key.as_ref().is_none_or(|wanted| key == Some(wanted))
        && filter.queue.as_ref().is_none_or(|wanted| spec.queue == *wanted)
        && filter.parent.is_none_or(|wanted| run.started.parent.as_ref().is_some_and(|parent| parent.run == wanted))
        && filter.labels.iter().all(|wanted| spec.labels.iter().any(|label| label == wanted))
        && filter.created.from.is_none_or(|from| run.created_at >= from)
        && filter.created.before.is_none_or(|before| run.created_at < before)
        && filter.updated.from.is_none_or(|from| run.updated_at >= from)
        && filter.updated.before.is_none_or(|before| run.updated_at < before)
        && (filter.statuses.is_empty() || filter.statuses.contains(&run.status()))
}
