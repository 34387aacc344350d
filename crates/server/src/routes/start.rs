//! Starting runs.

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::start::StartAnswer as Begun;
use abide_kernel::{Concurrency, OnConflict as Conflict, Refusal, RequestId, StartSpec, StatusSet, UniqueKey, limits};
use abide_protocol::{Admission, OnConflict, Problem, Start, StartAnswer, StartMany, Started, StartedMany};

use crate::answer::{Answered, Refused, json, unexpected};
use crate::call::{Call, in_time};

pub(crate) async fn one(call: Call) -> Answered {
    let spec = spec(&call, call.body()?);
    let request = call.request();
    let command = Command::Start { request, spec: Box::new(spec.clone()) };
    json(&begun(call.ask(spec.admission_slot(request), command).await?)?)
}

/// One answer each: what is wrong with one says nothing of the others.
pub(crate) async fn many(call: Call) -> Answered {
    let StartMany { runs } = call.body()?;
    let (found, most) = (runs.len() as u64, limits::BATCH_STARTS_MAX);
    if runs.len() > most {
        return Err(Refusal::TooLarge { what: "runs in one batch".into(), limit: most as u64, found }.into());
    }
    let request = call.request();
    let specs = runs.into_iter().map(|start| spec(&call, start));
    let commands: Vec<_> = (0u64..).zip(specs).map(|(index, spec)| command(request.derive(index), spec)).collect();
    let answers = in_time(call.engine.ask_many_until_known(commands)).await??;
    let answers = answers.into_iter().map(|answer| match begun(answer) {
        Ok(started) => StartAnswer { started: Some(started), problem: None },
        Err(Refused(problem)) => StartAnswer { started: None, problem: Some(problem) },
    });
    json(&StartedMany { answers: answers.collect() })
}

fn command(request: RequestId, spec: StartSpec) -> (abide_kernel::Slot, Command) {
    (spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) })
}

/// What the kernel is asked. A workflow that this node does not know is pinned at its first claim, by whoever does.
pub(super) fn spec(call: &Call, start: Start) -> StartSpec {
    let now = call.engine.now();
    let mut spec = StartSpec::new(&start.workflow, start.input);
    spec.namespace = call.namespace();
    spec.version = start.version.unwrap_or(1);
    if let Some(queue) = start.queue {
        spec.queue = queue.into();
    }
    spec.priority = start.priority;
    spec.concurrency = start.concurrency.map(|given| Concurrency { key: given.key.into(), limit: given.limit });
    spec.eligible_at = start.eligible_at.map(|at| at.0).or_else(|| start.delay_ms.map(|ms| now.after(ms)));
    spec.deadline = start.deadline_ms.map(|ms| now.after(ms));
    spec.labels = start.labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    spec.deliveries_max = start.deliveries_max;
    spec.trace = start.traceparent.or(call.trace);
    spec.key = start.key.map(|key| UniqueKey {
        key: key.into(),
        occupied: if start.occupied.is_empty() { StatusSet::OPEN } else { StatusSet::of(&start.occupied) },
        on_conflict: match start.on_conflict {
            OnConflict::Reject => Conflict::Reject,
            OnConflict::Reuse => Conflict::Reuse,
        },
    });
    // Which versions there are is known of this node, and of workers that were here lately.
    if call.engine.plan(&mut spec, start.version).is_err() && start.version.is_none() {
        spec.version = call.engine.newest(&spec.namespace, &spec.workflow).unwrap_or(spec.version);
    }
    spec
}

fn begun(answer: Answer) -> Result<Started, Refused> {
    match answer {
        Answer::Started(Begun::Created(run)) => Ok(Started { run, admission: Admission::Created }),
        Answer::Started(Begun::Reused(run)) => Ok(Started { run, admission: Admission::Reused }),
        Answer::Started(Begun::Rejected { by, reason }) => {
            Err(Problem::new(reason.name(), format!("the key is taken by {by}")).about(by).into())
        }
        other => Err(unexpected(&other)),
    }
}
