//! The users' own SQL in the same file: a short piece of work on the connection that writes, undone as a whole unless its
//! outcome is written with it.

use std::time::{Duration, Instant};

use abide_kernel::{RunId, Timestamp};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::{commit_fault, fault};
use super::{SqliteStore, check};
use crate::Fault;
use crate::transaction::{Outcome, Place, Transacted, Work};

/// How many steps of SQLite's machine go by before the time is looked at.
const STEPS: i32 = 1_000;

impl SqliteStore {
    pub(super) fn transact_here(
        &mut self,
        place: &Place,
        limit: Duration,
        work: Work<'_>,
    ) -> Result<Transacted, Fault> {
        let doing = |error| fault("carrying out a transaction", error);
        if let Some(outcome) = self.outcome(place)? {
            return Ok(Transacted::Outcome(outcome));
        }
        self.counts.write();
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(doing)?;
        let transacted = self.transact_inside(place, limit, work);
        match transacted {
            Ok(Transacted::Outcome(outcome)) => {
                self.connection
                    .execute_batch("COMMIT")
                    .map_err(|error| commit_fault("carrying out a transaction", error))
                    .inspect_err(|_| drop(self.connection.execute_batch("ROLLBACK")))?;
                Ok(Transacted::Outcome(outcome))
            }
            other => {
                if !self.connection.is_autocommit() {
                    self.connection.execute_batch("ROLLBACK").map_err(doing)?;
                }
                other
            }
        }
    }

    /// What an attempt before committed.
    fn outcome(&self, place: &Place) -> Result<Option<String>, Fault> {
        let found: Option<(i64, String, i64)> = self
            .connection
            .prepare_cached("SELECT at, outcome, checksum FROM transaction_outcome WHERE run = ?1 AND key = ?2")
            .and_then(|mut statement| {
                let run = place.run.0.to_be_bytes();
                let with = params![run.as_slice(), place.key];
                statement.query_row(with, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()
            })
            .map_err(|error| fault("looking for a transaction's outcome", error))?;
        let Some((at, outcome, checksum)) = found else { return Ok(None) };
        if place.sum(at, &outcome) != checksum {
            let message = format!("the outcome of {:?} is damaged: its checksum does not match", place.key);
            return Err(Fault::corrupt(Some(place.run), None, message));
        }
        Ok(Some(outcome))
    }

    /// Inside of the transaction: the ownership is checked, the work is done, and its outcome is written.
    fn transact_inside(&mut self, place: &Place, limit: Duration, work: Work<'_>) -> Result<Transacted, Fault> {
        let doing = |error| fault("carrying out a transaction", error);
        let epoch: i64 = self
            .connection
            .prepare_cached("SELECT epoch FROM shard WHERE id = ?1")
            .and_then(|mut statement| statement.query_row([place.shard.0], |row| row.get(0)))
            .map_err(doing)?;
        if epoch as u64 != place.epoch.0 {
            return Ok(Transacted::Stale);
        }
        let until = Instant::now() + limit;
        let ours = check::tables()?;
        self.connection.progress_handler(STEPS, Some(move || Instant::now() >= until)).map_err(doing)?;
        self.connection.authorizer(Some(move |asked: AuthContext<'_>| authorize(&asked, ours))).map_err(doing)?;
        // A statement may undo the whole transaction by itself. What comes after it must not be committed one by one.
        self.connection.commit_hook(Some(|| true)).map_err(doing)?;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&self.connection)));
        self.connection.commit_hook(None::<fn() -> bool>).map_err(doing)?;
        self.connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).map_err(doing)?;
        self.connection.progress_handler(0, None::<fn() -> bool>).map_err(doing)?;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(panic) => {
                let _ = self.connection.execute_batch("ROLLBACK");
                std::panic::resume_unwind(panic);
            }
        };
        if Instant::now() >= until {
            return Ok(Transacted::Late);
        }
        let Some(outcome) = outcome else { return Ok(Transacted::Undone) };
        // Undone by a statement of its own, whose error it passed over.
        if self.connection.is_autocommit() {
            return Ok(Transacted::Ended);
        }
        write(&self.connection, place, &outcome).map_err(doing)?;
        Ok(Transacted::Outcome(outcome))
    }
}

fn write(connection: &Connection, place: &Place, outcome: &str) -> rusqlite::Result<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = Timestamp(now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX)));
    insert(connection, &Outcome { run: place.run, key: place.key.clone(), at, outcome: outcome.to_owned() })
}

/// Writes what a transaction came to.
pub(super) fn insert(connection: &Connection, outcome: &Outcome) -> rusqlite::Result<()> {
    let run = outcome.run.0.to_be_bytes();
    connection
        .prepare_cached(
            "INSERT INTO transaction_outcome (run, key, at, outcome, checksum) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![run.as_slice(), outcome.key, outcome.at.0, outcome.outcome, outcome.sum()])?;
    Ok(())
}

/// What transactions came to, in the order of their places, after one of them.
pub(super) fn outcomes(connection: &Connection, after: Option<&Outcome>, most: i64) -> Result<Vec<Outcome>, Fault> {
    let doing = |error| fault("reading outcomes of transactions", error);
    let (run, key) = after.map_or((RunId(0), ""), |after| (after.run, after.key.as_str()));
    let mut statement = connection
        .prepare_cached(
            "SELECT run, key, at, outcome, checksum FROM transaction_outcome
             WHERE (run, key) > (?1, ?2) ORDER BY run, key LIMIT ?3",
        )
        .map_err(doing)?;
    let mut rows = statement.query(params![run.0.to_be_bytes().as_slice(), key, most]).map_err(doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(doing)? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Looks all of them over.
pub(super) fn check(connection: &Connection) -> Result<(), Fault> {
    let doing = |error| fault("reading outcomes of transactions", error);
    let sql = "SELECT run, key, at, outcome, checksum FROM transaction_outcome";
    let mut statement = connection.prepare(sql).map_err(doing)?;
    let mut rows = statement.query([]).map_err(doing)?;
    while let Some(row) = rows.next().map_err(doing)? {
        read(row)?;
    }
    Ok(())
}

fn read(row: &rusqlite::Row<'_>) -> Result<Outcome, Fault> {
    let read = || {
        let run = RunId(u128::from_be_bytes(row.get(0)?));
        let outcome = Outcome { run, key: row.get(1)?, at: Timestamp(row.get(2)?), outcome: row.get(3)? };
        Ok((outcome, row.get(4)?))
    };
    let (outcome, checksum): (Outcome, i64) =
        read().map_err(|error| fault("reading the outcome of a transaction", error))?;
    outcome.checked(checksum)
}

/// What the users' SQL may do: everything in tables of its own, and look at ours. What would end the transaction, or change
/// how the file is kept, is the engine's.
fn authorize(asked: &AuthContext<'_>, ours: &[String]) -> Authorization {
    let is_ours = |name: &str| ours.iter().any(|known| known.eq_ignore_ascii_case(name));
    let table = match asked.action {
        // What is temporary would stand before ours of the same name, for everybody on this connection.
        AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::Analyze { .. }
        | AuthAction::Reindex { .. }
        | AuthAction::Transaction { .. }
        | AuthAction::Pragma { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Unknown { .. } => return Authorization::Deny,
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. } => table_name,
        AuthAction::DropView { view_name } => view_name,
        _ => return Authorization::Allow,
    };
    if is_ours(table) || table.starts_with("sqlite_stat") { Authorization::Deny } else { Authorization::Allow }
}
