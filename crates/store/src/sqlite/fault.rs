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
            | Error::InvalidColumnType(..)
            // A row that is always there.
            | Error::QueryReturnedNoRows => FaultKind::Corrupt { run: None, position: None },
            _ => FaultKind::Refused,
        };
    };
    match failure.code {
        ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::NotADatabase | ErrorCode::PermissionDenied => {
            FaultKind::Unusable
        }
        ErrorCode::DatabaseCorrupt => FaultKind::Corrupt { run: None, position: None },
        // Our statements are fixed: one that is not understood finds tables that are not as they were made.
        _ if failure.extended_code == ffi::SQLITE_ERROR => FaultKind::Corrupt { run: None, position: None },
        // What could not be read may be readable later; after a failed write or sync nobody knows what is on the
        // disk, and the file must be opened anew.
        ErrorCode::SystemIoFailure => match failure.extended_code {
            ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_NOMEM => FaultKind::Refused,
            _ => FaultKind::Fatal,
        },
        _ => FaultKind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: std::ffi::c_int) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    /// The ground of D36: inside a transaction a failed write is fatal, what is short is refused, and a commit that
    /// failed is refused only when SQLite knows that it did not happen.
    #[test]
    fn what_may_follow_depends_on_what_failed() {
        let nowhere = FaultKind::Corrupt { run: None, position: None };
        let (fatal, refused) = (FaultKind::Fatal, FaultKind::Refused);
        let expected = [
            (ffi::SQLITE_FULL, refused, refused),
            (ffi::SQLITE_BUSY, refused, refused),
            (ffi::SQLITE_BUSY_SNAPSHOT, refused, refused),
            (ffi::SQLITE_CONSTRAINT_PRIMARYKEY, refused, fatal),
            (ffi::SQLITE_NOMEM, refused, fatal),
            (ffi::SQLITE_IOERR_READ, refused, fatal),
            (ffi::SQLITE_IOERR_WRITE, fatal, fatal),
            (ffi::SQLITE_IOERR_FSYNC, fatal, fatal),
            (ffi::SQLITE_IOERR_DIR_FSYNC, fatal, fatal),
            (ffi::SQLITE_CORRUPT, nowhere, fatal),
            (ffi::SQLITE_ERROR, nowhere, fatal),
            (ffi::SQLITE_NOTADB, FaultKind::Unusable, fatal),
            (ffi::SQLITE_READONLY_DBMOVED, FaultKind::Unusable, fatal),
        ];
        for (code, inside, at_commit) in expected {
            assert_eq!(fault("trying", failure(code)).kind, inside, "{code}");
            assert_eq!(commit_fault("trying", failure(code)).kind, at_commit, "{code}");
        }
        let wrong = Error::InvalidColumnType(0, "rev".into(), rusqlite::types::Type::Null);
        assert_eq!(fault("trying", wrong).kind, nowhere);
    }
}
