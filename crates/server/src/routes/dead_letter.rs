//! Dead letters: runs whose attempt was set aside, and messages between runs.

use abide_kernel::shard::{Command, Settling};
use abide_kernel::{LetterId, RunId, Status};
use abide_protocol::{DeadAttempt, DeadLetterPage, Instant, Letter, Letters};
use abide_store::{DeadLetterItem, Filter};

use super::cancel::recorded;
use super::run::{listed, summary};
use crate::answer::{Answered, Refused, done, internal, json};
use crate::call::{Call, in_time};

pub(crate) async fn runs(call: Call) -> Answered {
    let mut filter = Filter::default();
    filter.statuses = vec![Status::DeadLettered];
    let (found, next) = listed(&call, filter).await?;
    let mut attempts = Vec::new();
    for listed in &found {
        match call.find(listed.run).await {
            Ok(run) => attempts.extend(DeadAttempt::of(&run)),
            // It was given up and removed since it was listed.
            Err(Refused(problem)) if problem.code == "not_found" => {}
            Err(other) => return Err(other),
        }
    }
    json(&DeadLetterPage { runs: found.iter().map(summary).collect(), attempts, next })
}

pub(crate) async fn requeue_run(call: Call) -> Answered {
    settle_run(call, |run| Command::Requeue { run }).await
}

pub(crate) async fn discard_run(call: Call) -> Answered {
    settle_run(call, |run| Command::Discard { run }).await
}

async fn settle_run(call: Call, command: impl FnOnce(RunId) -> Command) -> Answered {
    let run = call.run().await?.id;
    recorded(&call.ask(run.slot(), command(run)).await?)
}

pub(crate) async fn letters(call: Call) -> Answered {
    let items = call.blocking(|engine| engine.dead_letters()).await??;
    let letters = items.iter().map(letter).collect::<Result<_, _>>()?;
    json(&Letters { letters })
}

fn letter(item: &DeadLetterItem) -> Result<Letter, Refused> {
    Ok(Letter {
        letter: item.id,
        at: Instant(item.at),
        node: item.node.clone(),
        reason: item.dead.reason.to_string(),
        message: serde_json::to_value(&item.dead.envelope).map_err(|error| internal(&error))?,
    })
}

pub(crate) async fn requeue(call: Call) -> Answered {
    settle(call, Settling::Requeue).await
}

pub(crate) async fn discard(call: Call) -> Answered {
    settle(call, Settling::Discard).await
}

async fn settle(call: Call, how: Settling) -> Answered {
    let letter: LetterId = call.id("letter")?;
    in_time(call.engine.settle(letter, how)).await??;
    Ok(done())
}
