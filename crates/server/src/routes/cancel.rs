//! Ending runs from outside.

use std::sync::Arc;

use abide_kernel::ErrorInfo;
use abide_kernel::shard::{Answer, Command};
use abide_protocol::{Cancel, Recorded};

use crate::answer::{Answered, json, unexpected};
use crate::call::Call;

pub(crate) async fn cancel(call: Call) -> Answered {
    let Cancel { reason, cascade } = call.body()?;
    let run = call.run().await?.id;
    let words = if reason.is_empty() { format!("by {}", call.principal.name) } else { reason };
    let reason = Arc::new(ErrorInfo::terminal("cancelled", &words));
    let command = Command::Cancel { run, request: call.request(), cascade, reason };
    recorded(&call.ask(run.slot(), command).await?)
}

/// What a command came to that is recorded or not.
pub(crate) fn recorded(answer: &Answer) -> Answered {
    match answer {
        Answer::Recorded { rev, duplicate } => json(&Recorded { rev: rev.0, duplicate: *duplicate }),
        other => Err(unexpected(other)),
    }
}
