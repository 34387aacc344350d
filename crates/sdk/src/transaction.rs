//! Transactions of the user's own, whose outcome is recorded with what they did: exactly once, also when the process dies
//! right after the commit.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use abide_runtime::AttemptLink;
use abide_store::sqlite::rusqlite::Connection;
use abide_store::transaction::Transacted;
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
                let link = ledger.link.clone();
                let call = move |call: Call| -> Boxed<'a, Result<T, StepError>> {
                    Box::pin(async move { shared(&link, &call, work).await })
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
                let link = ledger.link.clone();
                let call = move |call: Call| -> Boxed<'a, Result<T, StepError>> {
                    Box::pin(async move { embedded(&link, &call, work).await })
                };
                Effect::new(ledger, (scope, name), base, place, call)
            }
        }
    };
}

transactions!(Ctx, InStep);
transactions!(FnCtx, InFunction);

/// Carries out a transaction on a connection of its own.
#[cfg(feature = "postgres")]
async fn shared<F, R, T, E>(link: &AttemptLink, call: &Call, work: F) -> Result<T, StepError>
where
    F: FnOnce(abide_store::postgres::Transaction) -> R,
    R: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<StepError>,
{
    use abide_store::postgres::{Ended, Transactions};

    let pool = link.pool().and_then(|pool| pool.downcast::<Transactions>().ok());
    let Some(pool) = pool else {
        let message = "a transaction like this needs an engine on postgres://; on sqlite: use sqlite_transaction";
        return Err(StepError::new(message).code("unsupported").terminal());
    };
    let Some(place) = link.place(call.key()) else { return Err(stale()) };
    let recorded = async |tx| text(&work(tx).await.map_err(Into::into)?);
    let wanted = || !link.is_cancelled();
    let ended = pool.run(&place, abide_runtime::points::reach, wanted, recorded).await;
    abide_runtime::points::reach("transaction-returned");
    match ended.map_err(refused)? {
        Ended::Failed(error) => Err(error),
        Ended::As(transacted) => outcome(transacted, None),
    }
}

/// Carries out a transaction on the connection that writes.
async fn embedded<F, T, E>(link: &AttemptLink, call: &Call, work: F) -> Result<T, StepError>
where
    F: FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    T: Serialize + DeserializeOwned,
    E: Into<StepError>,
{
    if link.pool().is_some() {
        let message = "a transaction like this needs an engine on sqlite:; on postgres:// use transaction";
        return Err(StepError::new(message).code("unsupported").terminal());
    }
    let Some(place) = link.place(call.key()) else { return Err(stale()) };
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
    outcome(transacted.map_err(refused)?, failed.lock().take())
}

fn outcome<T: DeserializeOwned>(transacted: Transacted, failed: Option<StepError>) -> Result<T, StepError> {
    match transacted {
        Transacted::Outcome(text) => read(&text),
        Transacted::Undone => Err(failed.unwrap_or_else(|| StepError::new("the transaction was undone"))),
        Transacted::Stale => Err(stale()),
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

fn stale() -> StepError {
    StepError::new("another node serves this run now: nothing was done").code("stale")
}

fn refused(fault: abide_store::Fault) -> StepError {
    StepError::new(fault).code("store")
}
