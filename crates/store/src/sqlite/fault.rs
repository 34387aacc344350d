//! Errors of SQLite as faults: what may follow depends on what failed, and on whether a commit was under way.

use rusqlite::{Error, ErrorCode, ffi};

use crate::{Fault, FaultKind};

/// An error while reading, or inside a transaction: that is rolled back, so nothing was written.
pub(super) fn fault(doing: &str, error: Error) -> Fault {
    Fault::because(kind(&error), format!("{doing}: {error}"), error)
}

/// An error of the commit itself: only when SQLite says that it ran out of room or of patience is it known that
/// nothing was written.
pub(super) fn commit_fault(doing: &str, error: Error) -> Fault {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => FaultKind::Refused,
        _ => FaultKind::Fatal,
    };
    Fault::because(kind, format!("committing, {doing}: {error}"), error)
}

fn kind(error: &Error) -> FaultKind {
    let Some(failure) = error.sqlite_error() else {
        return match error {
            // A column that does not hold what was written to it.
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::Utf8Error(..)
            | Error::InvalidColumnType(..) => FaultKind::Corrupt {
                run: None,
                position: None,
            },
            _ => FaultKind::Refused,
        };
    };
    match failure.code {
        ErrorCode::ReadOnly
        | ErrorCode::CannotOpen
        | ErrorCode::NotADatabase
        | ErrorCode::PermissionDenied => FaultKind::Unusable,
        ErrorCode::DatabaseCorrupt => FaultKind::Corrupt {
            run: None,
            position: None,
        },
        // What could not be read may be readable later; after a failed write or sync nobody knows what is on the
        // disk, and the file must be opened anew.
        ErrorCode::SystemIoFailure => match failure.extended_code {
            ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_NOMEM => {
                FaultKind::Refused
            }
            _ => FaultKind::Fatal,
        },
        _ => FaultKind::Refused,
    }
}
