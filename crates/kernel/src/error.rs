//! The structured error of a run: what went wrong in a step, as it is kept and shown.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::ERROR_BYTES_MAX;
use crate::payload::present;
use crate::spec::{check_count, check_name, check_payload};
use crate::{Payload, Refusal, Str};

/// What went wrong, in a form that survives and can be asked about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// A stable word for the kind of error, like `payment_declined` or `panic`.
    pub code: Str,
    /// What happened, for a person.
    pub message: Str,
    /// Whether trying again may help.
    pub retryable: bool,
    /// Anything more the author wants to keep.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub details: Option<Payload>,
}

impl ErrorInfo {
    /// An error that a retry may cure. The message is cut at the limit.
    #[must_use]
    pub fn retryable(code: &str, message: &str) -> Self {
        let end = message.floor_char_boundary(ERROR_BYTES_MAX);
        Self { code: code.into(), message: message[..end].into(), retryable: true, details: None }
    }

    /// An error that no retry cures.
    #[must_use]
    pub fn terminal(code: &str, message: &str) -> Self {
        Self { retryable: false, ..Self::retryable(code, message) }
    }
}

impl ErrorInfo {
    /// Checks sizes before anything is written.
    ///
    /// # Errors
    /// The first thing that is too large.
    pub fn validate(&self) -> Result<(), Refusal> {
        check_name("error code", &self.code)?;
        check_count("error message", self.message.len(), ERROR_BYTES_MAX)?;
        self.details.iter().try_for_each(|details| check_payload("error details", details))
    }
}

impl fmt::Display for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl core::error::Error for ErrorInfo {}
