//! Filling a file from elsewhere.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::fault::{commit_fault, fault};
use super::{SqliteStore, letter, setting, transact};
use crate::setting::IMPORTING;
use crate::transaction::Outcome;
use crate::{DeadLetterItem, Fault, Import, import};

const FULL: &str = "SELECT EXISTS (SELECT 1 FROM journal) OR EXISTS (SELECT 1 FROM dead_letter)
    OR EXISTS (SELECT 1 FROM transaction_outcome)";

/// Refuses a file that holds a part of what was to be imported.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), Fault> {
    let marked: bool = connection
        .query_row("SELECT EXISTS (SELECT 1 FROM setting WHERE name = ?1)", [IMPORTING], |row| row.get(0))
        .map_err(|error| fault("looking for an import", error))?;
    if marked {
        let path = path.display().to_string();
        let remove = format!("delete {path}, {path}-wal and {path}-shm");
        return Err(import::unfinished(&path, &remove));
    }
    Ok(())
}

impl SqliteStore {
    fn write(&mut self, doing: &str, what: impl FnOnce(&Connection) -> Result<(), Fault>) -> Result<(), Fault> {
        self.check_going()?;
        self.counts.write();
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| fault(doing, error))?;
        let written =
            what(&transaction).and_then(|()| transaction.commit().map_err(|error| commit_fault(doing, error)));
        self.heed(written)
    }
}

impl Import for SqliteStore {
    fn begin_import(&mut self) -> Result<(), Fault> {
        let doing = "beginning an import";
        let path = self.path.display().to_string();
        self.write(doing, |connection| {
            let full: bool = connection.query_row(FULL, [], |row| row.get(0)).map_err(|error| fault(doing, error))?;
            if full {
                return Err(import::not_empty(&path));
            }
            setting::write(connection, IMPORTING, 1).map_err(|error| fault(doing, error))
        })
    }

    fn import_letter(&mut self, letter: &DeadLetterItem) -> Result<(), Fault> {
        self.write("keeping a dead letter", |connection| {
            letter::set_aside(connection, letter.at, &letter.node, &letter.dead)
        })
    }

    fn import_outcome(&mut self, outcome: &Outcome) -> Result<(), Fault> {
        let doing = "keeping the outcome of a transaction";
        self.write(doing, |connection| transact::insert(connection, outcome).map_err(|error| fault(doing, error)))
    }

    fn end_import(&mut self) -> Result<(), Fault> {
        let doing = "ending an import";
        self.write(doing, |connection| {
            let removed = connection.execute("DELETE FROM setting WHERE name = ?1", [IMPORTING]);
            removed.map(drop).map_err(|error| fault(doing, error))
        })
    }
}
