//! What people are asked and what they answer: shared by `task`, `approval` and `run resume`.

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::manual::{Assigning, Deciding};
use abide_kernel::{BoundaryId, Choice, ManualKind, Payload, RunId, Str};
use abide_protocol::Boundary;
use abide_runtime::new_request;
use clap::Args;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::{Source, Wanted};

/// Who acts, in which roles, and why.
#[derive(Debug, Args)]
pub(crate) struct Person {
    /// Who acts; if absent, whose token a server is asked with
    #[arg(long = "as", value_name = "NAME")]
    actor: Option<String>,
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
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let BoundaryId { run, op } = find(source.as_mut(), id)?;
        let (actor, request) = (self.name(globals)?.into(), new_request(screen.now()));
        let deciding = Deciding { op, choice, actor, roles: self.roles(), note: self.note(), payload, request };
        let duplicate = tell(source.as_mut(), run, Command::Decide { run, deciding: Box::new(deciding) })?;
        let id = BoundaryId { run, op };
        if screen.is_text() {
            let by = self.actor.as_ref().map(|actor| format!(" by {actor}")).unwrap_or_default();
            screen.remark(&format!("{id}: {choice}{by}"));
        } else {
            screen.document(&json!({"boundary": id, "choice": choice, "duplicate": duplicate}))?;
        }
        Ok(Exit::Ok)
    }

    /// Gives a boundary to somebody, or gives it back.
    pub(crate) fn assign(&self, globals: &Globals, id: &str, to: Option<&str>, take_over: bool) -> Outcome {
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let BoundaryId { run, op } = find(source.as_mut(), id)?;
        let assigning = Assigning {
            op,
            to: to.map(Into::into),
            actor: self.name(globals)?.into(),
            roles: self.roles(),
            note: self.note(),
            take_over,
            request: new_request(screen.now()),
        };
        let duplicate = tell(source.as_mut(), run, Command::Assign { run, assigning: Box::new(assigning) })?;
        let id = BoundaryId { run, op };
        if screen.is_text() {
            let whose = match to {
                None => "nobody's".to_owned(),
                Some("") => "taken".to_owned(),
                Some(to) => format!("{to}'s"),
            };
            screen.remark(&format!("{id} is {whose}"));
        } else {
            let to = to.filter(|to| !to.is_empty());
            screen.document(&json!({"boundary": id, "assignee": to, "duplicate": duplicate}))?;
        }
        Ok(Exit::Ok)
    }

    /// Who acts. A server knows whose token it is, which stands for no name; a store knows nobody.
    pub(crate) fn name(&self, globals: &Globals) -> Result<&str, Failure> {
        match (&self.actor, &globals.server) {
            (Some(actor), _) => Ok(actor),
            (None, Some(_)) => Ok(""),
            (None, None) => {
                let what = "nobody is named who decides, and a store does not know who asks";
                Err(Failure::usage("no_actor", what).hint("give --as NAME"))
            }
        }
    }
}

/// Whether the engine had recorded it before.
fn tell(source: &mut dyn Source, run: RunId, command: Command) -> Result<bool, Failure> {
    match source.tell(run, command)? {
        Answer::Recorded { duplicate, .. } => Ok(duplicate),
        other => {
            let what = format!("expected the answer to a decision, found {other:?}");
            Err(Failure::new(Exit::Failure, "unexpected", what))
        }
    }
}

/// The boundary that is meant: its id, of which the part before the dot may be cut short.
fn find(source: &mut dyn Source, text: &str) -> Result<BoundaryId, Failure> {
    let bad = || {
        let shown: String = text.chars().take(80).collect();
        let what = format!("expected the id of a boundary like manual_0193….1, found {shown:?}");
        Failure::usage("bad_id", what).hint("abide task list and abide approval list show the ids; run show has it too")
    };
    let (run, op) = text.strip_prefix(BoundaryId::PREFIX).and_then(|rest| rest.rsplit_once('.')).ok_or_else(bad)?;
    let op = op.parse().map_err(|_| bad())?;
    Ok(BoundaryId { run: source.find(run)?, op })
}

/// One boundary, open or over.
pub(crate) fn show(source: &mut dyn Source, id: &str) -> Result<Boundary, Failure> {
    let id = find(source, id)?;
    let run = source.show(id.run)?;
    match run.manual(id.op) {
        Some(manual) => Ok(Boundary::of(id, &run.started.spec.workflow, manual)),
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
        let (screen, mut source) = (Screen::new(globals), <dyn Source>::of(globals)?);
        let (assignee, role, most) = (self.assignee.as_deref(), self.role.as_deref(), self.limit as usize);
        let wanted = Wanted { kind, assignee, role, most };
        let found = match &self.run {
            Some(run) => {
                let run = source.find(run)?;
                let run = source.show(run)?;
                let all = run.manual.iter();
                let all = all.map(|manual| Boundary::of(run.boundary_id(manual), &run.started.spec.workflow, manual));
                all.filter(|boundary| wanted.matches(boundary)).take(most).collect()
            }
            None => source.boundaries(&wanted)?,
        };
        if !screen.is_text() {
            screen.documents(&format!("{kind}s"), &found)?;
            return Ok(Exit::Ok);
        }
        if found.is_empty() {
            screen.remark(&format!("no {kind} waits for anybody"));
        }
        let heads = ["ID", "WORKFLOW", "NAME", "STANDING", "ROLES", "ASSIGNEE", "SINCE", "UNTIL"];
        screen.table(&heads, found.iter().map(|found| row(&screen, found)).collect())?;
        Ok(Exit::Ok)
    }
}

fn row(screen: &Screen, found: &Boundary) -> Vec<Cell> {
    let id = format!("{}{}.{}", BoundaryId::PREFIX, &screen.id(found.run)["run_".len()..], found.boundary.op);
    let roles = if found.roles.is_empty() { "-".to_owned() } else { found.roles.join(",") };
    vec![
        Cell::toned(id, Tone::Strong),
        Cell::new(&found.workflow),
        Cell::new(&found.name),
        Cell::toned(&found.standing, if found.is_open() { Tone::Waiting } else { Tone::Faint }),
        Cell::new(roles),
        Cell::new(found.assignee.as_deref().unwrap_or("-")),
        Cell::toned(screen.time(found.asked_at.0), Tone::Faint),
        Cell::toned(found.until.map_or_else(|| "-".into(), |until| screen.time(until.0)), Tone::Faint),
    ]
}
