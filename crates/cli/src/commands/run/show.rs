//! `abide run show`: where a run stands, and what it holds.

use abide_kernel::transition::record::describe;
use abide_kernel::{BoundaryId, Child, ChildAnswer, ChildEnd, Cursor, Phase, Run, RunId, Wait, WaitKind};
use clap::Args;
use serde::Serialize;

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::{cut, iso};

/// The most of a payload that is shown as text; JSON has it whole.
const PAYLOAD_SHOWN: usize = 400;
/// Open entries of the ledger that are named.
const OPS_SHOWN: usize = 5;

/// Show where a run stands.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run show run_0193f2c4a1b2
  abide -o json run show 0193f2c4 | jq .state")]
pub(crate) struct Show {
    /// The run: its id or the beginning of it
    id: String,
}

impl Show {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let id = source.find(&self.id)?;
        let run = source.show(id)?;
        if !screen.is_text() {
            screen.document(&shown(&run))?;
            return Ok(Exit::Ok);
        }
        let mut fields = identity(&screen, &run);
        for cursor in &run.cursors {
            fields.extend(standing(&screen, &run, cursor));
        }
        fields.extend(holdings(&screen, &run));
        screen.fields(&fields)?;
        Ok(Exit::Ok)
    }
}

/// A run for programs: its folded state, and the words that are derived from it.
#[derive(Serialize)]
struct Shown<'a> {
    run: RunId,
    status: &'static str,
    step: Option<&'a str>,
    attempt: u32,
    waiting_for: Option<String>,
    boundary: Option<BoundaryId>,
    created_at: String,
    updated_at: String,
    ended_at: Option<String>,
    due: Option<String>,
    state: &'a abide_kernel::Payload,
    result: Option<&'a abide_kernel::Payload>,
    last_error: Option<&'a abide_kernel::ErrorInfo>,
    record: &'a Run,
}

fn shown(run: &Run) -> Shown<'_> {
    let first = run.cursors.first();
    let waits = run.cursors.iter().find_map(|cursor| match &cursor.phase {
        Phase::Waiting(wait) => Some(waiting_for(run, wait)),
        _ => None,
    });
    Shown {
        run: run.id,
        status: run.status().name(),
        step: first.and_then(|cursor| cursor.step.as_deref()),
        attempt: first.map_or(0, |cursor| cursor.retries + cursor.reclaims),
        waiting_for: waits,
        boundary: run.boundary().map(|manual| run.boundary_id(manual)),
        created_at: iso(run.created_at),
        updated_at: iso(run.updated_at),
        ended_at: run.end.as_ref().map(|end| iso(end.at)),
        due: run.next_due().map(iso),
        state: run.visible_state(),
        result: run.result.as_ref(),
        last_error: run.last_error.as_deref(),
        record: run,
    }
}

type Field = (&'static str, Cell);

fn identity(screen: &Screen, run: &Run) -> Vec<Field> {
    let spec = &run.started.spec;
    let mut fields = vec![
        ("run", Cell::toned(run.id.to_string(), Tone::Strong)),
        ("workflow", Cell::new(format!("{} v{}", spec.workflow, spec.version))),
        ("status", Cell::status(run.status())),
        ("namespace", Cell::new(&*spec.namespace)),
        ("queue", Cell::new(&*spec.queue)),
    ];
    if let Some(key) = &spec.key {
        let freed = if run.key_freed { " (free again)" } else { "" };
        fields.push(("key", Cell::new(format!("{}{freed}", key.key))));
    }
    if let Some(concurrency) = &spec.concurrency {
        let text = format!("{}, at most {} at once", concurrency.key, concurrency.limit);
        fields.push(("concurrency", Cell::new(text)));
    }
    if spec.priority != 0 {
        fields.push(("priority", Cell::new(spec.priority.to_string())));
    }
    for (name, value) in &spec.labels {
        fields.push(("label", Cell::new(format!("{name}={value}"))));
    }
    if let Some(parent) = &run.started.parent {
        let gone = if run.orphaned { ", whose record is gone" } else { "" };
        fields.push(("parent", Cell::new(format!("{} at step {}{gone}", parent.run, parent.step))));
    }
    fields.push(("created", Cell::new(screen.time(run.created_at))));
    fields.push(("updated", Cell::new(screen.time(run.updated_at))));
    if let Some(end) = &run.end {
        fields.push(("ended", Cell::new(screen.time(end.at))));
    }
    if let Some(deadline) = spec.deadline {
        fields.push(("deadline", Cell::new(screen.time(deadline))));
    }
    let pinned = run.fingerprint.map_or("at the first claim".into(), |pinned| pinned.to_string());
    fields.push(("definition", Cell::new(pinned)));
    fields.push(("rev", Cell::new(run.rev.0.to_string())));
    fields
}

/// Where one line of steps stands.
fn standing(screen: &Screen, run: &Run, cursor: &Cursor) -> Vec<Field> {
    let step = cursor.step.as_deref().unwrap_or("the first, named at the first claim");
    let mut fields = vec![("step", Cell::toned(step, Tone::Strong))];
    let tries = cursor.retries + cursor.reclaims;
    if tries > 0 {
        let text = format!("{tries} before: {} failed, {} lost their worker", cursor.retries, cursor.reclaims);
        fields.push(("attempts", Cell::new(text)));
    }
    match &cursor.phase {
        Phase::Scheduled { visible_at, .. } => {
            let since = if *visible_at > screen.now() { "claimable from" } else { "claimable since" };
            fields.push((since, Cell::toned(screen.time(*visible_at), Tone::Busy)));
        }
        Phase::Claimed(claim) => {
            let by = cursor.claimant.as_ref().map_or("somebody", |by| &*by.owner);
            let text = format!("{by}, claim {}, lease to {}", claim.number, screen.time(claim.until()));
            fields.push(("executed by", Cell::toned(text, Tone::Busy)));
        }
        Phase::Waiting(wait) => {
            fields.push(("waiting for", Cell::toned(waiting_for(run, wait), Tone::Waiting)));
            if let Some(until) = wait.until {
                fields.push(("until", Cell::toned(screen.time(until), Tone::Waiting)));
            }
        }
        Phase::DeadLettered(letter) => {
            fields.push(("set aside", Cell::toned(letter.reason.to_string(), Tone::Bad)));
        }
        Phase::Planned { .. } if !cursor.needs.is_empty() => {
            fields.push(("needs", Cell::new(cursor.needs.join(", "))));
        }
        Phase::Planned { .. } | Phase::Completed { .. } | Phase::Failed | Phase::Finished { .. } | Phase::Closed => {}
    }
    fields
}

/// What a wait is for, in words.
fn waiting_for(run: &Run, wait: &Wait) -> String {
    match &wait.kind {
        WaitKind::Signal { names, .. } => format!("signal {}", names.join(" or ")),
        WaitKind::Timer => "a timer".into(),
        WaitKind::Children(barrier) => {
            let all = run.children.iter().filter(|child| child.barrier == Some(wait.token)).count();
            format!("{} of {all} children", barrier.pending)
        }
        WaitKind::Ledger => {
            let open: Vec<String> = run.open_ops().take(OPS_SHOWN).map(|(_, op)| describe(op)).collect();
            open.join(", ")
        }
    }
}

/// What a run holds: payloads, signals, children, errors.
fn holdings(screen: &Screen, run: &Run) -> Vec<Field> {
    let payload = |payload: &abide_kernel::Payload| Cell::new(cut(payload.text(), PAYLOAD_SHOWN));
    let mut fields = vec![("state", payload(run.visible_state()))];
    if run.published.is_some() {
        fields.push(("input", payload(&run.state)));
    }
    if let Some(result) = &run.result {
        fields.push(("result", payload(result)));
    }
    for said in run.progress.iter().flat_map(|progress| &progress.latest) {
        let event = &said.event;
        let text = format!("{} {} {}", event.name, cut(event.value.text(), PAYLOAD_SHOWN), screen.time(event.at));
        fields.push(("progress", Cell::new(text)));
    }
    if let Some(error) = &run.last_error {
        fields.push(("last error", Cell::toned(error.to_string(), Tone::Bad)));
    }
    if let Some(manual) = run.boundary() {
        let asked = &manual.asked;
        let text = format!("{} {:?} ({})", asked.kind, asked.key, run.boundary_id(manual));
        fields.push(("asks for", Cell::toned(text, Tone::Waiting)));
    }
    for signal in &run.inbox {
        let text = format!("{} {} {}", signal.name, screen.time(signal.at), cut(signal.payload.text(), PAYLOAD_SHOWN));
        fields.push(("in its inbox", Cell::new(text)));
    }
    for update in run.updates.iter().filter(|update| update.reply().is_none()) {
        let text = format!("{} {}", update.name, screen.time(update.at));
        fields.push(("asked to", Cell::toned(text, Tone::Waiting)));
    }
    for child in &run.children {
        fields.push(("child", child_cell(screen, child)));
    }
    for seen in &run.anomalies {
        let text = format!("{} {}: {}", screen.time(seen.at), seen.anomaly.kind, seen.anomaly.detail);
        fields.push(("anomaly", Cell::toned(text, Tone::Bad)));
    }
    if let Some(executed) = &run.last_executed {
        let text = format!("{}, {}", executed.by, screen.time(executed.at));
        fields.push(("last executed", Cell::new(text)));
    }
    fields
}

fn child_cell(screen: &Screen, child: &Child) -> Cell {
    let end = match &child.end {
        None => "open".into(),
        Some(ChildEnd::Ended { status, .. }) => status.to_string(),
        Some(ChildEnd::Answered(ChildAnswer::Existing(run))) => format!("not started: {run} has its key"),
        Some(ChildEnd::Answered(ChildAnswer::Rejected(reason))) => format!("not started: {reason}"),
    };
    let key = child.key.as_deref().map(|key| format!(" {key}")).unwrap_or_default();
    Cell::new(format!("{} {}{key} {end}", screen.id(child.id), child.workflow))
}
