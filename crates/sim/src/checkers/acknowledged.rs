//! What was acknowledged is there, and stays.

use abide::{Fact, RunId, Status};
use abide_kernel::{Reply, UpdateState};

use super::{Told, View};
use crate::Violation;
use crate::truth::{Acknowledged, Truth};

pub(crate) fn check(view: &View, truth: &Truth) -> Result<(), Violation> {
    truth.acknowledged.iter().try_for_each(|what| holds(view, truth, what))
}

/// The run, if its record was not removed. A late twin of its start may have begun it anew since: to that life nothing is
/// owed of the first.
fn run<'a>(view: &'a View, truth: &Truth, id: RunId) -> Result<Option<&'a Told>, Violation> {
    match view.runs.get(&id) {
        _ if truth.purged.contains(&id) => Ok(None),
        None => Err(format!("acknowledged: {id} is lost")),
        found => Ok(found),
    }
}

fn holds(view: &View, truth: &Truth, what: &Acknowledged) -> Result<(), Violation> {
    let compacted = |told: &Told| told.run.compacted.0 > 0;
    let has = |told: &Told, wanted: &dyn Fn(&Fact) -> bool| {
        compacted(told) || told.rows.iter().flat_map(|row| &row.facts).any(wanted)
    };
    match what {
        Acknowledged::Started { run: id, workflow, input, .. } => match run(view, truth, *id)? {
            Some(told) => {
                let spec = &told.run.started.spec;
                if *spec.workflow == **workflow && spec.input.text() == input.to_string() {
                    return Ok(());
                }
                Err(format!("acknowledged: {id} is not {workflow} of {input}, as was asked for"))
            }
            None => Ok(()),
        },
        Acknowledged::Purged { run: id } => run(view, truth, *id).map(|_| ()),
        Acknowledged::Decided { run: id } => match run(view, truth, *id)? {
            Some(told) if !has(told, &|fact| matches!(fact, Fact::Decided(_))) => {
                Err(format!("acknowledged: what was decided of {id} is lost"))
            }
            _ => Ok(()),
        },
        Acknowledged::Signalled { run: id, dedup } => match run(view, truth, *id)? {
            Some(told)
                if !has(
                    told,
                    &|fact| matches!(fact, Fact::SignalReceived(signal) if signal.dedup.as_deref() == Some(dedup)),
                ) =>
            {
                Err(format!("acknowledged: signal {dedup} of {id} is lost"))
            }
            _ => Ok(()),
        },
        Acknowledged::Reported { run: id, claim } => match run(view, truth, *id)? {
            Some(told) if !has(told, &|fact| ends(fact, *claim)) => {
                Err(format!("acknowledged: what was reported of claim {claim} of {id} is lost"))
            }
            _ => Ok(()),
        },
        Acknowledged::Cancelled { run: id } => match run(view, truth, *id)? {
            Some(told) if told.run.end.is_none() && told.run.cancelling.is_none() => {
                Err(format!("acknowledged: the cancellation of {id} is lost"))
            }
            _ => Ok(()),
        },
        Acknowledged::Updated { run: id, dedup, answer } => match run(view, truth, *id)? {
            Some(told) => {
                let known = told.run.updates.iter().find(|update| update.dedup.as_deref() == Some(dedup));
                match known.map(|update| &update.state) {
                    Some(UpdateState::Answered { reply: Reply::Value(value), .. })
                        if value.text() == answer.to_string() =>
                    {
                        Ok(())
                    }
                    found => Err(format!("acknowledged: the answer {answer} to {dedup} of {id} is now {found:?}")),
                }
            }
            None => Ok(()),
        },
        Acknowledged::Ended { run: id, result } => match run(view, truth, *id)? {
            Some(told) if told.run.status() != Status::Done => Err(format!("acknowledged: {id} had ended well")),
            Some(told) if told.run.result.as_ref().map(|found| found.text()) != Some(result) => {
                Err(format!("acknowledged: the result of {id} was {result}, and is {:?}", told.run.result))
            }
            _ => Ok(()),
        },
        Acknowledged::Resolved { run: id, key, .. } => match run(view, truth, *id)? {
            Some(told) if !has(told, &|fact| matches!(fact, Fact::Resolved(_))) => {
                Err(format!("acknowledged: what became of {key} of {id} is lost"))
            }
            _ => Ok(()),
        },
    }
}

/// Whether a fact says how an attempt under this claim ended.
fn ends(fact: &Fact, claim: u32) -> bool {
    match fact {
        Fact::Completed(completed) => completed.claim == claim,
        Fact::Failed(failed) => failed.claim == claim,
        _ => false,
    }
}
