//! Who answers what a verb asks: a store that is read from here, or a server. The verbs do not know which, and print the
//! same.

mod server;
mod store;
mod tail;
mod user;

use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{LetterId, ManualKind, RequestId, Row, Run, RunId, StartSpec, Timestamp};
use abide_protocol::{
    Audit, Boundary, Bounds, CreateToken, CreateUser, CreatedToken, DeadAttempt, Explanation, Nodes, Password, Queue,
    QueueHeld, QueueLimits, RunEffect, State, Token, User, Workers, Workflows,
};
use abide_store::{DeadLetterItem, Filter, Listed, Page};

use crate::failure::{Exit, Failure};
use crate::options::Globals;
use crate::place::Place;

pub(crate) use tail::{Seen, Tail};

/// How many runs are named when a prefix fits several.
const CANDIDATES_SHOWN: usize = 8;

/// Whoever answers.
pub(crate) trait Source {
    /// As it may be shown.
    fn shown(&self) -> String;

    /// The store as a whole, as it may be shown.
    fn whole(&self) -> String;

    /// Runs whose ids begin so (hex digits, without `run_`), of the tenant asked for; a few more than can be shown.
    fn beginning(&mut self, digits: &str, most: usize) -> Result<Vec<RunId>, Failure>;

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Failure>;

    fn show(&mut self, run: RunId) -> Result<Run, Failure>;

    fn journal(&mut self, run: RunId) -> Result<Vec<Row>, Failure>;

    /// What a run shows of itself, now or as it was at a revision.
    fn state(&mut self, run: RunId, rev: Option<u64>) -> Result<State, Failure>;

    fn explain(&mut self, run: RunId, now: Timestamp) -> Result<Explanation, Failure>;

    /// Effects in doubt of at most so many runs, newest run first.
    fn effects_in_doubt(&mut self, most: usize) -> Result<Vec<RunEffect>, Failure>;

    /// What runs ask of people now, newest run first.
    fn boundaries(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Boundary>, Failure>;

    /// Attempts that were set aside, of at most so many runs, newest run first.
    fn dead_attempts(&mut self, most: usize) -> Result<Vec<DeadAttempt>, Failure>;

    /// Messages between runs that were set aside.
    fn dead_messages(&mut self) -> Result<Vec<DeadLetterItem>, Failure>;

    fn queues(&mut self, now: Timestamp) -> Result<Vec<Queue>, Failure>;

    fn change_queue(&mut self, queue: &str, change: QueueChange) -> Result<QueueHeld, Failure>;

    fn workers(&mut self) -> Result<Workers, Failure>;

    fn nodes(&mut self) -> Result<Nodes, Failure>;

    /// Says of a process whether it drains.
    fn drain(&mut self, process: &str, draining: bool) -> Result<(), Failure>;

    fn tokens(&mut self) -> Result<Vec<Token>, Failure>;

    fn create_token(&mut self, asked: CreateToken, now: Timestamp) -> Result<CreatedToken, Failure>;

    /// Whether there was such a token.
    fn revoke_token(&mut self, id: &str) -> Result<bool, Failure>;

    /// A page of who changed what over HTTP, newest first.
    fn audit(&mut self, before: Option<&str>, most: usize) -> Result<Audit, Failure>;

    /// How many changes there are from before an instant.
    fn audit_before(&mut self, at: Timestamp) -> Result<u64, Failure>;

    /// Removes them. How many there were.
    fn prune_audit(&mut self, at: Timestamp) -> Result<u64, Failure>;

    /// What can be executed.
    fn workflows(&mut self) -> Result<Workflows, Failure>;

    /// What a server takes at most.
    fn limits(&mut self) -> Result<Bounds, Failure>;

    /// Users, the newest first.
    fn users(&mut self) -> Result<Vec<User>, Failure>;

    fn add_user(&mut self, asked: CreateUser, now: Timestamp) -> Result<User, Failure>;

    /// Whether there was such a user.
    fn remove_user(&mut self, name: &str) -> Result<bool, Failure>;

    /// Whether there is such a user.
    fn change_password(&mut self, name: &str, password: Password) -> Result<bool, Failure>;

    /// Starts a run. Whether a store was made for it.
    fn start(&mut self, request: RequestId, spec: StartSpec) -> Result<(Answer, bool), Failure>;

    /// Sends a command about a run until its outcome is known.
    fn tell(&mut self, run: RunId, command: Command) -> Result<Answer, Failure>;

    fn settle(&mut self, letter: LetterId, how: Settling) -> Result<(), Failure>;

    /// Follows a run, or all of a tenant: what becomes true is told as it does.
    fn tail(&mut self, run: Option<RunId>) -> Result<Tail, Failure>;
}

/// Which boundaries are wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) kind: ManualKind,
    pub(crate) assignee: Option<&'a str>,
    pub(crate) role: Option<&'a str>,
    pub(crate) most: usize,
}

impl Wanted<'_> {
    pub(crate) fn matches(&self, boundary: &Boundary) -> bool {
        let assignee = self.assignee.is_none_or(|name| boundary.assignee.as_deref() == Some(name));
        let roles = &boundary.roles;
        let role = self.role.is_none_or(|name| roles.is_empty() || roles.iter().any(|role| role == name));
        boundary.kind == self.kind && assignee && role
    }
}

/// What becomes of a queue.
#[derive(Clone)]
pub(crate) enum QueueChange {
    Pause,
    Resume,
    Limit(QueueLimits),
}

impl dyn Source {
    /// Whoever is meant by the options.
    pub(crate) fn of(globals: &Globals) -> Result<Box<dyn Source>, Failure> {
        match &globals.server {
            Some(asked) => Ok(Box::new(server::Server::of(asked, globals.namespace.as_deref())?)),
            None => Ok(Box::new(store::Stored::of(Place::of(globals)?))),
        }
    }
}

impl dyn Source + '_ {
    /// The run that is meant by an id or by the beginning of one.
    pub(crate) fn find(&mut self, text: &str) -> Result<RunId, Failure> {
        let bare = text.strip_prefix("run_").unwrap_or(text).to_ascii_lowercase();
        if bare.is_empty() || bare.len() > 32 || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let shown: String = text.chars().take(80).collect();
            let what = format!("expected a run id like run_0193… or the beginning of one, found {shown:?}");
            return Err(Failure::usage("bad_id", what).hint("abide run list shows the ids"));
        }
        let found = self.beginning(&bare, CANDIDATES_SHOWN + 1)?;
        match found.as_slice() {
            [] => {
                let what = format!("there is no run {text} in {}", self.shown());
                Err(Failure::new(Exit::NotFound, "not_found", what).hint("abide run list shows the runs there are"))
            }
            [run] => Ok(*run),
            several => Err(ambiguous(text, several)),
        }
    }
}

fn ambiguous(text: &str, several: &[RunId]) -> Failure {
    let mut hint = String::from("give more of it; these begin so:");
    for run in several.iter().take(CANDIDATES_SHOWN) {
        hint.push_str(&format!("\n  {run}"));
    }
    if several.len() > CANDIDATES_SHOWN {
        hint.push_str("\n  … and more");
    }
    Failure::usage("ambiguous_id", format!("{text} is the beginning of several run ids")).hint(hint)
}
