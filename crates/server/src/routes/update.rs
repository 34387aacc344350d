//! Asking a run to do something.

use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Told};
use abide_kernel::transition::update::Requesting;
use abide_kernel::{Refusal, Reply};
use abide_protocol::{Error, Problem, Update, Updated};

use crate::answer::{Answered, json, unexpected};
use crate::call::Call;

/// How long the answer is waited for, unless it is said otherwise.
const WAIT: Duration = Duration::from_secs(30);

/// First it is asked, which is durable; then its answer is waited for, under the same request.
pub(crate) async fn ask(call: Call) -> Answered {
    let Update { name, input, dedup, wait_ms } = call.body()?;
    let found = call.run().await?;
    let (run, spec) = (found.id, &found.started.spec);
    if call.engine.replays(&spec.workflow, spec.version) == Some(false) {
        let detail = format!("{run} is a run of the machine {:?}, and only functions take updates", spec.workflow);
        return Err(Problem::new("no_updates", detail).into());
    }
    let asked = Requesting { name: name.into(), input, dedup: dedup.map(Into::into), request: call.request() };
    let command = |told| Command::Update { run, asked: Box::new(asked.clone()), told };
    let (update, duplicate) = match call.ask(run.slot(), command(Told::Accepted)).await? {
        Answer::Requested(accepted) => (accepted.update, accepted.duplicate),
        other => return Err(unexpected(&other)),
    };
    let wait = wait_ms.map_or(WAIT, Duration::from_millis);
    match call.within(wait, call.engine.ask(run.slot(), command(Told::Answered))).await.transpose()? {
        Some(Answer::Answered(Reply::Value(value))) => {
            json(&Updated { run, update, answered: true, duplicate, answer: Some(value) })
        }
        Some(Answer::Answered(Reply::Rejected(error))) => {
            let mut problem =
                Problem::new("update_rejected", format!("{run} rejected update {:?}: {error}", asked.name));
            problem.error = Some(Error::from(&*error));
            Err(problem.into())
        }
        None | Some(Answer::Refused(Refusal::Unknown)) => {
            json(&Updated { run, update, answered: false, duplicate, answer: None })
        }
        Some(other) => Err(unexpected(&other)),
    }
}
