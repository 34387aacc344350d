//! A server as a source: the same questions and commands, over HTTP.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use abide::remote::{Ask, Http, Trouble, escape};
use abide::{Client, ClientError, Connect};
use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{Choice, LetterId, ManualKind, Refusal, RequestId, Row, Run, RunId, StartSpec, Timestamp};
use abide_protocol::limits::PAGE_MAX;
use abide_protocol::{
    Audit, Boundary, BoundaryPage, Bounds, CreateToken, CreateUser, CreatedToken, DeadAttempt, DeadLetterPage,
    EffectPage, Explanation, NewPassword, Nodes, Password, Problem, Queue, QueueHeld, Queues, RunEffect, State, Token,
    Tokens, User, Users, Workers, Workflows,
};
use abide_runtime::{Clock, new_request};
use abide_store::{DeadLetterItem, Filter, Listed, Page};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use super::tail::Tail;
use super::{QueueChange, Source, Wanted};
use crate::failure::{Exit, Failure};
use crate::options::{Asked, Secret};

/// How often a request is sent again that was not answered: enough for one that was lost, and told soon.
const TRIES_MAX: u32 = 3;
/// Digits of a whole id.
const ID_DIGITS: usize = 32;
/// The most that a token may have: it is a line of text.
const TOKEN_BYTES_MAX: u64 = 4096;
/// More than the authorities of a whole machine have.
const CA_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What is being done when something is in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing changes, whatever became of the question.
    Looking,
    /// Nobody knows whether it was done if nobody answers.
    Changing,
}

/// A server.
pub(crate) struct Server {
    asked: Asked,
    connect: Connect,
    http: Http,
    runtime: Runtime,
}

impl Server {
    pub(super) fn of(asked: &Asked, namespace: Option<&str>) -> Result<Self, Failure> {
        let mut connect = Client::connect(&asked.url).namespace(namespace.unwrap_or("default"));
        if let Some(secret) = &asked.token {
            connect = connect.token(&read(secret)?);
        }
        if let Some(path) = &asked.ca_file {
            connect = connect.trust(authority(path)?);
        }
        let bad = |error: abide::StartError| Failure::usage("bad_url", format!("{}: {error}", asked.from));
        let http = connect.http().map_err(bad)?.tries(TRIES_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { asked: asked.clone(), connect, http, runtime })
    }

    /// Waits for what is looked at.
    fn look<T, E: Into<ClientError>>(&self, asked: impl Future<Output = Result<T, E>>) -> Result<T, Failure> {
        self.runtime.block_on(asked).map_err(|error| failed(&self.asked, Doing::Looking, error.into()))
    }

    /// Waits for what becomes of a change.
    fn change<T, E: Into<ClientError>>(&self, asked: impl Future<Output = Result<T, E>>) -> Result<T, Failure> {
        self.runtime.block_on(asked).map_err(|error| self.failed(error.into()))
    }

    fn get<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Failure> {
        self.look(self.http.ask(ask))
    }

    fn send<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Failure> {
        self.change(self.http.ask(ask))
    }

    /// Sends what may not be sent twice: the answer to a second would not be the answer to the first. Whether it was
    /// there.
    fn once(&self, ask: &Ask<'_>) -> Result<bool, Failure> {
        match self.runtime.block_on(self.http.once::<()>(ask)) {
            Ok(()) => Ok(true),
            Err(Trouble::Problem(problem)) if problem.code == "not_found" => Ok(false),
            Err(trouble) => Err(self.failed(trouble.into())),
        }
    }

    fn failed(&self, error: ClientError) -> Failure {
        failed(&self.asked, Doing::Changing, error)
    }

    fn prunes_itself(&self) -> Failure {
        let what = format!("{} keeps its audit itself, and nobody prunes it from outside", self.asked.url);
        Failure::usage("needs_store", what)
            .hint("begin it with --audit-keep 30d, or give --store, which a server must not hold if it is a file")
    }

    /// Pages of something, newest run first, until there are enough or no more.
    fn pages<T: DeserializeOwned, I>(
        &self,
        most: usize,
        page: impl Fn(String, Option<String>) -> Ask<'static>,
        mut take: impl FnMut(T) -> (Vec<I>, Option<RunId>),
    ) -> Result<Vec<I>, Failure> {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let limit = most.clamp(1, PAGE_MAX as usize).to_string();
            let (some, next) = take(self.get(page(limit, before.map(|run: RunId| run.to_string())))?);
            found.extend(some);
            before = next;
            if before.is_none() || found.len() >= most {
                return Ok(found);
            }
        }
    }
}

/// What a server or the way to it has against a request.
pub(super) fn failed(asked: &Asked, doing: Doing, error: ClientError) -> Failure {
    let url = &asked.url;
    match error {
        ClientError::Problem(problem) if problem.code == "unauthenticated" => unknown_here(asked, *problem),
        ClientError::Problem(problem) => refused(*problem),
        ClientError::Unreachable(why) => {
            let what = format!("{url} cannot be reached: {why}");
            let exit = if doing == Doing::Looking { Exit::Failure } else { Exit::Unknown };
            Failure::new(exit, "unreachable", what)
                .hint("is the server there? abide serve and abide dev begin one; abide config show says who named it")
        }
        ClientError::Distrusted(why) => {
            let what = format!("the certificate of {url} is not believed: {why}");
            Failure::new(Exit::Failure, "distrusted", what).hint(
                "if it is the right server, give the authority that signed its certificate, in PEM: --ca-file FILE, \
                 ABIDE_CA_FILE, or ca_file of the profile",
            )
        }
        ClientError::Engine(_) | ClientError::Codec { .. } => {
            let what = format!("{url} does not answer like an Abide server: {error}");
            Failure::new(Exit::Failure, "not_abide", what).hint("abide config show says who named it")
        }
        ClientError::Refused(refusal) => refusal.into(),
        ClientError::Store(fault) => fault.into(),
        other => Failure::new(Exit::Failure, "failed", other.to_string()),
    }
}

/// A problem that a server told.
fn refused(problem: Problem) -> Failure {
    let exit = match (problem.code.as_str(), problem.status) {
        ("not_found" | "no_letter" | "no_effect", _) => Exit::NotFound,
        ("invalid" | "too_large" | "bad_id" | "bad_query" | "malformed" | "too_deep", _) => Exit::Usage,
        (_, 408 | 429 | 503) => Exit::Unknown,
        _ => Exit::Failure,
    };
    let mut what = problem.detail;
    // Many say it in their own words already.
    if let (Some(expected), Some(found)) = (&problem.expected, &problem.found)
        && !(what.contains(expected.as_str()) && what.contains(found.as_str()))
    {
        what.push_str(&format!(": expected {expected}, found {found}"));
    }
    Failure::new(exit, problem.code, what).hint(problem.what_to_do)
}

/// The server does not know who asks.
fn unknown_here(asked: &Asked, problem: Problem) -> Failure {
    let mut hint = match &asked.token_from {
        Some(from) => format!("{} does not know the token of {from}; ", asked.url),
        None => "no token was sent; ".to_owned(),
    };
    hint.push_str("give one in ABIDE_TOKEN, ABIDE_TOKEN_FILE, --token-file, or token_file of the profile");
    if let (None, Some(from)) = (&asked.token_from, &asked.passed_over) {
        hint.push_str(&format!(
            "\nthe token of {from} is for that profile's own server, and {} names another",
            asked.from
        ));
    }
    refused(problem).hint(hint)
}

/// A name as a part of a path. There, `.` and `..` would mean something else, however they are written.
fn segment(name: &str) -> Result<String, Failure> {
    match name {
        "" | "." | ".." => Err(Failure::usage("invalid", format!("expected a name or an id, found {name:?}"))),
        name => Ok(escape(name)),
    }
}

/// An authority to believe, as it is in its file.
fn authority(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(CA_BYTES_MAX).read_to_end(&mut text));
    read.map_err(|error| {
        let what = format!("the file of the authority, {}, cannot be read: {error}", path.display());
        Failure::usage("bad_ca_file", what).hint("abide config show says who named it")
    })?;
    Ok(text)
}

/// A token, as it is sent.
fn read(secret: &Secret) -> Result<String, Failure> {
    let text = match secret {
        Secret::Text(text) => text.clone(),
        Secret::Withheld(why) => {
            return Err(Failure::usage("token_withheld", why.what.clone()).hint(why.hint.clone()));
        }
        Secret::File(path) => {
            let unreadable = |error: std::io::Error| {
                let what = format!("the file of the token, {}, cannot be read: {error}", path.display());
                Failure::usage("bad_token_file", what).hint("abide config show says who named it")
            };
            let mut text = String::new();
            let file = File::open(path).map_err(unreadable)?;
            file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
            text
        }
    };
    let token = text.trim();
    if token.is_empty() || token.len() as u64 > TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = "the token is not one line of plain text, as abide token create printed it";
        return Err(Failure::usage("bad_token", what).hint("abide config show says where it comes from"));
    }
    Ok(token.to_owned())
}

impl Source for Server {
    fn shown(&self) -> String {
        format!("namespace {} of {}", self.http.namespace(), self.asked.url)
    }

    fn whole(&self) -> String {
        self.asked.url.clone()
    }

    fn beginning(&mut self, digits: &str, most: usize) -> Result<Vec<RunId>, Failure> {
        // A whole id is taken at its word: whoever may signal a run need not be able to look for it.
        let low = u128::from_str_radix(digits, 16).expect("they are hex digits, as many as an id has at most");
        if digits.len() == ID_DIGITS {
            return Ok(vec![RunId(low)]);
        }
        let open = 4 * (ID_DIGITS - digits.len()) as u32;
        // Lists go from new to old, so the ids that begin so are the first ones before the next beginning.
        let first = low << open;
        let before = (low + 1).checked_shl(open).filter(|_| (low + 1) >> (128 - open) == 0).map(RunId);
        let listed = self.list(&Filter::default(), &Page { most, before })?;
        let mut found: Vec<RunId> = listed.iter().map(|listed| listed.run).take_while(|run| run.0 >= first).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Failure> {
        self.look(self.http.list(filter, page))
    }

    fn show(&mut self, run: RunId) -> Result<Run, Failure> {
        self.look(self.http.show(run))
    }

    fn journal(&mut self, run: RunId) -> Result<Vec<Row>, Failure> {
        self.look(self.http.journal(run, 0))
    }

    fn state(&mut self, run: RunId, rev: Option<u64>) -> Result<State, Failure> {
        self.get(Ask::get(&format!("/runs/{run}/state")).with("rev", rev.map(|rev| rev.to_string())))
    }

    fn explain(&mut self, run: RunId, _now: Timestamp) -> Result<Explanation, Failure> {
        self.get(Ask::get(&format!("/runs/{run}/explain")))
    }

    fn effects_in_doubt(&mut self, most: usize) -> Result<Vec<RunEffect>, Failure> {
        let page = |limit, before| Ask::get("/effects").with("limit", Some(limit)).with("before", before);
        self.pages(most, page, |page: EffectPage| (page.effects, page.next))
    }

    fn boundaries(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Boundary>, Failure> {
        let path = match wanted.kind {
            ManualKind::Task => "/tasks",
            ManualKind::Approval | ManualKind::Pause => "/approvals",
        };
        let text = |text: Option<&str>| text.map(str::to_owned);
        let page = |limit, before| {
            Ask::get(path)
                .with("assignee", text(wanted.assignee))
                .with("role", text(wanted.role))
                .with("limit", Some(limit))
                .with("before", before)
        };
        let mut found = self.pages(wanted.most, page, |page: BoundaryPage| (page.boundaries, page.next))?;
        found.retain(|boundary| wanted.matches(boundary));
        found.truncate(wanted.most);
        Ok(found)
    }

    fn dead_attempts(&mut self, most: usize) -> Result<Vec<DeadAttempt>, Failure> {
        let page = |limit, before| Ask::get("/dead-letters").with("limit", Some(limit)).with("before", before);
        self.pages(most, page, |page: DeadLetterPage| (page.attempts, page.next))
    }

    fn dead_messages(&mut self) -> Result<Vec<DeadLetterItem>, Failure> {
        self.look(self.http.dead_letters())
    }

    fn queues(&mut self, _now: Timestamp) -> Result<Vec<Queue>, Failure> {
        let Queues { queues } = self.get(Ask::get("/queues"))?;
        Ok(queues)
    }

    fn change_queue(&mut self, queue: &str, change: QueueChange) -> Result<QueueHeld, Failure> {
        let path = format!("/queues/{}", segment(queue)?);
        match change {
            QueueChange::Pause => self.send(Ask::verb(&format!("{path}/pause"))),
            QueueChange::Resume => self.send(Ask::verb(&format!("{path}/resume"))),
            QueueChange::Limit(limits) => {
                let path = format!("{path}/limits");
                let ask = Ask::put(&path, &limits).map_err(|error| self.failed(error))?;
                self.send(ask)
            }
        }
    }

    fn workers(&mut self) -> Result<Workers, Failure> {
        self.get(Ask::get("/workers"))
    }

    fn nodes(&mut self) -> Result<Nodes, Failure> {
        self.get(Ask::get("/nodes").over())
    }

    fn drain(&mut self, process: &str, draining: bool) -> Result<(), Failure> {
        let verb = if draining { "drain" } else { "resume" };
        self.send(Ask::verb(&format!("/nodes/{}/{verb}", segment(process)?)).over())
    }

    fn tokens(&mut self) -> Result<Vec<Token>, Failure> {
        let Tokens { tokens } = self.get(Ask::get("/tokens").over())?;
        Ok(tokens)
    }

    fn create_token(&mut self, asked: CreateToken, now: Timestamp) -> Result<CreatedToken, Failure> {
        let ask = Ask::post("/tokens", &asked).map_err(|error| self.failed(error))?;
        self.send(ask.over().key(new_request(now)))
    }

    fn revoke_token(&mut self, id: &str) -> Result<bool, Failure> {
        self.once(&Ask::delete(&format!("/tokens/{}", segment(id)?)).over())
    }

    fn audit(&mut self, before: Option<&str>, most: usize) -> Result<Audit, Failure> {
        let ask = Ask::get("/audit").over().with("limit", Some(most.to_string()));
        self.get(ask.with("before", before.map(str::to_owned)))
    }

    fn audit_before(&mut self, _at: Timestamp) -> Result<u64, Failure> {
        Err(self.prunes_itself())
    }

    fn prune_audit(&mut self, _at: Timestamp) -> Result<u64, Failure> {
        Err(self.prunes_itself())
    }

    fn workflows(&mut self) -> Result<Workflows, Failure> {
        self.get(Ask::get("/workflows"))
    }

    fn limits(&mut self) -> Result<Bounds, Failure> {
        self.get(Ask::get("/limits").over())
    }

    fn users(&mut self) -> Result<Vec<User>, Failure> {
        let Users { users } = self.get(Ask::get("/users").over())?;
        Ok(users)
    }

    fn add_user(&mut self, asked: CreateUser, now: Timestamp) -> Result<User, Failure> {
        let ask = Ask::post("/users", &asked).map_err(|error| self.failed(error))?;
        self.send(ask.over().key(new_request(now)))
    }

    fn remove_user(&mut self, name: &str) -> Result<bool, Failure> {
        self.once(&Ask::delete(&format!("/users/{}", segment(name)?)).over())
    }

    fn change_password(&mut self, name: &str, password: Password) -> Result<bool, Failure> {
        let path = format!("/users/{}/password", segment(name)?);
        let ask = Ask::put(&path, &NewPassword { password }).map_err(|error| self.failed(error))?;
        self.once(&ask.over())
    }

    fn start(&mut self, request: RequestId, spec: StartSpec) -> Result<(Answer, bool), Failure> {
        let command = Command::Start { request, spec: Box::new(spec) };
        let answer = self.change(self.http.command(command, Clock::system().now()))?;
        Ok((answer, false))
    }

    fn tell(&mut self, run: RunId, command: Command) -> Result<Answer, Failure> {
        // The path of a resume names the run alone.
        if let Command::Decide { deciding, .. } = &command
            && deciding.choice == Choice::Resume
        {
            let current = self.show(run)?.boundary().map(|manual| manual.asked.op);
            if current != Some(deciding.op) {
                return Err(Refusal::StaleBoundary { op: deciding.op, current }.into());
            }
        }
        self.change(self.http.command(command, Clock::system().now()))
    }

    fn settle(&mut self, letter: LetterId, how: Settling) -> Result<(), Failure> {
        self.change(self.http.settle(letter, how))
    }

    fn tail(&mut self, run: Option<RunId>) -> Result<Tail, Failure> {
        // With connections of its own: those of this one live in its own runtime, which rests meanwhile.
        let http = self.connect.http().map_err(|error| Failure::usage("bad_url", error.to_string()))?;
        Ok(Tail::of_server(http, self.asked.clone(), run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_and_found_is_told_once() {
        let problem = Problem::new("invalid", "the request is malformed").but("a number", "\"x\"");
        assert_eq!(refused(problem).what, "the request is malformed: expected a number, found \"x\"");
        let problem = Problem::new("invalid", "limit: expected a number, found \"x\"").but("a number", "\"x\"");
        assert_eq!(refused(problem).what, "limit: expected a number, found \"x\"");
    }

    /// However it is written, a path takes it for the folder above.
    #[test]
    fn a_part_of_a_path_is_a_name() {
        assert_eq!(segment("a/b").ok().as_deref(), Some("a%2Fb"));
        for wrong in ["", ".", ".."] {
            assert!(segment(wrong).is_err_and(|failure| failure.code == "invalid"), "{wrong}");
        }
    }
}
