//! The routes: one table says of each what it needs, takes and answers. The server, the OpenAPI document and the tests
//! are made from it.

use crate::limits::{PAGE_MAX, ROWS_MAX, WAIT_MS_MAX};
use crate::{
    Assign, Audit, Boundary, BoundaryPage, Bounds, Cancel, ClaimWork, Claims, CreateToken, CreateUser, CreatedToken,
    DeadLetterPage, Decide, EffectPage, Effects, Ending, Explanation, Following, Happened, Health, Journal, JournalRow,
    Letters, Login, Method, NewPassword, Nodes, Operation, PREFIX, Progress, ProgressPage, QueueHeld, QueueLimits,
    Queues, Reach, Ready, Recorded, Reported, Reports, Reset, Resolve, Route, Run, RunPage, RunRecord, Scope, Session,
    Signal, Signalled, Start, StartMany, Started, StartedMany, State, Tokens, Update, Updated, User, Users, Workers,
    Workflows,
};

/// What may be wrong with any command about a run.
const COMMAND: &[&str] = &["not_found", "run_over", "cancelling", "invalid", "busy", "corrupt"];
const PERSON: &[&str] = &[
    "not_found",
    "invalid",
    "run_over",
    "stale_boundary",
    "already_decided",
    "decision_late",
    "not_assignee",
    "wrong_role",
    "busy",
    "corrupt",
];
const LOOK: &[&str] = &["not_found", "corrupt"];

/// Every route.
#[must_use]
pub fn routes() -> Vec<Route> {
    [
        runs(),
        tails(),
        asks(),
        effects(),
        approvals(),
        tasks(),
        dead_letters(),
        workers(),
        queues(),
        store(),
        users(),
        server(),
    ]
    .concat()
}

fn runs() -> Vec<Route> {
    use Method::{Get, Post};
    use Operation as Do;
    let read = |operation, path| Route::within(operation, Get, path, Scope::Read);
    vec![
        Route::within(Do::RunStart, Post, "/runs", Scope::Start)
            .says("Start a run")
            .takes::<Start>()
            .answers::<Started>()
            .status(201)
            .idempotent()
            .problems(&["invalid", "key_taken", "other_input", "busy"]),
        Route::within(Do::RunStartMany, Post, "/runs/batch", Scope::Start)
            .says("Start many runs: one answer each")
            .takes::<StartMany>()
            .answers::<StartedMany>()
            .idempotent()
            .problems(&["invalid", "busy"]),
        read(Do::RunList, "/runs")
            .says("List runs, newest first")
            .text("workflow", "runs of this workflow")
            .text("status", "runs in one of these statuses, separated by commas; open means all that are not over")
            .text("queue", "runs in this queue")
            .text("key", "runs with this business key")
            .run("parent", "children of this run")
            .label("label", "runs with this label, name=value; given more than once, with all of them")
            .instant("created_after", "runs that were started at this instant or after it")
            .instant("created_before", "runs that were started before this instant")
            .instant("updated_after", "runs that last changed at this instant or after it")
            .instant("updated_before", "runs that last changed before this instant")
            .paged()
            .answers::<RunPage>(),
        read(Do::RunShow, "/runs/{run}").says("Show a run").answers::<Run>().problems(LOOK),
        read(Do::RunRecord, "/runs/{run}/record")
            .says("Show a run whole, as its journal folds to it")
            .answers::<RunRecord>()
            .problems(LOOK),
        read(Do::RunJournal, "/runs/{run}/journal")
            .says("Show what became true of a run, in order")
            .number("from", 0, u64::MAX, "from this revision on; 1 if absent")
            .number("limit", 1, ROWS_MAX, "at most so many rows; 1000 if absent")
            .answers::<Journal>()
            .problems(LOOK),
        read(Do::RunExplain, "/runs/{run}/explain")
            .says("Say why a run does not move")
            .answers::<Explanation>()
            .problems(LOOK),
        read(Do::RunEffects, "/runs/{run}/effects")
            .says("List the outside work of a run")
            .answers::<Effects>()
            .problems(LOOK),
        read(Do::RunState, "/runs/{run}/state")
            .says("Show the state of a run, now or at a revision")
            .number("rev", 0, u64::MAX, "at this revision; the last if absent")
            .answers::<State>()
            .problems(&["not_found", "invalid", "corrupt"]),
        read(Do::RunProgress, "/runs/{run}/progress")
            .says("Show what the steps of a run say of their progress")
            .number("after", 0, u64::MAX, "only what was said after this number; all that is kept if absent")
            .answers::<ProgressPage>()
            .problems(LOOK),
        read(Do::RunResult, "/runs/{run}/result")
            .says("Wait for the end of a run")
            .number("wait_ms", 0, WAIT_MS_MAX, "how long to wait, in milliseconds; not at all if absent")
            .answers::<Ending>()
            .problems(LOOK),
    ]
}

/// What lasts, unless it is said how long.
const FOR_MS: &str = "ends the stream after so many milliseconds; it lasts if absent";

fn tails() -> Vec<Route> {
    use Operation as Do;
    let tail = |operation, path| {
        Route::within(operation, Method::Get, path, Scope::Read).number("for_ms", 0, u64::MAX, FOR_MS)
    };
    vec![
        tail(Do::RunEvents, "/runs/{run}/events")
            .says("Follow a run to its end: each row of its journal, as it becomes true")
            .number("after", 0, u64::MAX, "only what comes after this revision; Last-Event-ID goes before it")
            .tells::<JournalRow>("row")
            .tells::<Progress>("progress")
            .tells::<Ending>("end")
            .tells::<Reset>("reset")
            .problems(&["not_found", "invalid", "corrupt"]),
        tail(Do::EventList, "/events")
            .says("Follow a namespace: what becomes true of its runs")
            .text("after", "only what comes after this event; Last-Event-ID goes before it; from now on if absent")
            .tells::<Following>("following")
            .tells::<Happened>("happened")
            .tells::<Reset>("reset")
            .problems(&["invalid"]),
    ]
}

fn asks() -> Vec<Route> {
    use Method::Post;
    use Operation as Do;
    vec![
        Route::within(Do::RunSignal, Post, "/runs/{run}/signals", Scope::Signal)
            .says("Send a signal to a run")
            .takes::<Signal>()
            .answers::<Signalled>()
            .idempotent()
            .problems(COMMAND),
        Route::within(Do::RunUpdate, Post, "/runs/{run}/updates", Scope::Signal)
            .says("Ask a run to do something, and wait for its answer")
            .takes::<Update>()
            .answers::<Updated>()
            .idempotent()
            .problems(&[
                "not_found",
                "run_over",
                "cancelling",
                "invalid",
                "busy",
                "unanswered",
                "update_rejected",
                "no_updates",
                "corrupt",
            ]),
        Route::within(Do::RunCancel, Post, "/runs/{run}/cancel", Scope::Operate)
            .says("End a run from outside")
            .may_take::<Cancel>()
            .answers::<Recorded>()
            .idempotent()
            .problems(COMMAND),
        Route::within(Do::RunResume, Post, "/runs/{run}/resume", Scope::Operate)
            .says("Let a paused run go on")
            .may_take::<Decide>()
            .answers::<Recorded>()
            .idempotent()
            .problems(PERSON),
        Route::within(Do::RunCompact, Post, "/runs/{run}/compact", Scope::Admin)
            .says("Let a run's journal begin anew with the run as it stands; what was before goes for good")
            .answers::<Recorded>()
            .problems(&["not_found", "busy", "corrupt"]),
        Route::within(Do::RunPurge, Post, "/runs/{run}/purge", Scope::Admin)
            .says("Remove the record of a run that has ended, for good")
            .answers::<Recorded>()
            .problems(&["not_found", "run_open", "busy", "corrupt"]),
    ]
}

fn effects() -> Vec<Route> {
    use Operation as Do;
    vec![
        Route::within(Do::EffectList, Method::Get, "/effects", Scope::Read)
            .says("List effects in doubt")
            .paged()
            .answers::<EffectPage>(),
        Route::within(Do::EffectResolve, Method::Post, "/runs/{run}/effects/resolve", Scope::Operate)
            .says("Say what became of an effect that is in doubt")
            .takes::<Resolve>()
            .answers::<Recorded>()
            .idempotent()
            .problems(&[
                "not_found",
                "run_over",
                "no_effect",
                "not_in_doubt",
                "wrong_interrupt",
                "wrong_role",
                "invalid",
                "busy",
                "corrupt",
            ]),
    ]
}

/// What lists take that are about people.
fn listing(operation: Operation, path: &str) -> Route {
    Route::within(operation, Method::Get, path, Scope::Read)
        .text("assignee", "only what is assigned to this person")
        .text("role", "only what asks for this role, or for none")
        .paged()
        .answers::<BoundaryPage>()
}

fn approvals() -> Vec<Route> {
    use Operation as Do;
    let decide = |operation, path| {
        Route::within(operation, Method::Post, path, Scope::Operate)
            .may_take::<Decide>()
            .answers::<Recorded>()
            .idempotent()
            .problems(PERSON)
    };
    vec![
        listing(Do::ApprovalList, "/approvals").says("List decisions that people are asked for"),
        Route::within(Do::ApprovalShow, Method::Get, "/approvals/{boundary}", Scope::Read)
            .says("Show a decision, open or over")
            .answers::<Boundary>()
            .problems(LOOK),
        decide(Do::ApprovalApprove, "/approvals/{boundary}/approve").says("Say yes"),
        decide(Do::ApprovalReject, "/approvals/{boundary}/reject").says("Say no"),
    ]
}

fn tasks() -> Vec<Route> {
    use Operation as Do;
    let assign = |operation, path| {
        Route::within(operation, Method::Post, path, Scope::Operate)
            .may_take::<Assign>()
            .answers::<Recorded>()
            .idempotent()
            .problems(PERSON)
    };
    vec![
        listing(Do::TaskList, "/tasks").says("List work for people"),
        Route::within(Do::TaskShow, Method::Get, "/tasks/{boundary}", Scope::Read)
            .says("Show a task, open or over")
            .answers::<Boundary>()
            .problems(LOOK),
        assign(Do::TaskClaim, "/tasks/{boundary}/claim").says("Take a task, or hand it on"),
        assign(Do::TaskRelease, "/tasks/{boundary}/release").says("Give a task back"),
        Route::within(Do::TaskComplete, Method::Post, "/tasks/{boundary}/complete", Scope::Operate)
            .says("Hand in the result of a task")
            .may_take::<Decide>()
            .answers::<Recorded>()
            .idempotent()
            .problems(PERSON),
    ]
}

fn dead_letters() -> Vec<Route> {
    use Method::{Get, Post};
    use Operation as Do;
    const ATTEMPT: &[&str] = &["not_found", "not_dead_lettered", "run_over", "corrupt"];
    vec![
        Route::within(Do::DeadLetterList, Get, "/dead-letters", Scope::Read)
            .says("List runs whose attempt was set aside")
            .paged()
            .answers::<DeadLetterPage>(),
        Route::within(Do::DeadLetterRequeue, Post, "/dead-letters/{run}/requeue", Scope::Operate)
            .says("Put a run's attempt back in line")
            .answers::<Recorded>()
            .problems(ATTEMPT),
        Route::within(Do::DeadLetterDiscard, Post, "/dead-letters/{run}/discard", Scope::Operate)
            .says("Give up a run whose attempt was set aside")
            .answers::<Recorded>()
            .problems(ATTEMPT),
        Route::over(Do::LetterList, Get, "/dead-letters", Reach::Everywhere, Scope::Read)
            .says("List messages between runs that were set aside")
            .answers::<Letters>(),
        Route::over(Do::LetterRequeue, Post, "/dead-letters/{letter}/requeue", Reach::Everywhere, Scope::Operate)
            .says("Put a message back in line")
            .status(204)
            .problems(&["no_letter"]),
        Route::over(Do::LetterDiscard, Post, "/dead-letters/{letter}/discard", Reach::Everywhere, Scope::Operate)
            .says("Give up a message")
            .status(204)
            .problems(&["no_letter"]),
    ]
}

fn workers() -> Vec<Route> {
    use Method::{Get, Post};
    use Operation as Do;
    let worker = || Scope::Worker(Scope::ANY.to_owned());
    vec![
        Route::within(Do::WorkerClaim, Post, "/worker/claims", worker())
            .says("Take attempts of queues, as a worker")
            .takes::<ClaimWork>()
            .answers::<Claims>()
            .problems(&["invalid", "busy"]),
        Route::within(Do::WorkerReport, Post, "/worker/reports", worker())
            .says("Say what came of attempts, and perhaps take more")
            .takes::<Reports>()
            .answers::<Reported>()
            .problems(&["invalid", "too_large"]),
        Route::within(Do::WorkerList, Get, "/workers", Scope::Read)
            .says("List workers that were here lately")
            .answers::<Workers>(),
        Route::within(Do::WorkflowList, Get, "/workflows", Scope::Read)
            .says("List what can be executed: by the node itself, or by workers that were here lately")
            .answers::<Workflows>(),
    ]
}

fn queues() -> Vec<Route> {
    use Operation as Do;
    let change = |operation, method, path| {
        Route::within(operation, method, path, Scope::Operate).answers::<QueueHeld>().problems(&["invalid"])
    };
    vec![
        Route::within(Do::QueueList, Method::Get, "/queues", Scope::Read)
            .says("List queues: how much waits in them, and what holds for them")
            .answers::<Queues>(),
        change(Do::QueuePause, Method::Post, "/queues/{queue}/pause").says("Let nothing of a queue begin"),
        change(Do::QueueResume, Method::Post, "/queues/{queue}/resume").says("Let a queue that was paused go on"),
        change(Do::QueueLimit, Method::Put, "/queues/{queue}/limits")
            .says("Say what a queue may do at most, in place of what was said before")
            .takes::<QueueLimits>(),
    ]
}

fn store() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use Operation as Do;
    let node = |operation, path| {
        Route::over(operation, Post, path, Reach::Everywhere, Scope::Operate).status(204).problems(&["not_found"])
    };
    vec![
        Route::over(Do::NodeList, Get, "/nodes", Reach::Everywhere, Scope::Read)
            .says("List the nodes that share the store")
            .answers::<Nodes>(),
        node(Do::NodeDrain, "/nodes/{process}/drain").says("Have a node hand its shards to others and take none"),
        node(Do::NodeResume, "/nodes/{process}/resume").says("Have a node that drains take its share again"),
        Route::over(Do::TokenList, Get, "/tokens", Reach::Everywhere, Scope::Admin)
            .says("List tokens, without their secrets")
            .answers::<Tokens>(),
        Route::over(Do::TokenCreate, Post, "/tokens", Reach::Everywhere, Scope::Admin)
            .says("Make a token; its secret is shown this once")
            .takes::<CreateToken>()
            .answers::<CreatedToken>()
            .status(201)
            .idempotent()
            .problems(&["invalid"]),
        Route::over(Do::TokenRevoke, Delete, "/tokens/{token}", Reach::Everywhere, Scope::Admin)
            .says("End a token at once")
            .status(204)
            .problems(&["not_found"]),
        Route::over(Do::AuditList, Get, "/audit", Reach::Everywhere, Scope::Admin)
            .says("List who changed what, newest first")
            .number("limit", 1, PAGE_MAX, "at most so many changes; 50 if absent")
            .text("before", "only changes older than this one: what the page before has as next")
            .answers::<Audit>(),
        Route::over(Do::Limits, Get, "/limits", Reach::Anywhere, Scope::Read)
            .says("Show what this server takes at most")
            .answers::<Bounds>(),
    ]
}

fn users() -> Vec<Route> {
    use Method::{Delete, Get, Post, Put};
    use Operation as Do;
    let over = |operation, method, path| Route::over(operation, method, path, Reach::Everywhere, Scope::Admin);
    let session = |operation, method, reach| Route::new(operation, method, format!("{PREFIX}/session"), reach, None);
    vec![
        over(Do::UserList, Get, "/users").says("List users, without their passwords").answers::<Users>(),
        over(Do::UserCreate, Post, "/users")
            .says("Make a user, who can begin sessions")
            .takes::<CreateUser>()
            .answers::<User>()
            .status(201)
            .idempotent()
            .problems(&["invalid", "user_exists"]),
        over(Do::UserRemove, Delete, "/users/{user}")
            .says("Remove a user, whose sessions end at once")
            .status(204)
            .problems(&["not_found"]),
        over(Do::UserPassword, Put, "/users/{user}/password")
            .says("Give a user another password; all sessions of the old one end at once")
            .takes::<NewPassword>()
            .status(204)
            .problems(&["invalid", "not_found"]),
        session(Do::SessionBegin, Post, Reach::Open)
            .says("Begin a session, in a cookie, with a name and a password")
            .takes::<Login>()
            .answers::<Session>()
            .problems(&["login_failed", "too_many_logins", "store_unavailable", "corrupt", "unknown"]),
        session(Do::SessionShow, Get, Reach::Own).says("Show who asks, and what they may").answers::<Session>(),
        session(Do::SessionEnd, Delete, Reach::Own)
            .says("End the session that asks")
            .status(204)
            .problems(&["not_found"]),
    ]
}

fn server() -> Vec<Route> {
    use Operation as Do;
    let metrics = Route::new(Do::Metrics, Method::Get, "/metrics".into(), Reach::Everywhere, Some(Scope::Read));
    vec![
        metrics.says("Count, in the text format of Prometheus"),
        Route::open(Do::Health, "/healthz").says("Say that the server is there").answers::<Health>(),
        Route::open(Do::Ready, "/readyz").says("Say whether the server can be asked").answers::<Ready>(),
        Route::open(Do::OpenApi, "/v1/openapi.json").says("Show this document"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CODES;

    #[test]
    fn routes_are_told_apart_and_name_known_problems() {
        let routes = routes();
        for (index, route) in routes.iter().enumerate() {
            assert!(!route.summary.is_empty(), "{}", route.path);
            for other in &routes[..index] {
                assert_ne!(route.operation, other.operation);
                assert!(route.method != other.method || route.path != other.path, "{}", route.path);
            }
            for problem in route.problems {
                assert!(CODES.iter().any(|code| code.name == *problem), "{problem}");
            }
            let in_path = route.parameters().any(|parameter| parameter == "namespace");
            assert_eq!(route.reach == Reach::Namespace, in_path, "{}", route.path);
            let is_free = matches!(route.reach, Reach::Open | Reach::Own);
            assert_eq!(route.scope.is_none(), is_free, "{}", route.path);
            assert!(!route.idempotent || route.method == Method::Post, "{}", route.path);
        }
    }

    /// AB-16: whatever changes something needs more than `read`.
    #[test]
    fn reading_is_never_enough_to_change_something() {
        for route in routes().iter().filter(|route| route.method != Method::Get) {
            match &route.scope {
                Some(scope) => assert!(!Scope::Read.covers(scope), "{}", route.path),
                None => assert_eq!(route.path, "/v1/session", "one's own session is one's own"),
            }
        }
    }
}
