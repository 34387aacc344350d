//! What runs ask of people, and what they answer.

use abide_kernel::shard::Command;
use abide_kernel::transition::manual::{Assigning, Deciding};
use abide_kernel::{BoundaryId, Choice, Manual, ManualKind, Refusal, Run, Status, Str};
use abide_protocol::{Assign, Boundary, BoundaryPage, Decide, Problem, Scope};
use abide_store::Filter;

use super::cancel::recorded;
use super::run::listed;
use crate::answer::{Answered, Refused, json};
use crate::call::Call;

pub(crate) async fn approvals(call: Call) -> Answered {
    list(call, ManualKind::Approval).await
}

pub(crate) async fn tasks(call: Call) -> Answered {
    list(call, ManualKind::Task).await
}

pub(crate) async fn approval(call: Call) -> Answered {
    show(call, ManualKind::Approval).await
}

pub(crate) async fn task(call: Call) -> Answered {
    show(call, ManualKind::Task).await
}

pub(crate) async fn approve(call: Call) -> Answered {
    decide(call, ManualKind::Approval, Choice::Approve).await
}

pub(crate) async fn reject(call: Call) -> Answered {
    decide(call, ManualKind::Approval, Choice::Reject).await
}

pub(crate) async fn complete(call: Call) -> Answered {
    decide(call, ManualKind::Task, Choice::Complete).await
}

/// Lets a run go on that is paused now.
pub(crate) async fn resume(call: Call) -> Answered {
    let said: Decide = call.body()?;
    let run = call.run().await?;
    let paused = run.boundary().filter(|manual| manual.asked.kind == ManualKind::Pause);
    let Some(manual) = paused else {
        let problem = Problem::new("stale_boundary", format!("{} is not paused", run.id));
        return Err(problem.but("a run that is paused", run.status().to_string()).into());
    };
    say(&call, run.boundary_id(manual), Choice::Resume, said).await
}

pub(crate) async fn claim(call: Call) -> Answered {
    let said: Assign = call.body()?;
    let actor = actor(&call, said.actor.as_deref())?;
    let to = said.to.as_deref().map_or_else(|| actor.clone(), Str::from);
    assign(call, actor, Some(to), said).await
}

pub(crate) async fn release(call: Call) -> Answered {
    let said: Assign = call.body()?;
    let actor = actor(&call, said.actor.as_deref())?;
    if let Some(to) = &said.to {
        let expected = "nobody: a task that is given back is nobody's; claim hands it on".to_owned();
        return Err(Refusal::Invalid { what: "to".into(), expected, found: to.clone() }.into());
    }
    assign(call, actor, None, said).await
}

/// Who acts: whoever is named, or whose token it is. A program may act for many; a person who logged in acts for
/// themselves, unless they may do everything anyway.
pub(super) fn actor(call: &Call, named: Option<&str>) -> Result<Str, Refused> {
    let own = &call.principal.name;
    let other = named.filter(|named| *named != own && call.principal.csrf.is_some());
    if let Some(other) = other.filter(|_| call.principal.allows(&Scope::Admin).is_err()) {
        let problem = Problem::new("forbidden", "whoever logged in decides under their own name");
        return Err(problem.but(own, other.chars().take(80).collect::<String>()).into());
    }
    Ok(named.unwrap_or(own).into())
}

fn words(words: Vec<String>) -> Vec<Str> {
    words.into_iter().map(Into::into).collect()
}

/// The boundary that the path names, of this namespace and kind.
async fn find(call: &Call, kind: ManualKind) -> Result<(Run, Manual), Refused> {
    let id: BoundaryId = call.id("boundary")?;
    let missing = || Problem::not_found(format_args!("{kind} {id}"));
    let run = match call.find(id.run).await {
        Ok(run) => run,
        Err(Refused(problem)) if problem.code == "not_found" => return Err(missing().into()),
        Err(other) => return Err(other),
    };
    let manual = run.manual(id.op).filter(|manual| manual.asked.kind == kind).cloned().ok_or_else(missing)?;
    Ok((run, manual))
}

async fn show(call: Call, kind: ManualKind) -> Answered {
    let (run, manual) = find(&call, kind).await?;
    json(&Boundary::of(run.boundary_id(&manual), &run.started.spec.workflow, &manual))
}

async fn list(call: Call, kind: ManualKind) -> Answered {
    let mut filter = Filter::default();
    // One that is in doubt about an effect may ask for a person as well.
    filter.statuses = vec![Status::AwaitingDecision, Status::InDoubt];
    let (found, next) = listed(&call, filter).await?;
    let mut boundaries = Vec::new();
    for listed in found {
        let run = match call.find(listed.run).await {
            Ok(run) => run,
            // It went on and was removed since it was listed.
            Err(Refused(problem)) if problem.code == "not_found" => continue,
            Err(other) => return Err(other),
        };
        let open = run.boundary().filter(|manual| manual.asked.kind == kind && is_wanted(&call, manual));
        boundaries.extend(open.map(|manual| Boundary::of(run.boundary_id(manual), &run.started.spec.workflow, manual)));
    }
    json(&BoundaryPage { boundaries, next })
}

fn is_wanted(call: &Call, manual: &Manual) -> bool {
    let roles = &manual.asked.roles;
    call.asked("assignee").is_none_or(|wanted| manual.assignee.as_deref() == Some(wanted))
        && call.asked("role").is_none_or(|wanted| roles.is_empty() || roles.iter().any(|role| **role == *wanted))
}

async fn decide(call: Call, kind: ManualKind, choice: Choice) -> Answered {
    let said: Decide = call.body()?;
    let (run, manual) = find(&call, kind).await?;
    let id = run.boundary_id(&manual);
    say(&call, id, choice, said).await
}

async fn say(call: &Call, id: BoundaryId, choice: Choice, said: Decide) -> Answered {
    let BoundaryId { run, op } = id;
    let deciding = Deciding {
        op,
        choice,
        actor: actor(call, said.actor.as_deref())?,
        roles: words(said.roles),
        note: said.note.map(Into::into),
        payload: said.payload,
        request: call.request(),
    };
    recorded(&call.ask(run.slot(), Command::Decide { run, deciding: Box::new(deciding) }).await?)
}

async fn assign(call: Call, actor: Str, to: Option<Str>, said: Assign) -> Answered {
    let (run, manual) = find(&call, ManualKind::Task).await?;
    let BoundaryId { run, op } = run.boundary_id(&manual);
    let assigning = Assigning {
        op,
        to,
        actor,
        roles: words(said.roles),
        note: said.note.map(Into::into),
        take_over: said.take_over,
        request: call.request(),
    };
    recorded(&call.ask(run.slot(), Command::Assign { run, assigning: Box::new(assigning) }).await?)
}
