//! How a verb ends: exit codes, and failures that say what happened, why, and what to do.

use std::borrow::Cow;
use std::io;

use abide_kernel::{BadId, Refusal};
use abide_runtime::house::HouseError;
use abide_runtime::{OpenError, Unanswered};
use abide_store::{BadUrl, Fault, FaultKind};
use serde_json::json;

use crate::text::{clean, safe_json};

/// How a verb ended, as the caller's shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    Failure = 1,
    Usage = 2,
    NotFound = 3,
    RunFailed = 4,
    Unknown = 5,
    Interrupted = 130,
}

/// What a verb comes to.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Why a verb could not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// A stable word for it.
    pub(crate) code: Cow<'static, str>,
    /// What happened, and why.
    pub(crate) what: String,
    /// What to do.
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: impl Into<Cow<'static, str>>, what: impl Into<String>) -> Self {
        Self { exit, code: code.into(), what: what.into(), hint: None }
    }

    pub(crate) fn usage(code: impl Into<Cow<'static, str>>, what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, code, what)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether the one who reads our answer has gone: nothing to tell, and nobody to tell it to.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.code == CLOSED_PIPE
    }

    /// As it goes to standard error.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("error: {}\n", clean(&self.what));
        for line in self.hint.iter().flat_map(|hint| hint.lines()) {
            text.push_str(&format!("  {}\n", clean(line)));
        }
        text.push_str(&format!("  code: {}\n", clean(&self.code)));
        text
    }

    /// As it goes to standard error for a program.
    pub(crate) fn json(&self) -> String {
        let error = json!({"error": {"code": self.code, "message": self.what, "hint": self.hint}});
        safe_json(&error.to_string())
    }
}

const CLOSED_PIPE: &str = "closed_pipe";

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let (exit, code, hint) = match fault.kind {
            FaultKind::Held => (Exit::Failure, "shard_held", "another node serves it; ask that one"),
            FaultKind::Refused => (Exit::Failure, "store_refused", "nothing was written; try again"),
            FaultKind::Unknown => (Exit::Unknown, "unknown", "look at the store before trying again"),
            FaultKind::Fatal => (Exit::Failure, "store_failed", "look after the disk, then open the store anew"),
            FaultKind::Corrupt { .. } => (
                Exit::Failure,
                "corrupt",
                "abide store check lists everything that is damaged; other runs are not affected",
            ),
            FaultKind::Importing => (Exit::Failure, "importing", ""),
            FaultKind::Unusable => (Exit::Failure, "store_unusable", ""),
        };
        let failure = Self::new(exit, code, fault.message);
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = match &refusal {
            Refusal::NotFound { .. } | Refusal::NoLetter { .. } => Exit::NotFound,
            Refusal::Unknown | Refusal::Busy { .. } => Exit::Unknown,
            Refusal::Invalid { .. } | Refusal::TooLarge { .. } => Exit::Usage,
            _ => Exit::Failure,
        };
        Self::new(exit, refusal.code(), refusal.to_string())
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Refused(refusal) => refusal.into(),
            Unanswered::Store(fault) => fault.into(),
            other => Self::new(Exit::Unknown, "unknown", other.to_string()),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Store(fault) => fault.into(),
            other => Self::new(Exit::Failure, "engine", other.to_string()),
        }
    }
}

impl From<HouseError> for Failure {
    fn from(error: HouseError) -> Self {
        let (code, hint) = match error {
            HouseError::Store(fault) | HouseError::Engine(OpenError::Store(fault)) => return fault.into(),
            HouseError::File(_) => ("io", "look at the disk, and whether the file may be read or written"),
            HouseError::BadFile { .. } => ("bad_file", "nothing was written; export the store again"),
            HouseError::Served { .. } => ("served", "stop them, or wait until their leases end: abide node list"),
            HouseError::Disturbed => ("disturbed", "stop whoever works on the store, and begin anew"),
            HouseError::Asked { .. } => {
                ("asked", "start an engine that has its workflow, and stop it when it was answered")
            }
            HouseError::AskedMeanwhile { .. } => (
                "asked",
                "nobody may ask by SQL during an export: take away who may call abide.start, signal and cancel",
            ),
            HouseError::Unbegun { .. } => ("unbegun", "abide dead-letter list shows it"),
            HouseError::Differs { .. } => ("differs", "the store cannot be opened; remove it, and report this"),
            _ => ("failed", ""),
        };
        let failure = Self::new(Exit::Failure, code, error.to_string());
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

impl From<BadUrl> for Failure {
    fn from(bad: BadUrl) -> Self {
        Self::usage("bad_store", bad.to_string()).hint("give it with --store, or in ABIDE_STORE")
    }
}

impl From<BadId> for Failure {
    fn from(bad: BadId) -> Self {
        Self::usage("bad_id", bad.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Exit::Ok, CLOSED_PIPE, error.to_string());
        }
        Self::new(Exit::Failure, "io", error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failure, "failed", format!("{error:#}"))
    }
}
