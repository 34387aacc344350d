//! Runs as they are seen.

use std::collections::BTreeMap;

use abide_kernel::shard::Command;
use abide_kernel::{Run, Status, Str};
use abide_protocol::{
    Error, Explanation, Instant, ProgressPage, Run as Shown, RunPage, RunRecord, RunSummary, latest_progress,
};
use abide_store::{Filter, Listed, Page, Period};

use super::cancel::recorded;
use crate::answer::{Answered, Refused, json};
use crate::call::{Call, bad_query, in_time};

pub(crate) async fn list(call: Call) -> Answered {
    let mut filter = Filter::default();
    let text = |name: &str| call.asked(name).map(Into::into);
    (filter.workflow, filter.queue, filter.key) = (text("workflow"), text("queue"), text("key"));
    filter.statuses = statuses(call.asked("status"))?;
    filter.parent = call.run_asked("parent")?;
    filter.labels = labels(&call)?;
    let instant = |name| call.instant_asked(name);
    filter.created = Period { from: instant("created_after")?, before: instant("created_before")? };
    filter.updated = Period { from: instant("updated_after")?, before: instant("updated_before")? };
    let (listed, next) = listed(&call, filter).await?;
    json(&RunPage { runs: listed.iter().map(summary).collect(), next })
}

/// A page of the runs of this namespace that match, and where the next page begins.
pub(crate) async fn listed(
    call: &Call,
    mut filter: Filter,
) -> Result<(Vec<Listed>, Option<abide_kernel::RunId>), Refused> {
    filter.namespace = Some(call.namespace());
    let Page { most, before } = call.page()?;
    // One more than is shown says whether there is another page.
    let mut found = in_time(call.engine.list(&filter, &Page { most: most + 1, before })).await??;
    let more = found.len() > most;
    found.truncate(most);
    let next = found.last().map(|last| last.run).filter(|_| more);
    Ok((found, next))
}

fn labels(call: &Call) -> Result<Vec<(Str, Str)>, Refused> {
    let given = call.query.iter().filter(|(name, _)| name == "label");
    let label = |(_, text): &(String, String)| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err(bad_query("label", "name=value", text)),
    };
    given.map(label).collect()
}

fn statuses(words: Option<&str>) -> Result<Vec<Status>, Refused> {
    let mut statuses = Vec::new();
    for word in words.into_iter().flat_map(|words| words.split(',')) {
        if word == "open" {
            statuses.extend(Status::ALL.into_iter().filter(|status| !status.is_terminal()));
            continue;
        }
        let unknown = || bad_query("status", "open, or words for statuses separated by commas", word);
        statuses.push(word.parse().map_err(|_| unknown())?);
    }
    Ok(statuses)
}

pub(crate) fn summary(listed: &Listed) -> RunSummary {
    let text = |text: &Option<Str>| text.as_deref().map(str::to_owned);
    RunSummary {
        run: listed.run,
        namespace: listed.namespace.to_string(),
        workflow: listed.workflow.to_string(),
        version: listed.version,
        queue: listed.queue.to_string(),
        status: listed.status,
        step: text(&listed.step),
        key: text(&listed.key),
        parent: listed.parent,
        labels: texts(&listed.labels),
        created_at: Instant(listed.created_at),
        updated_at: Instant(listed.updated_at),
        due: listed.due.map(Instant),
        rev: listed.rev,
    }
}

fn texts(labels: &[(Str, Str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

pub(crate) async fn show(call: Call) -> Answered {
    json(&shown(&call.run().await?))
}

pub(crate) async fn record(call: Call) -> Answered {
    json(&RunRecord { record: call.run().await? })
}

pub(crate) async fn progress(call: Call) -> Answered {
    let after = call.number("after").unwrap_or(0);
    json(&ProgressPage::of(&call.run().await?, after))
}

fn shown(run: &Run) -> Shown {
    let (spec, first) = (&run.started.spec, run.cursors.first());
    let summary = RunSummary {
        run: run.id,
        namespace: spec.namespace.to_string(),
        workflow: spec.workflow.to_string(),
        version: spec.version,
        queue: spec.queue.to_string(),
        status: run.status(),
        step: first.and_then(|cursor| cursor.step.as_deref()).map(str::to_owned),
        key: spec.key.as_ref().map(|key| key.key.to_string()),
        parent: run.started.parent.as_ref().map(|parent| parent.run),
        labels: texts(&spec.labels),
        created_at: Instant(run.created_at),
        updated_at: Instant(run.updated_at),
        due: run.next_due().map(Instant),
        rev: run.rev.0,
    };
    Shown {
        summary,
        epoch: run.epoch,
        attempt: first.map_or(0, |cursor| cursor.retries + cursor.reclaims),
        boundary: run.boundary().map(|manual| run.boundary_id(manual)),
        ended_at: run.end.as_ref().map(|end| Instant(end.at)),
        input: spec.input.clone(),
        state: run.visible_state().clone(),
        progress: latest_progress(run),
        result: run.result.clone(),
        last_error: run.last_error.as_deref().map(Error::from),
        anomalies: run.anomalies.len(),
    }
}

/// The journal begins anew.
pub(crate) async fn compact(call: Call) -> Answered {
    let run = call.run().await?.id;
    recorded(&call.ask(run.slot(), Command::Compact { run }).await?)
}

/// The record is removed.
pub(crate) async fn purge(call: Call) -> Answered {
    let run = call.run().await?.id;
    recorded(&call.ask(run.slot(), Command::Purge { run }).await?)
}

pub(crate) async fn explain(call: Call) -> Answered {
    let run = call.run().await?.id;
    let explanation = in_time(call.engine.explain(run)).await??;
    json(&Explanation {
        run,
        reason: explanation.reason.code().into(),
        sentence: explanation.sentence,
        evidence: explanation.evidence.into_iter().collect(),
        next_actions: explanation.next_actions,
    })
}
