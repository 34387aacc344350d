//! What goes wrong on the way to the database and back, as faults: what may follow depends on whether the statement may
//! have been carried out.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::{Fault, FaultKind};

/// Why a piece of work was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There is no connection, and none could be made: nothing was sent.
    Unreachable(String, Option<Error>),
    /// The server refused, or the connection broke.
    Sql(Error),
    /// No answer came in time.
    Late,
    /// What came is not what was written.
    Found(Fault),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Found(fault)
    }
}

impl Trouble {
    /// Whether the connection is of no more use. What was under way then may have been done or not: the server may have
    /// committed before it could say so.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Unreachable(..) | Self::Found(_) => false,
            Self::Late => true,
            Self::Sql(error) => error.as_db_error().map_or(!is_conversion(error), ends_connection),
        }
    }

    /// The constraint that a statement would have broken.
    pub(super) fn broken(&self) -> Option<&str> {
        match self {
            Self::Sql(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                error.as_db_error().and_then(DbError::constraint)
            }
            _ => None,
        }
    }

    /// The fault to report. `lost` is what a broken connection means for this piece of work.
    pub(super) fn into_fault(self, doing: &str, lost: FaultKind) -> Fault {
        let is_lost = self.is_lost();
        match self {
            Self::Unreachable(why, None) => Fault::new(FaultKind::Refused, format!("{doing}: {why}")),
            Self::Unreachable(why, Some(error)) => {
                Fault::because(FaultKind::Refused, format!("{doing}: {why}: {}", said(&error)), error)
            }
            Self::Late => Fault::new(lost, format!("{doing}: the database did not answer in time")),
            Self::Sql(error) => {
                let kind = if is_lost { lost } else { kind(&error) };
                Fault::because(kind, format!("{doing}: {}", said(&error)), error)
            }
            Self::Found(fault) => fault,
        }
    }
}

/// A value that is not of the type it should be: found here, after the answer had come.
fn is_conversion(error: &Error) -> bool {
    error.source().is_some_and(|source| {
        source.is::<tokio_postgres::types::WrongType>() || source.is::<tokio_postgres::types::WasNull>()
    })
}

fn ends_connection(error: &DbError) -> bool {
    let severe = matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    // After a failover this server only reads; another may be the one to write to.
    severe || *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION
}

/// What the server said, without the details: they may quote what was to be written.
pub(super) fn said(error: &Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// What an answer of the server means: it carried nothing out.
fn kind(error: &Error) -> FaultKind {
    let nowhere = FaultKind::Corrupt { run: None, position: None };
    let Some(code) = error.code() else { return nowhere };
    match *code {
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => nowhere,
        // Our statements are fixed: one that is not understood finds tables that are not as they were made.
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::UNDEFINED_FUNCTION => FaultKind::Unusable,
        SqlState::INSUFFICIENT_PRIVILEGE | SqlState::INVALID_SCHEMA_NAME => FaultKind::Unusable,
        _ => FaultKind::Refused,
    }
}
