//! Signals to runs.

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_protocol::{Signal, Signalled};

use crate::answer::{Answered, json, unexpected};
use crate::call::Call;

pub(crate) async fn send(call: Call) -> Answered {
    let Signal { name, payload, dedup } = call.body()?;
    let run = call.run().await?.id;
    let sent = Sent { name: name.into(), payload, dedup: dedup.map(Into::into), request: call.request() };
    match call.ask(run.slot(), Command::Signal { run, sent: Box::new(sent) }).await? {
        Answer::Signalled(accepted) => json(&Signalled { signal: accepted.signal, duplicate: accepted.duplicate }),
        other => Err(unexpected(&other)),
    }
}
