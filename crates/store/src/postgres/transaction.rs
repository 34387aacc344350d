//! Transactions of the users' own in the store's database: connections of their own, whose sessions are as the users' role
//! has them, and an outcome that is written with their work.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_kernel::{RunId, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, ToStatement};

use super::column::{Id, escape, small};
use super::connect::{Role, Settings};
use super::fault::{Trouble, said};
use super::link::Live;
use crate::transaction::{Outcome, Place, Transacted};
use crate::{Fault, FaultKind};

/// Transactions at once; more wait for their turn.
const AT_ONCE: usize = 16;
/// How long it takes to try again when nobody knows what became of a commit.
const AGAIN: Duration = Duration::from_millis(200);

/// The connections for the users' own transactions.
pub struct Transactions {
    settings: Arc<Settings>,
    idle: std::sync::Mutex<Vec<Arc<Live>>>,
    room: Semaphore,
    heard: Arc<Notify>,
    sql: Sql,
}

impl fmt::Debug for Transactions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Transactions").finish_non_exhaustive()
    }
}

/// Statements with the name of the schema in them: the users' sessions do not look for names there.
struct Sql {
    find: String,
    write: String,
    claim: String,
}

impl Sql {
    fn new(schema: &str) -> Self {
        let columns = "(run, id, key, at, checksum, outcome)";
        let find =
            format!("SELECT at, checksum, outcome FROM \"{schema}\".transaction_outcome WHERE run = $1 AND id = $2");
        let write = format!(
            "WITH held AS MATERIALIZED (
                SELECT id FROM \"{schema}\".shard WHERE id = $7::smallint AND epoch = $8::bigint FOR SHARE
            ), written AS (
                INSERT INTO \"{schema}\".transaction_outcome {columns}
                SELECT $1::uuid, $2::text, $3::text, $4::bigint, $5::bigint, $6::text FROM held
                WHERE current_setting('abide.transaction', true) = $2::text
                RETURNING 1
            )
            SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM written)"
        );
        let claim = format!(
            "INSERT INTO \"{schema}\".transaction_outcome {columns} VALUES ($1, $2, '', 0, 0, '')
             ON CONFLICT DO NOTHING"
        );
        Self { find, write, claim }
    }
}

/// A transaction that is under way, on the store's database. What is done through it is committed together with the outcome
/// of the work, or not at all.
#[derive(Clone)]
pub struct Transaction {
    live: Arc<Live>,
    /// Whether the work is still at it.
    open: Arc<AtomicBool>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Transaction").field("open", &self.open.load(Ordering::Acquire)).finish_non_exhaustive()
    }
}

/// Why a statement of the users' own was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The database said no, or is gone.
    #[error("{}", said(.0))]
    Sql(#[from] Error),
    /// The work is over: what is left of its handle does nothing.
    #[error("the transaction is over; use it only inside of the work that was given it")]
    Over,
}

impl Transaction {
    fn client(&self) -> Result<&tokio_postgres::Client, TransactionError> {
        if self.open.load(Ordering::Acquire) { Ok(self.live.client()) } else { Err(TransactionError::Over) }
    }

    /// Carries out a statement; gives the number of rows it changed.
    ///
    /// # Errors
    /// When the database refuses it, or is gone.
    pub async fn execute<S: ?Sized + ToStatement + Sync>(
        &self,
        statement: &S,
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, TransactionError> {
        Ok(self.client()?.execute(statement, with).await?)
    }

    /// Carries out a statement; gives its rows.
    ///
    /// # Errors
    /// When the database refuses it, or is gone.
    pub async fn query<S: ?Sized + ToStatement + Sync>(
        &self,
        statement: &S,
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, TransactionError> {
        Ok(self.client()?.query(statement, with).await?)
    }

    /// Carries out a statement; gives its only row.
    ///
    /// # Errors
    /// When the database refuses it, is gone, or there is not exactly one.
    pub async fn query_one<S: ?Sized + ToStatement + Sync>(
        &self,
        statement: &S,
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, TransactionError> {
        Ok(self.client()?.query_one(statement, with).await?)
    }

    /// Carries out a statement; gives its row, if there is one.
    ///
    /// # Errors
    /// When the database refuses it, is gone, or there is more than one.
    pub async fn query_opt<S: ?Sized + ToStatement + Sync>(
        &self,
        statement: &S,
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, TransactionError> {
        Ok(self.client()?.query_opt(statement, with).await?)
    }

    /// Carries out several statements without values or answers.
    ///
    /// # Errors
    /// When the database refuses one, or is gone.
    pub async fn batch_execute(&self, statements: &str) -> Result<(), TransactionError> {
        Ok(self.client()?.batch_execute(statements).await?)
    }
}

/// What the users' own work came to.
#[derive(Debug)]
pub enum Ended<E> {
    /// As the store has it.
    As(Transacted),
    /// The work failed with this, and was undone.
    Failed(E),
}

impl Transactions {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let sql = Sql::new(&settings.schema);
        Self { settings, idle: std::sync::Mutex::default(), room: Semaphore::new(AT_ONCE), heard: Arc::default(), sql }
    }

    /// Does the work in a transaction and commits it with its outcome, unless an attempt before has: then this gives its
    /// outcome, and the work is not begun. `reach` is told how far it has come.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses, and nothing was done.
    pub async fn run<E, R: Future<Output = Result<String, E>>>(
        &self,
        place: &Place,
        reach: fn(&str),
        work: impl FnOnce(Transaction) -> R,
    ) -> Result<Ended<E>, Fault> {
        let Ok(_turn) = self.room.acquire().await else {
            return Err(Fault::new(FaultKind::Refused, "no more transactions are begun".to_owned()));
        };
        let (live, found) = self.begin(place).await.map_err(refused)?;
        if let Some(outcome) = found {
            return Ok(Ended::As(Transacted::Outcome(outcome)));
        }
        reach("transaction-begun");
        let open = Arc::new(AtomicBool::new(true));
        let over = Over(open.clone());
        let worked = work(Transaction { live: live.clone(), open }).await;
        drop(over);
        reach("transaction-worked");
        match worked {
            Err(error) => {
                self.undo(live).await;
                Ok(Ended::Failed(error))
            }
            Ok(outcome) => self.commit(live, place, outcome, reach).await.map(Ended::As),
        }
    }

    /// A connection on which a transaction has begun, or the outcome of one that was committed before.
    async fn begin(&self, place: &Place) -> Result<(Arc<Live>, Option<String>), Trouble> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
            let (live, fresh) = match kept {
                Some(live) => (live, false),
                None => (Arc::new(self.settings.connect(Role::User, &self.heard).await?), true),
            };
            match self.begin_on(&live, place).await {
                Ok(Some(outcome)) => {
                    self.keep(live.clone());
                    return Ok((live, Some(outcome)));
                }
                Ok(None) => return Ok((live, None)),
                // It broke while nobody looked.
                Err(trouble) if trouble.is_lost() && !fresh => {}
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn begin_on(&self, live: &Live, place: &Place) -> Result<Option<String>, Trouble> {
        if let Some(outcome) = self.find(live, place).await? {
            return Ok(Some(outcome));
        }
        // It is gone when the transaction ends, however it does: so that is noticed.
        let id = id(place);
        live.batch(&format!("BEGIN; SELECT set_config('abide.transaction', '{id}', true)")).await?;
        Ok(None)
    }

    async fn find(&self, live: &Live, place: &Place) -> Result<Option<String>, Trouble> {
        let found = live.client().query_opt(&self.sql.find, &[&Id(place.run), &id(place)]).await?;
        let Some(row) = found else { return Ok(None) };
        let outcome = super::column::unescape(row.try_get(2)?);
        if place.sum(row.try_get(0)?, &outcome) != row.try_get::<_, i64>(1)? {
            let message = format!("the outcome of {:?} is damaged: its checksum does not match", place.key);
            return Err(Fault::corrupt(Some(place.run), None, message).into());
        }
        Ok(Some(outcome))
    }

    async fn commit(
        &self,
        live: Arc<Live>,
        place: &Place,
        outcome: String,
        reach: fn(&str),
    ) -> Result<Transacted, Fault> {
        match self.write(&live, place, &outcome).await {
            Ok(None) => {}
            Ok(Some(otherwise)) => {
                self.undo(live).await;
                return Ok(otherwise);
            }
            // An attempt that nobody waits for any more was quicker.
            Err(trouble) if trouble.broken() == Some("transaction_outcome_pkey") => {
                self.undo(live).await;
                return self.look(place).await;
            }
            Err(trouble) => {
                self.undo(live).await;
                return Err(refused(trouble));
            }
        }
        reach("transaction-written");
        match live.batch("COMMIT").await {
            Ok(()) => {
                reach("transaction-committed");
                self.keep(live);
                Ok(Transacted::Outcome(outcome))
            }
            Err(trouble) if trouble.is_lost() => self.look(place).await,
            Err(trouble) => {
                self.undo(live).await;
                Err(refused(trouble))
            }
        }
    }

    /// Writes the outcome; gives what stands against it.
    async fn write(&self, live: &Live, place: &Place, outcome: &str) -> Result<Option<Transacted>, Trouble> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let at = now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
        let row = live
            .client()
            .query_one(
                &self.sql.write,
                &[
                    &Id(place.run),
                    &id(place),
                    &escape(&place.key),
                    &at,
                    &place.sum(at, outcome),
                    &escape(outcome),
                    &small(place.shard.0),
                    &(place.epoch.0 as i64),
                ],
            )
            .await?;
        Ok(match (row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?) {
            (0, _) => Some(Transacted::Stale),
            (_, 0) => Some(Transacted::Ended),
            _ => None,
        })
    }

    /// What became of a transaction that nobody knows of. Its row stands in the way of another until it is committed or
    /// undone, so that the answer is final.
    async fn look(&self, place: &Place) -> Result<Transacted, Fault> {
        loop {
            match self.look_once(place).await {
                Ok(Some(outcome)) => return Ok(Transacted::Outcome(outcome)),
                Ok(None) => {
                    let message = "the connection was lost before the transaction was committed: it was undone";
                    return Err(Fault::new(FaultKind::Refused, message.to_owned()));
                }
                Err(trouble) if trouble.is_lost() || matches!(trouble, Trouble::Unreachable(..)) => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(trouble) => return Err(refused(trouble)),
            }
        }
    }

    async fn look_once(&self, place: &Place) -> Result<Option<String>, Trouble> {
        let live = self.settings.connect(Role::User, &self.heard).await?;
        live.batch("BEGIN").await?;
        live.client().execute(&self.sql.claim, &[&Id(place.run), &id(place)]).await?;
        live.batch("ROLLBACK").await?;
        self.find(&live, place).await
    }

    async fn undo(&self, live: Arc<Live>) {
        if live.batch("ROLLBACK").await.is_ok() {
            self.keep(live);
        }
    }

    /// Keeps a connection for the next one. One that is dropped is closed, and what was under way on it is undone.
    fn keep(&self, live: Arc<Live>) {
        let mut idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if idle.len() < AT_ONCE {
            idle.push(live);
        }
    }
}

/// The handle does nothing more, also when the work is given up.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What an outcome is found by: keys may be longer than an index takes.
fn id(place: &Place) -> String {
    id_of(&place.key)
}

fn id_of(key: &str) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(key.as_bytes()))
}

/// Writes what a transaction came to elsewhere.
pub(super) async fn insert(live: &mut Live, kept: &Outcome) -> Result<(), Trouble> {
    let (key, outcome) = (escape(&kept.key), escape(&kept.outcome));
    live.execute(
        "INSERT INTO transaction_outcome (run, id, key, at, checksum, outcome) VALUES ($1, $2, $3, $4, $5, $6)",
        &[&Id(kept.run), &id_of(&kept.key), &key, &kept.at.0, &kept.sum(), &outcome],
    )
    .await?;
    Ok(())
}

/// What transactions came to, in the order of their places, after one of them.
pub(super) async fn outcomes(live: &mut Live, after: Option<&Outcome>, most: i64) -> Result<Vec<Outcome>, Trouble> {
    let (run, place) = after.map_or((RunId(0), String::new()), |after| (after.run, id_of(&after.key)));
    let sql = "SELECT run, key, at, outcome, checksum FROM transaction_outcome
               WHERE (run, id) > ($1, $2) ORDER BY run, id LIMIT $3";
    let mut found = Vec::new();
    for row in live.query(sql, &[&Id(run), &place, &most]).await? {
        let text = |column: usize| row.try_get::<_, String>(column).map(super::column::unescape);
        let run = row.try_get::<_, Id>(0)?.0;
        let kept = Outcome { run, key: text(1)?, at: Timestamp(row.try_get(2)?), outcome: text(3)? };
        found.push(kept.checked(row.try_get(4)?)?);
    }
    Ok(found)
}

fn refused(trouble: Trouble) -> Fault {
    if let Trouble::Sql(error) = &trouble
        && error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
    {
        let message = "a statement of the transaction had failed, so that it could only be undone";
        return Fault::new(FaultKind::Refused, message.to_owned());
    }
    trouble.into_fault("carrying out a transaction", FaultKind::Refused)
}
