//! Transactions of the user's own, whose outcome is recorded with what they did: exactly once, also when the process dies
//! right after the commit.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use abide_runtime::AttemptLink;
use abide_store::sqlite::rusqlite::Connection;
use abide_store::transaction::{Place, Transacted};
use abide_store::{Fault, FaultKind};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ledger::Ledger;
use crate::ledger::answer::{InFunction, InStep};
use crate::ledger::points::{Boxed, Call, Effect, encode};
use crate::{Ctx, FnCtx, StepError};

/// How long a transaction on the connection that writes may take: everybody else waits for it.
const SHORT: Duration = Duration::from_secs(1);

/// Where an effect stands: its ledger, its scope, and the beginning of its key.
pub(crate) type Stand<'s> = (Arc<Ledger>, &'s str, Arc<str>);

macro_rules! transactions {
    ($ctx:ident, $where:ident) => {
        impl $ctx {
            /// SQL of your own in the engine's PostgreSQL database, and the outcome of it, in one transaction: exactly once
            /// for that database, also when the process dies right after the commit, the lease is lost meanwhile, or two
            /// attempts overlap. What `work` returns is what every later attempt gets; when it fails, nothing is done.
            ///
            /// `work` gets a handle that is good until it returns. It must not end the transaction by itself. The session is
            /// the engine's role's: give it the rights on your tables. Tables are looked for as that role looks for them.
            ///
            /// ```no_run
            /// use abide::{FnCtx, Function, StepError};
            ///
            /// let pay = Function::new("pay", async |ctx: FnCtx, (account, cents): (i64, i64)| {
            ///     let left: i64 = ctx
            ///         .transaction("debit", async move |tx| {
            ///             let sql = "UPDATE account SET cents = cents - $1 WHERE id = $2 RETURNING cents";
            ///             let row = tx.query_one(sql, &[&cents, &account]).await?;
            ///             Ok::<_, StepError>(row.get(0))
            ///         })
            ///         .await?;
            ///     Ok::<_, StepError>(left)
            /// });
            /// ```
            #[cfg(feature = "postgres")]
            #[track_caller]
            pub fn transaction<'a, F, R, T, E>(
                &self,
                name: &str,
                work: F,
            ) -> Effect<
                'a,
                impl FnOnce(Call) -> Boxed<'a, Result<T, StepError>> + Send + 'a,
                Boxed<'a, Result<T, StepError>>,
                T,
                $where,
            >
            where
                F: FnOnce(abide_store::postgres::Transaction) -> R + Send + 'a,
                R: Future<Output = Result<T, E>> + Send + 'a,
                T: Serialize + DeserializeOwned + Send + 'a,
                E: Into<StepError> + 'a,
            {
                let ((ledger, scope, base), place) = (self.stand(), Location::caller());
                let own = ledger.clone();
                let call = move |call: Call| -> Boxed<'a, Result<T, StepError>> {
                    Box::pin(async move { shared::shared(&own, &call, work).await })
                };
                Effect::new(ledger, (scope, name), base, place, call)
            }

            /// SQL of your own in the engine's SQLite file, and the outcome of it, in one transaction: exactly once, also
            /// when the process dies right after the commit. What `work` returns is what every later attempt gets; when it
            /// fails, nothing is done.
            ///
            /// `work` runs on the connection that writes the journal, and everybody waits for it: it is undone when it takes
            /// longer than a second. It may do as it likes with tables of its own, and read the engine's; it cannot write
            /// those, end the transaction, or change settings of the file.
            ///
            /// ```no_run
            /// use abide::{FnCtx, Function, StepError};
            ///
            /// let pay = Function::new("pay", async |ctx: FnCtx, (account, cents): (i64, i64)| {
            ///     let left: i64 = ctx
            ///         .sqlite_transaction("debit", move |tx| {
            ///             let sql = "UPDATE account SET cents = cents - ?1 WHERE id = ?2 RETURNING cents";
            ///             Ok::<_, StepError>(tx.query_row(sql, [cents, account], |row| row.get(0))?)
            ///         })
            ///         .await?;
            ///     Ok::<_, StepError>(left)
            /// });
            /// ```
            #[track_caller]
            pub fn sqlite_transaction<'a, F, T, E>(
                &self,
                name: &str,
                work: F,
            ) -> Effect<
                'a,
                impl FnOnce(Call) -> Boxed<'a, Result<T, StepError>> + Send + 'a,
                Boxed<'a, Result<T, StepError>>,
                T,
                $where,
            >
            where
                F: FnOnce(&Connection) -> Result<T, E> + Send + 'static,
                T: Serialize + DeserializeOwned + Send + 'a,
                E: Into<StepError> + 'static,
            {
                let ((ledger, scope, base), place) = (self.stand(), Location::caller());
                let own = ledger.clone();
                let call = move |call: Call| -> Boxed<'a, Result<T, StepError>> {
                    Box::pin(async move { embedded(&own, &call, work).await })
                };
                Effect::new(ledger, (scope, name), base, place, call)
            }
        }
    };
}

transactions!(Ctx, InStep);
transactions!(FnCtx, InFunction);

/// Carries out a transaction on the connection that writes.
async fn embedded<F, T, E>(ledger: &Ledger, call: &Call, work: F) -> Result<T, StepError>
where
    F: FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    T: Serialize + DeserializeOwned,
    E: Into<StepError>,
{
    let link = &ledger.link;
    if link.pool().is_some() {
        return Err(unsupported("a transaction like this needs an engine on sqlite:; on postgres:// use transaction"));
    }
    let Some(place) = place(link, call).await? else { return Err(over()) };
    let failed: Arc<Mutex<Option<StepError>>> = Arc::default();
    let (failing, mut work, going) = (failed.clone(), Some(work), link.clone());
    let once = move |connection: &dyn Any| {
        // It may have waited for its turn for long.
        if going.is_cancelled() {
            return None;
        }
        let connection = connection.downcast_ref::<Connection>()?;
        let done = work.take()?(connection).map_err(Into::into).and_then(|value| text(&value));
        done.map_err(|error| *failing.lock() = Some(error)).ok()
    };
    let transacted = link.transact(place, SHORT, once).await;
    abide_runtime::points::reach("transaction-returned");
    match transacted {
        // Whether it was done is found by the next attempt.
        Err(fault) if fault.kind == FaultKind::Unknown => ledger.give_back().await,
        Err(fault) => Err(refused(fault)),
        Ok(Transacted::Stale) if !link.is_cancelled() => ledger.give_back().await,
        Ok(transacted) => outcome(transacted, failed.lock().take()),
    }
}

/// Where the transaction belongs; nowhere when the claim has ended.
async fn place(link: &AttemptLink, call: &Call) -> Result<Option<Place>, StepError> {
    match link.place(call.key()).await {
        None if !link.is_cancelled() => {
            Err(unsupported("a transaction needs an engine in this process, on the database"))
        }
        place => Ok(place),
    }
}

fn outcome<T: DeserializeOwned>(transacted: Transacted, failed: Option<StepError>) -> Result<T, StepError> {
    match transacted {
        Transacted::Outcome(text) => read(&text),
        Transacted::Undone => Err(failed.unwrap_or_else(|| StepError::new("the transaction was undone"))),
        Transacted::Stale => Err(over()),
        Transacted::Late => {
            let message =
                format!("the transaction took longer than {SHORT:?} on the connection that writes; it was undone");
            Err(StepError::new(message).code("too_long"))
        }
        Transacted::Ended => {
            let message =
                "the transaction was ended inside of its work, by COMMIT or ROLLBACK: leave that to the engine";
            Err(StepError::new(message).code("ended_inside").terminal())
        }
    }
}

/// A value as it is kept beside what was done.
fn text<T: Serialize + DeserializeOwned>(value: &T) -> Result<String, StepError> {
    let payload = encode("the transaction's outcome", value).map_err(StepError::of)?;
    let text = serde_json::to_string(&payload).map_err(StepError::from)?;
    // What could not be read back would be known too late: after the commit.
    read::<T>(&text)?;
    Ok(text)
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, StepError> {
    serde_json::from_str(text).map_err(|error| {
        let expected = std::any::type_name::<T>();
        let message = format!("the transaction's outcome does not decode as {expected}: {error}");
        StepError::new(message).code("undecodable").terminal()
    })
}

/// The claim has ended, so that this is recorded nowhere.
fn over() -> StepError {
    StepError::new("the claim of this attempt has ended: nothing was done").code("stale")
}

fn unsupported(message: &str) -> StepError {
    StepError::new(message).code("unsupported").terminal()
}

fn refused(fault: Fault) -> StepError {
    StepError::new(fault).code("store")
}

/// Transactions on connections of their own.
#[cfg(feature = "postgres")]
mod shared {
    use std::sync::atomic::{AtomicBool, Ordering};

    use abide_store::postgres::tokio_postgres::Error;
    use abide_store::postgres::tokio_postgres::error::{Severity, SqlState};
    use abide_store::postgres::{Ended, Transaction, Transactions};

    use super::*;

    /// How long a database that cannot be reached is left alone, at first and at most.
    const PAUSE: Duration = Duration::from_millis(200);
    const PAUSE_MAX: Duration = Duration::from_secs(5);

    tokio::task_local! {
        /// Whether the outcome was written, so that only the commit was left.
        static WRITTEN: AtomicBool;
    }

    fn reach(point: &str) {
        if point == "transaction-written" {
            let _ = WRITTEN.try_with(|written| written.store(true, Ordering::Relaxed));
        }
        abide_runtime::points::reach(point);
    }

    /// What came of one try.
    enum Tried {
        Ended(Result<Ended<StepError>, Fault>),
        /// The connection could not be had, or broke: nothing was done.
        Lost(String),
    }

    /// Carries out a transaction. Only what the work did or the database refused is an outcome. Where the connection or
    /// the ownership was lost, nothing was done and nothing is recorded: it is tried again here, or by the next attempt
    /// when the work has begun, because that can be called once.
    pub(super) async fn shared<F, R, T, E>(ledger: &Ledger, call: &Call, work: F) -> Result<T, StepError>
    where
        F: FnOnce(Transaction) -> R,
        R: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<StepError>,
    {
        let link = &ledger.link;
        let pool = link.pool().and_then(|pool| pool.downcast::<Transactions>().ok());
        let Some(pool) = pool else {
            let message = "a transaction like this needs an engine on postgres://; on sqlite: use sqlite_transaction";
            return Err(unsupported(message));
        };
        let (mut work, mut pause) = (Some(work), PAUSE);
        loop {
            let Some(place) = place(link, call).await? else { return Err(over()) };
            let tried = attempt(&pool, &place, link, &mut work).await;
            abide_runtime::points::reach("transaction-returned");
            match tried {
                _ if link.is_cancelled() => return Err(over()),
                Tried::Ended(Ok(Ended::Failed(error))) => return Err(error),
                Tried::Ended(Ok(Ended::As(Transacted::Stale))) => return ledger.give_back().await,
                Tried::Ended(Ok(Ended::As(transacted))) => return outcome(transacted, None),
                Tried::Ended(Err(fault)) => return Err(refused(fault)),
                Tried::Lost(why) => {
                    tracing::warn!(run = %place.run, key = place.key, why, "a transaction lost its connection; it is tried again");
                    tokio::time::sleep(pause).await;
                    if work.is_none() {
                        return ledger.give_back().await;
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn attempt<F, R, T, E>(pool: &Transactions, place: &Place, link: &AttemptLink, work: &mut Option<F>) -> Tried
    where
        F: FnOnce(Transaction) -> R,
        R: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<StepError>,
    {
        let (begun, broke) = (AtomicBool::new(false), AtomicBool::new(false));
        let recorded = async |tx: Transaction| {
            begun.store(true, Ordering::Relaxed);
            let work = work.take().expect("a transaction whose work has begun is not tried again");
            let worked = work(tx.clone()).await.map_err(Into::into).and_then(|value| text(&value));
            // The work may make what it likes of a connection that breaks under it; it is not its own failure.
            broke.store(worked.is_err() && tx.batch_execute("").await.is_err(), Ordering::Relaxed);
            worked
        };
        let tried = async {
            let ended = pool.run(place, reach, || !link.is_cancelled(), recorded).await;
            (ended, WRITTEN.with(|written| written.load(Ordering::Relaxed)))
        };
        match WRITTEN.scope(AtomicBool::new(false), tried).await {
            (Ok(Ended::Failed(error)), _) if broke.load(Ordering::Relaxed) => Tried::Lost(error.to_string()),
            (Err(fault), written) if is_lost(&fault, !begun.load(Ordering::Relaxed) || written) => {
                Tried::Lost(fault.to_string())
            }
            (ended, _) => Tried::Ended(ended),
        }
    }

    /// Whether a fault is the connection's: the server did not say no to what was asked. `silent` is what a fault that
    /// nobody said means.
    fn is_lost(fault: &Fault, silent: bool) -> bool {
        let said = fault.source.as_deref().and_then(|source| source.downcast_ref::<Error>());
        fault.may_retry()
            && said.map_or(silent, |error| {
                error.as_db_error().is_none_or(|said| {
                    let severe = matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
                    severe || *said.code() == SqlState::READ_ONLY_SQL_TRANSACTION
                })
            })
    }
}
