//! A server as a source: the same questions and commands, over HTTP.

use abide::remote::{Ask, Http, Trouble, escape};
use abide::{Client, ClientError, Connect};
use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{Choice, LetterId, ManualKind, Refusal, RequestId, Row, Run, RunId, StartSpec, Timestamp};
use abide_protocol::limits::PAGE_MAX;
use abide_protocol::{
    Boundary, BoundaryPage, CreateToken, CreatedToken, DeadAttempt, DeadLetterPage, EffectPage, Explanation, Nodes,
    Problem, Queue, QueueHeld, Queues, RunEffect, Token, Tokens, Workers,
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

/// A server.
pub(crate) struct Server {
    url: String,
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
        let bad = |error: abide::StartError| Failure::usage("bad_url", format!("{}: {error}", asked.from));
        let http = connect.http().map_err(bad)?.tries(TRIES_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { url: asked.url.clone(), connect, http, runtime })
    }

    fn wait<T, E: Into<ClientError>>(&self, asked: impl Future<Output = Result<T, E>>) -> Result<T, Failure> {
        self.runtime.block_on(asked).map_err(|error| self.failed(error.into()))
    }

    fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Failure> {
        self.wait(self.http.ask(ask))
    }

    fn failed(&self, error: ClientError) -> Failure {
        failed(&self.url, error)
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
            let (some, next) = take(self.ask(page(limit, before.map(|run: RunId| run.to_string())))?);
            found.extend(some);
            before = next;
            if before.is_none() || found.len() >= most {
                return Ok(found);
            }
        }
    }
}

/// What a server or the way to it has against a request.
pub(super) fn failed(url: &str, error: ClientError) -> Failure {
    match error {
        ClientError::Problem(problem) => refused(*problem),
        ClientError::Unreachable(why) => {
            let what = format!("{url} cannot be reached: {why}");
            Failure::new(Exit::Unknown, "unreachable", what)
                .hint("is the server there? abide serve and abide dev begin one; abide config show says who named it")
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
    Failure::new(exit, problem.code, problem.detail).hint(problem.what_to_do)
}

/// A token, as it is sent.
fn read(secret: &Secret) -> Result<String, Failure> {
    use std::io::Read;
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
            let file = std::fs::File::open(path).map_err(unreadable)?;
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
        format!("namespace {} of {}", self.http.namespace(), self.url)
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
        self.wait(self.http.list(filter, page))
    }

    fn show(&mut self, run: RunId) -> Result<Run, Failure> {
        self.wait(self.http.show(run))
    }

    fn journal(&mut self, run: RunId) -> Result<Vec<Row>, Failure> {
        self.wait(self.http.journal(run, 0))
    }

    fn explain(&mut self, run: RunId, _now: Timestamp) -> Result<Explanation, Failure> {
        self.ask(Ask::get(&format!("/runs/{run}/explain")))
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
        self.wait(self.http.dead_letters())
    }

    fn queues(&mut self, _now: Timestamp) -> Result<Vec<Queue>, Failure> {
        let Queues { queues } = self.ask(Ask::get("/queues"))?;
        Ok(queues)
    }

    fn change_queue(&mut self, queue: &str, change: QueueChange) -> Result<QueueHeld, Failure> {
        let path = format!("/queues/{}", escape(queue));
        match change {
            QueueChange::Pause => self.ask(Ask::verb(&format!("{path}/pause"))),
            QueueChange::Resume => self.ask(Ask::verb(&format!("{path}/resume"))),
            QueueChange::Limit(limits) => {
                let path = format!("{path}/limits");
                let ask = Ask::put(&path, &limits).map_err(|error| self.failed(error))?;
                self.ask(ask)
            }
        }
    }

    fn workers(&mut self) -> Result<Workers, Failure> {
        self.ask(Ask::get("/workers"))
    }

    fn nodes(&mut self) -> Result<Nodes, Failure> {
        self.ask(Ask::get("/nodes").over())
    }

    fn drain(&mut self, process: &str, draining: bool) -> Result<(), Failure> {
        let verb = if draining { "drain" } else { "resume" };
        self.ask(Ask::verb(&format!("/nodes/{}/{verb}", escape(process))).over())
    }

    fn tokens(&mut self) -> Result<Vec<Token>, Failure> {
        let Tokens { tokens } = self.ask(Ask::get("/tokens").over())?;
        Ok(tokens)
    }

    fn create_token(&mut self, asked: CreateToken, now: Timestamp) -> Result<CreatedToken, Failure> {
        let ask = Ask::post("/tokens", &asked).map_err(|error| self.failed(error))?;
        self.ask(ask.over().key(new_request(now)))
    }

    fn revoke_token(&mut self, id: &str) -> Result<bool, Failure> {
        let path = format!("/tokens/{}", escape(id));
        // Sent once: the answer to a second would not be the answer to the first.
        match self.runtime.block_on(self.http.once::<()>(&Ask::delete(&path).over())) {
            Ok(()) => Ok(true),
            Err(Trouble::Problem(problem)) if problem.code == "not_found" => Ok(false),
            Err(trouble) => Err(self.failed(trouble.into())),
        }
    }

    fn start(&mut self, request: RequestId, spec: StartSpec) -> Result<(Answer, bool), Failure> {
        let command = Command::Start { request, spec: Box::new(spec) };
        let answer = self.wait(self.http.command(command, Clock::system().now()))?;
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
        self.wait(self.http.command(command, Clock::system().now()))
    }

    fn settle(&mut self, letter: LetterId, how: Settling) -> Result<(), Failure> {
        self.wait(self.http.settle(letter, how))
    }

    fn tail(&mut self, run: Option<RunId>) -> Result<Tail, Failure> {
        // With connections of its own: those of this one live in its own runtime, which rests meanwhile.
        let http = self.connect.http().map_err(|error| Failure::usage("bad_url", error.to_string()))?;
        Ok(Tail::of_server(http, self.url.clone(), run))
    }
}
