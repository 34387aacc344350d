//! What each operation does: one file per verb or noun.

mod audit;
mod cancel;
mod dead_letter;
mod effect;
mod journal;
mod metrics;
mod node;
mod people;
mod queue;
mod result;
mod run;
mod session;
mod signal;
mod start;
mod tail;
mod token;
mod update;
mod user;
mod worker;
mod workflow;

use abide_protocol::Operation as Do;

use crate::answer::Answered;
use crate::call::Call;

pub use node::shown_nodes;
pub use queue::{shown_queue, shown_rule};

/// Carries out what is asked.
pub(crate) async fn perform(call: Call) -> Answered {
    match call.operation {
        Do::RunStart => start::one(call).await,
        Do::RunStartMany => start::many(call).await,
        Do::RunList => run::list(call).await,
        Do::RunShow => run::show(call).await,
        Do::RunRecord => run::record(call).await,
        Do::RunJournal => journal::read(call).await,
        Do::RunExplain => run::explain(call).await,
        Do::RunEffects => effect::of_run(call).await,
        Do::RunState => journal::state(call).await,
        Do::RunResult => result::wait(call).await,
        Do::RunEvents => tail::run(call).await,
        Do::RunProgress => run::progress(call).await,
        Do::RunSignal => signal::send(call).await,
        Do::RunUpdate => update::ask(call).await,
        Do::RunCancel => cancel::cancel(call).await,
        Do::RunResume => people::resume(call).await,
        Do::RunCompact => run::compact(call).await,
        Do::RunPurge => run::purge(call).await,
        Do::EffectList => effect::in_doubt(call).await,
        Do::EffectResolve => effect::resolve(call).await,
        Do::ApprovalList => people::approvals(call).await,
        Do::ApprovalShow => people::approval(call).await,
        Do::ApprovalApprove => people::approve(call).await,
        Do::ApprovalReject => people::reject(call).await,
        Do::TaskList => people::tasks(call).await,
        Do::TaskShow => people::task(call).await,
        Do::TaskClaim => people::claim(call).await,
        Do::TaskRelease => people::release(call).await,
        Do::TaskComplete => people::complete(call).await,
        Do::DeadLetterList => dead_letter::runs(call).await,
        Do::DeadLetterRequeue => dead_letter::requeue_run(call).await,
        Do::DeadLetterDiscard => dead_letter::discard_run(call).await,
        Do::LetterList => dead_letter::letters(call).await,
        Do::LetterRequeue => dead_letter::requeue(call).await,
        Do::LetterDiscard => dead_letter::discard(call).await,
        Do::WorkerClaim => worker::claim(call).await,
        Do::WorkerReport => worker::report(call).await,
        Do::WorkerList => worker::list(call).await,
        Do::EventList => tail::namespace(call).await,
        Do::QueueList => queue::list(call).await,
        Do::QueuePause => queue::pause(call).await,
        Do::QueueResume => queue::resume(call).await,
        Do::QueueLimit => queue::limit(call).await,
        Do::WorkflowList => workflow::list(call).await,
        Do::NodeList => node::list(call).await,
        Do::NodeDrain => node::drain(call, true).await,
        Do::NodeResume => node::drain(call, false).await,
        Do::TokenList => token::list(call).await,
        Do::TokenCreate => token::create(call).await,
        Do::TokenRevoke => token::revoke(call).await,
        Do::UserList => user::list(call).await,
        Do::UserCreate => user::create(call).await,
        Do::UserRemove => user::remove(call).await,
        Do::UserPassword => user::password(call).await,
        Do::SessionBegin => session::begin(call).await,
        Do::SessionShow => session::show(&call),
        Do::SessionEnd => session::end(call).await,
        Do::AuditList => audit::list(call).await,
        Do::Limits => audit::limits(&call),
        Do::Metrics => metrics::count(call).await,
        Do::Health => node::health(),
        Do::Ready => node::ready(&call),
        Do::OpenApi => node::openapi(),
    }
}
