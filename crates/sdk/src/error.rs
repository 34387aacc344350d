//! Errors: of a step, of opening an engine, of asking it for something.

use std::fmt;

use abide_kernel::shard::BadRule;
use abide_kernel::{ErrorInfo, OpId, Payload, Refusal, RunId};
use abide_runtime::{OpenError, Unanswered};
use abide_store::{BadUrl, Fault};

/// What went wrong in a step. Any error becomes one by `?`, and may be tried again unless it is marked otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct StepError {
    pub(crate) info: ErrorInfo,
    /// The effect whose error it is: a retry of the step begins that effect again.
    pub(crate) op: Option<OpId>,
}

/// What went wrong in a function.
pub type Failure = StepError;

impl StepError {
    /// An error with a message.
    #[must_use]
    pub fn new(message: impl fmt::Display) -> Self {
        Self::of(ErrorInfo::retryable("error", &message.to_string()))
    }

    pub(crate) fn of(info: ErrorInfo) -> Self {
        Self { info, op: None }
    }

    /// Gives it a stable word to recognise it by.
    #[must_use]
    pub fn code(mut self, code: &str) -> Self {
        self.info.code = code.into();
        self
    }

    /// Says that no retry cures it.
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.info.retryable = false;
        self
    }

    /// Keeps more with it.
    #[must_use]
    pub fn details(mut self, details: Payload) -> Self {
        self.info.details = Some(details);
        self
    }

    /// The error as it is recorded.
    #[must_use]
    pub fn info(&self) -> &ErrorInfo {
        &self.info
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl<E: std::error::Error> From<E> for StepError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new(message)
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store's URL is wrong.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The engine could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot listen for other nodes.
    #[error("nobody can listen at {address} for other nodes; choose another with EngineBuilder::listen")]
    Address {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The URL of a server, or what belongs to one, is wrong.
    #[error("{url}: {problem}")]
    Server {
        /// The URL.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A limit cannot be meant.
    #[error(transparent)]
    Limit(#[from] BadRule),
    /// A workflow is not well formed.
    #[error("workflow {workflow:?}: {problem}")]
    Workflow {
        /// Its name.
        workflow: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why a client did not get what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The engine said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The key is taken.
    #[error("the key is taken by {by} ({reason}); use on_conflict(Reuse) to get that run, or another key")]
    Rejected {
        /// The run that has it.
        by: RunId,
        /// Why it could not be reused: `key_taken` or `other_input`.
        reason: &'static str,
    },
    /// No workflow of that name is registered.
    #[error("no workflow named {name:?} is registered; {hint}")]
    UnknownWorkflow {
        /// The name asked for.
        name: String,
        /// What there is.
        hint: String,
    },
    /// The run did not end well.
    #[error("{run} ended as {status}: {error}")]
    RunFailed {
        /// The run.
        run: RunId,
        /// How it ended.
        status: abide_kernel::Status,
        /// Its error.
        error: Box<ErrorInfo>,
    },
    /// The run said no to an update. Asking again with the same key gets the same answer.
    #[error("{run} rejected update {name:?}: {error}")]
    UpdateRejected {
        /// The run.
        run: RunId,
        /// The update's name.
        name: String,
        /// Why.
        error: Box<ErrorInfo>,
    },
    /// The run's workflow cannot answer.
    #[error(
        "{run} is a run of the machine {workflow:?}, and only functions take updates; send it a signal, and read its state"
    )]
    NoUpdates {
        /// The run.
        run: RunId,
        /// Its workflow.
        workflow: String,
    },
    /// A value could not be encoded or decoded.
    #[error("{what}: {source}")]
    Codec {
        /// Which value.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] Fault),
    /// A server said no. Its code, what was expected, and what to do are in it.
    #[cfg(feature = "http")]
    #[error("{} ({}); {}", .0.detail, .0.code, .0.what_to_do)]
    Problem(Box<abide_protocol::Problem>),
    /// A server could not be reached, or gave no answer: whether it did what was asked is not known.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// Whoever answers there showed a certificate that is not believed; nothing was asked of them.
    #[error("whoever answers there is not known to be the server: {0}")]
    Distrusted(String),
    /// The engine is gone, or answered nonsense.
    #[error(transparent)]
    Engine(Unanswered),
}

impl From<Unanswered> for ClientError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Refused(refusal) => Self::Refused(refusal),
            Unanswered::Store(fault) => Self::Store(fault),
            other => Self::Engine(other),
        }
    }
}
