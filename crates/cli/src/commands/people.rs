//! What people are asked and what they answer: shared by `task`, `approval` and `run resume`.

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::manual::{Assigning, Deciding};
use abide_kernel::{BoundaryId, Choice, Manual, ManualEvent, ManualKind, Payload, Refusal, Run, RunId, Status, Str};
use abide_runtime::{Snapshot, new_request};
use abide_store::{Filter, Page, StoredRun};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
use crate::text::iso;

/// Runs that are read at a time when boundaries are listed.
const RUNS_AT_ONCE: usize = 200;

/// Who acts, in which roles, and why.
#[derive(Debug, Args)]
pub(crate) struct Person {
    /// Who acts
    #[arg(long = "as", value_name = "NAME")]
    actor: String,
    /// A role in which they act; give it again for another
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Why, in their words
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl Person {
    fn roles(&self) -> Vec<Str> {
        self.roles.iter().map(|role| role.as_str().into()).collect()
    }

    fn note(&self) -> Option<Str> {
        self.note.as_deref().map(Into::into)
    }

    /// Decides a boundary.
    pub(crate) fn decide(&self, globals: &Globals, id: &str, choice: Choice, payload: Payload) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let BoundaryId { run, op } = find(&place, id)?;
        let (actor, request) = (self.actor.as_str().into(), new_request(screen.now()));
        let deciding = Deciding { op, choice, actor, roles: self.roles(), note: self.note(), payload, request };
        let duplicate = tell(&place, run, Command::Decide { run, deciding: Box::new(deciding) })?;
        let id = BoundaryId { run, op };
        if screen.is_text() {
            screen.remark(&format!("{id}: {choice} by {}", self.actor));
        } else {
            screen.document(&json!({"boundary": id, "choice": choice, "duplicate": duplicate}))?;
        }
        Ok(Exit::Ok)
    }

    /// Gives a boundary to somebody, or gives it back.
    pub(crate) fn assign(&self, globals: &Globals, id: &str, to: Option<&str>, take_over: bool) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let BoundaryId { run, op } = find(&place, id)?;
        let assigning = Assigning {
            op,
            to: to.map(Into::into),
            actor: self.actor.as_str().into(),
            roles: self.roles(),
            note: self.note(),
            take_over,
            request: new_request(screen.now()),
        };
        let duplicate = tell(&place, run, Command::Assign { run, assigning: Box::new(assigning) })?;
        let id = BoundaryId { run, op };
        if screen.is_text() {
            let whose = to.map_or_else(|| "nobody's".to_owned(), |to| format!("{to}'s"));
            screen.remark(&format!("{id} is {whose}"));
        } else {
            screen.document(&json!({"boundary": id, "assignee": to, "duplicate": duplicate}))?;
        }
        Ok(Exit::Ok)
    }

    /// Who acts.
    pub(crate) fn name(&self) -> &str {
        &self.actor
    }
}

/// Whether the engine had recorded it before.
fn tell(place: &Place, run: RunId, command: Command) -> Result<bool, Failure> {
    match place.change(async |owner| owner.tell(run, command).await)? {
        Answer::Recorded { duplicate, .. } => Ok(duplicate),
        other => {
            let what = format!("expected the answer to a decision, found {other:?}");
            Err(Failure::new(Exit::Failure, "unexpected", what))
        }
    }
}

/// The boundary that is meant: its id, of which the part before the dot may be cut short.
pub(crate) fn find(place: &Place, text: &str) -> Result<BoundaryId, Failure> {
    let bad = || {
        let shown: String = text.chars().take(80).collect();
        let what = format!("expected the id of a boundary like manual_0193….1, found {shown:?}");
        Failure::usage("bad_id", what).hint("abide task list and abide approval list show the ids; run show has it too")
    };
    let (run, op) = text.strip_prefix(BoundaryId::PREFIX).and_then(|rest| rest.rsplit_once('.')).ok_or_else(bad)?;
    let op = op.parse().map_err(|_| bad())?;
    Ok(BoundaryId { run: place.find_to_change(run)?, op })
}

/// A boundary of a run.
pub(crate) struct Found {
    pub(crate) run: Run,
    pub(crate) manual: Manual,
}

impl Found {
    pub(crate) fn id(&self) -> BoundaryId {
        self.run.boundary_id(&self.manual)
    }

    /// Where it stands, in one word.
    pub(crate) fn standing(&self) -> &'static str {
        self.manual.end.as_ref().map_or("open", |end| end.name())
    }

    pub(crate) fn json(&self) -> Value {
        let asked = &self.manual.asked;
        let event_json = |event: &ManualEvent| {
            json!({
                "event": event.kind.name(), "at": iso(event.at), "actor": event.actor.as_deref(),
                "to": event.to.as_deref(), "note": event.note.as_deref(),
            })
        };
        let events: Vec<Value> = self.manual.events.iter().map(event_json).collect();
        json!({
            "boundary": self.id(), "run": self.run.id, "workflow": &*self.run.started.spec.workflow,
            "kind": asked.kind, "name": &*asked.key, "step": &*asked.step, "standing": self.standing(),
            "payload": asked.payload, "roles": asked.roles, "assignee": self.manual.assignee.as_deref(),
            "asked_at": iso(self.manual.at()), "until": asked.until.map(iso),
            "on_timeout": asked.on_timeout, "decision": self.manual.decided(), "events": events,
        })
    }
}

/// One boundary of a store, open or over.
pub(crate) fn show(place: &Place, id: &str) -> Result<Found, Failure> {
    let id = find(place, id)?;
    let Some(StoredRun { run, .. }) = place.snapshot()?.show(id.run)? else {
        return Err(Refusal::NotFound { run: id.run }.into());
    };
    match run.manual(id.op).cloned() {
        Some(manual) => Ok(Found { run, manual }),
        None => Err(Failure::new(Exit::NotFound, "not_found", format!("{} asked nobody at entry {}", id.run, id.op))),
    }
}

/// Which boundaries are listed.
#[derive(Debug, Args)]
pub(crate) struct Listing {
    /// Everything of its kind that this run ever asked, open or over: its id or the beginning of it
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only what is assigned to this person
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    /// Only what asks for this role, or for none
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
}

impl Listing {
    pub(crate) fn perform(&self, globals: &Globals, kind: ManualKind) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let mut snapshot = place.snapshot()?;
        let mut found = match &self.run {
            Some(run) => {
                let run = place.find(&mut snapshot, run)?;
                of_run(&mut snapshot, run, |_| true)?
            }
            None => open(&mut snapshot, globals, |manual| self.matches(manual, kind), self.limit as usize)?,
        };
        found.retain(|found| self.matches(&found.manual, kind));
        found.truncate(self.limit as usize);
        if !screen.is_text() {
            screen.documents(&format!("{kind}s"), &found.iter().map(Found::json).collect::<Vec<_>>())?;
            return Ok(Exit::Ok);
        }
        if found.is_empty() {
            screen.remark(&format!("no {kind} waits for anybody"));
        }
        let heads = ["ID", "WORKFLOW", "NAME", "STANDING", "ROLES", "ASSIGNEE", "SINCE", "UNTIL"];
        screen.table(&heads, found.iter().map(|found| row(&screen, found)).collect())?;
        Ok(Exit::Ok)
    }

    fn matches(&self, manual: &Manual, kind: ManualKind) -> bool {
        let assignee = self.assignee.as_deref().is_none_or(|name| manual.assignee.as_deref() == Some(name));
        let roles = &manual.asked.roles;
        let role = self.role.as_deref().is_none_or(|name| roles.is_empty() || roles.iter().any(|role| **role == *name));
        manual.asked.kind == kind && assignee && role
    }
}

/// What the runs of a store ask of people now, newest run first.
fn open(
    snapshot: &mut Snapshot,
    globals: &Globals,
    wanted: impl Fn(&Manual) -> bool,
    most: usize,
) -> Result<Vec<Found>, Failure> {
    let mut filter = Filter::default();
    filter.namespace = globals.namespace.as_deref().map(Into::into);
    // A run that is in doubt about an effect may ask for a person as well.
    filter.statuses = vec![Status::AwaitingDecision, Status::InDoubt];
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let listed = snapshot.list(&filter, &Page { most: RUNS_AT_ONCE, before })?;
        for listed in &listed {
            found.extend(of_run(snapshot, listed.run, |manual| manual.end.is_none() && wanted(manual))?);
        }
        before = listed.last().map(|last| last.run);
        if listed.len() < RUNS_AT_ONCE || found.len() >= most {
            return Ok(found);
        }
    }
}

fn of_run(snapshot: &mut Snapshot, run: RunId, wanted: impl Fn(&Manual) -> bool) -> Result<Vec<Found>, Failure> {
    let Some(StoredRun { run, .. }) = snapshot.show(run)? else {
        return Ok(Vec::new());
    };
    let found = run.manual.iter().filter(|manual| wanted(manual)).cloned();
    Ok(found.map(|manual| Found { run: run.clone(), manual }).collect())
}

fn row(screen: &Screen, found: &Found) -> Vec<Cell> {
    let asked = &found.manual.asked;
    let id = format!("{}{}.{}", BoundaryId::PREFIX, &screen.id(found.run.id)["run_".len()..], asked.op);
    let roles = if asked.roles.is_empty() { "-".to_owned() } else { asked.roles.join(",") };
    vec![
        Cell::toned(id, Tone::Strong),
        Cell::new(&*found.run.started.spec.workflow),
        Cell::new(&*asked.key),
        Cell::toned(found.standing(), if found.manual.end.is_none() { Tone::Waiting } else { Tone::Faint }),
        Cell::new(roles),
        Cell::new(found.manual.assignee.as_deref().unwrap_or("-")),
        Cell::toned(screen.time(found.manual.at()), Tone::Faint),
        Cell::toned(asked.until.map_or_else(|| "-".into(), |until| screen.time(until)), Tone::Faint),
    ]
}
