//! A route: what it needs, takes and answers.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::Scope;
use crate::limits::PAGE_MAX;

/// What can be asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table says what each does")]
pub enum Operation {
    RunStart,
    RunStartMany,
    RunList,
    RunShow,
    RunRecord,
    RunJournal,
    RunExplain,
    RunEffects,
    RunState,
    RunResult,
    RunEvents,
    RunProgress,
    RunSignal,
    RunUpdate,
    RunCancel,
    RunResume,
    RunCompact,
    RunPurge,
    EffectList,
    EffectResolve,
    ApprovalList,
    ApprovalShow,
    ApprovalApprove,
    ApprovalReject,
    TaskList,
    TaskShow,
    TaskClaim,
    TaskRelease,
    TaskComplete,
    DeadLetterList,
    DeadLetterRequeue,
    DeadLetterDiscard,
    LetterList,
    LetterRequeue,
    LetterDiscard,
    WorkerClaim,
    WorkerReport,
    WorkerList,
    EventList,
    QueueList,
    QueuePause,
    QueueResume,
    QueueLimit,
    WorkflowList,
    NodeList,
    NodeDrain,
    NodeResume,
    TokenList,
    TokenCreate,
    TokenRevoke,
    UserList,
    UserCreate,
    UserRemove,
    UserPassword,
    SessionBegin,
    SessionShow,
    SessionEnd,
    AuditList,
    Limits,
    Metrics,
    Health,
    Ready,
    OpenApi,
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    /// Its name, as HTTP has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// Where a token must be good for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No token is needed.
    Open,
    /// Any token: it is about whoever asks.
    Own,
    /// In the namespace that the path names.
    Namespace,
    /// In any namespace.
    Anywhere,
    /// In all namespaces.
    Everywhere,
}

/// What a parameter of a query looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Text.
    Text,
    /// The id of a run.
    Run,
    /// An instant.
    Instant,
    /// A label, `name=value`. It may be given more than once.
    Label,
    /// A number.
    Number {
        /// The smallest.
        from: u64,
        /// The largest.
        to: u64,
    },
}

/// A parameter of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its name.
    pub name: &'static str,
    /// What it looks like.
    pub kind: QueryKind,
    /// What it is for.
    pub about: &'static str,
}

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What a route needs, takes and answers.
#[derive(Clone, Debug)]
pub struct Route {
    /// What it does.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path, with parameters in braces.
    pub path: String,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What a token must allow.
    pub scope: Option<Scope>,
    /// Where a token must be good.
    pub reach: Reach,
    /// The parameters of its query.
    pub query: Vec<Query>,
    /// The shape of its body.
    pub body: Option<MakeSchema>,
    /// Whether a request without a body stands for an empty one.
    pub body_optional: bool,
    /// The shape of its answer, if that is JSON.
    pub answer: Option<MakeSchema>,
    /// The events of its answer by their names, if that is a stream of them.
    pub events: Vec<(&'static str, MakeSchema)>,
    /// The HTTP status of its answer.
    pub status: u16,
    /// Whether an `Idempotency-Key` gets a second request the answer of the first.
    pub idempotent: bool,
    /// The codes of its problems, beside those that any route may have.
    pub problems: &'static [&'static str],
}

impl Route {
    pub(crate) fn new(operation: Operation, method: Method, path: String, reach: Reach, scope: Option<Scope>) -> Self {
        Self {
            operation,
            method,
            path,
            summary: "",
            scope,
            reach,
            query: Vec::new(),
            body: None,
            body_optional: false,
            answer: None,
            events: Vec::new(),
            status: 200,
            idempotent: false,
            problems: &[],
        }
    }

    /// A route inside of a namespace.
    pub(crate) fn within(operation: Operation, method: Method, path: &str, scope: Scope) -> Self {
        let path = format!("{}/namespaces/{{namespace}}{path}", crate::PREFIX);
        Self::new(operation, method, path, Reach::Namespace, Some(scope))
    }

    /// A route about the store as a whole.
    pub(crate) fn over(operation: Operation, method: Method, path: &str, reach: Reach, scope: Scope) -> Self {
        Self::new(operation, method, format!("{}{path}", crate::PREFIX), reach, Some(scope))
    }

    /// A route that needs no token.
    pub(crate) fn open(operation: Operation, path: &str) -> Self {
        Self::new(operation, Method::Get, path.to_owned(), Reach::Open, None)
    }

    pub(crate) fn says(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    pub(crate) fn may_take<T: JsonSchema>(mut self) -> Self {
        self.body_optional = true;
        self.takes::<T>()
    }

    pub(crate) fn answers<T: JsonSchema>(mut self) -> Self {
        self.answer = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// Its answer is a stream that tells such events.
    pub(crate) fn tells<T: JsonSchema>(mut self, name: &'static str) -> Self {
        self.events.push((name, SchemaGenerator::subschema_for::<T>));
        self
    }

    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    pub(crate) fn problems(mut self, codes: &'static [&'static str]) -> Self {
        self.problems = codes;
        self
    }

    pub(crate) fn text(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push(Query { name, kind: QueryKind::Text, about });
        self
    }

    pub(crate) fn run(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push(Query { name, kind: QueryKind::Run, about });
        self
    }

    pub(crate) fn instant(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push(Query { name, kind: QueryKind::Instant, about });
        self
    }

    pub(crate) fn label(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push(Query { name, kind: QueryKind::Label, about });
        self
    }

    pub(crate) fn number(mut self, name: &'static str, from: u64, to: u64, about: &'static str) -> Self {
        self.query.push(Query { name, kind: QueryKind::Number { from, to }, about });
        self
    }

    pub(crate) fn paged(self) -> Self {
        self.number("limit", 1, PAGE_MAX, "at most so many runs; 50 if absent")
            .run("before", "only runs older than this one: what the page before has as next")
    }

    /// The names of the parameters in its path, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}
