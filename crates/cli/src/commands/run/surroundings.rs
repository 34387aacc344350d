//! What stands around a run, as far as one who only reads the store can know it.

use abide_kernel::explain::{Service, Surroundings};
use abide_kernel::{Phase, Run, RunId, Seq, Status, Timestamp};
use abide_runtime::Snapshot;
use abide_store::{Filter, Page};

use crate::failure::Failure;
use crate::keeper::Keeper;

/// The most runs that are looked at for one question.
const LOOKED_AT: usize = 10_000;

/// Who serves the run, who holds its concurrency key, and how many come before it.
pub(crate) fn around(
    snapshot: &mut Snapshot,
    keeper: Option<&Keeper>,
    run: &Run,
    now: Timestamp,
) -> Result<Surroundings, Failure> {
    let mut around = Surroundings::default();
    let Some(mine) = place(run, now) else {
        return Ok(around);
    };
    around.service = service(snapshot, keeper, run)?;
    let spec = &run.started.spec;
    let mut filter = Filter::default();
    filter.namespace = Some(spec.namespace.clone());
    if let Some(concurrency) = &spec.concurrency {
        filter.statuses = vec![Status::Executing];
        around.key_held_by = matching(snapshot, &filter, |other| {
            let theirs = other.started.spec.concurrency.as_ref();
            theirs.is_some_and(|theirs| theirs.key == concurrency.key)
        })?;
    }
    filter.queue = Some(spec.queue.clone());
    filter.statuses = vec![Status::Runnable];
    let before = matching(snapshot, &filter, |other| place(other, now).is_some_and(|theirs| theirs < mine))?;
    around.ahead = before.len();
    Ok(around)
}

/// A ready run's place in the order of claims.
fn place(run: &Run, now: Timestamp) -> Option<(i32, Timestamp, Seq, RunId)> {
    run.cursors.iter().find_map(|cursor| match cursor.phase {
        Phase::Scheduled { visible_at, arrival } if visible_at <= now => {
            Some((run.started.spec.priority, visible_at, arrival, run.id))
        }
        _ => None,
    })
}

/// Whether somebody serves the run. Without a keeper nobody does. A keeper may say what it has; of one that does not, what
/// its process has executed shows some of it.
fn service(snapshot: &mut Snapshot, keeper: Option<&Keeper>, run: &Run) -> Result<Service, Failure> {
    let Some(keeper) = keeper else {
        return Ok(Service::NoQueue);
    };
    if let Some(serving) = &keeper.serving {
        return Ok(Service::of(run, [(serving.queues.as_slice(), serving.definitions.as_slice())]));
    }
    let mut filter = Filter::default();
    filter.workflow = Some(run.started.spec.workflow.clone());
    let mut versions = Vec::new();
    let _ = matching(snapshot, &filter, |other| {
        let theirs = other.cursors.iter().filter_map(|cursor| cursor.claimant.as_ref());
        let mut processes = theirs.filter_map(|by| by.process.as_ref());
        if processes.any(|by| keeper.is(by)) {
            versions.push(other.started.spec.version);
        }
        false
    })?;
    versions.sort_unstable();
    versions.dedup();
    if versions.is_empty() || versions.contains(&run.started.spec.version) {
        return Ok(Service::Served);
    }
    Ok(Service::OtherVersions(versions))
}

/// Runs that the filter and the question both want. One that is damaged answers no question.
fn matching(
    snapshot: &mut Snapshot,
    filter: &Filter,
    mut wanted: impl FnMut(&Run) -> bool,
) -> Result<Vec<RunId>, Failure> {
    let page = Page { most: LOOKED_AT, before: None };
    let mut found = Vec::new();
    for listed in snapshot.list(filter, &page)? {
        if let Ok(Some(stored)) = snapshot.show(listed.run)
            && wanted(&stored.run)
        {
            found.push(listed.run);
        }
    }
    Ok(found)
}
