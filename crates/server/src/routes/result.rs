//! Waiting for the end of a run.

use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Ending as Ended};
use abide_protocol::{Ending, Error};

use crate::answer::{Answered, json, unexpected};
use crate::call::Call;

pub(crate) async fn wait(call: Call) -> Answered {
    let wait = Duration::from_millis(call.number("wait_ms").unwrap_or(0));
    let run = call.run().await?;
    if run.end.is_some() || wait.is_zero() {
        return json(&Ending::of(&run));
    }
    let watch = Command::Watch { run: run.id };
    let came = call.within(wait, call.engine.ask(run.id.slot(), watch)).await.transpose()?;
    call.still_known().await?;
    match came {
        Some(Answer::Ended(ended)) => json(&ending(&ended)),
        // Not yet, or who serves the run has changed: whoever asks, asks again.
        None | Some(Answer::Refused(abide_kernel::Refusal::Unknown)) => json(&Ending::of(&call.find(run.id).await?)),
        Some(other) => Err(unexpected(&other)),
    }
}

fn ending(ended: &Ended) -> Ending {
    Ending {
        run: ended.run,
        status: ended.status,
        ended: true,
        result: ended.result.clone(),
        error: ended.error.as_deref().map(Error::from),
    }
}
