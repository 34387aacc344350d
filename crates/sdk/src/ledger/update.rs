//! Updates from inside: the code waits to be asked for something, does it, and answers. What it was asked is in its
//! ledger, so a crash between the question and the answer loses neither.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{ErrorInfo, Moment, OpState, Payload, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::points::{Boxed, encode};
use super::{Ledger, Local, moment};
use crate::StepError;

/// Waits to be asked for an update; with a deadline, perhaps in vain.
#[must_use = "a wait begins when it is awaited"]
pub struct UpdateWait<T> {
    ledger: Arc<Ledger>,
    point: String,
    name: String,
    place: &'static Location<'static>,
    input: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send> UpdateWait<T> {
    pub(crate) fn new(ledger: Arc<Ledger>, point: String, name: &str, place: &'static Location<'static>) -> Self {
        Self { ledger, point, name: name.into(), place, input: PhantomData }
    }

    /// Waits no longer than this; `None` when nobody has asked by then.
    ///
    /// # Errors
    /// When the name cannot be recorded.
    pub async fn within(self, limit: Duration) -> Result<Option<UpdateRequest<T>>, StepError> {
        self.asked(Some(limit)).await
    }

    async fn asked(self, limit: Option<Duration>) -> Result<Option<UpdateRequest<T>>, StepError> {
        let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let last = limit_ms.map(|ms| Moment::At(self.ledger.now().after(ms)));
        let mut deadline = limit.map(moment);
        loop {
            let wanted = Wanted::Update { name: self.name.as_str().into(), deadline };
            let local = self.ledger.point(&self.point, &wanted, 0, self.place)?;
            match self.ledger.outcome(local).await {
                OpState::Elapsed { .. } | OpState::Open => return Ok(None),
                // It could not be read when it came.
                OpState::Failed { .. } => {}
                OpState::Done { when, value } => {
                    let unread = match value.decode() {
                        Ok(input) => return Ok(Some(UpdateRequest { ledger: self.ledger, local, input })),
                        Err(error) => {
                            let expected = std::any::type_name::<T>();
                            let message =
                                format!("the input of update {:?} does not decode as {expected}: {error}", self.name);
                            ErrorInfo::terminal("undecodable", &message)
                        }
                    };
                    // What the code had before it must have again.
                    if when.seen > 0 {
                        return Err(StepError::of(unread));
                    }
                    self.ledger.reply(local, Reply::Rejected(Arc::new(unread)), true);
                }
            }
            // What could not be read does not make the wait longer.
            deadline = last;
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for UpdateWait<T> {
    type Output = Result<UpdateRequest<T>, StepError>;
    type IntoFuture = Boxed<'static, Result<UpdateRequest<T>, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let name = self.name.clone();
            let ended = || StepError::new(format!("the wait for update {name:?} ended without one")).code("withdrawn");
            self.asked(None).await?.ok_or_else(ended)
        })
    }
}

/// Something that the run was asked to do. Answer or reject it: whoever asked waits for that, until the run ends.
#[must_use = "whoever asked waits for an answer"]
pub struct UpdateRequest<T> {
    ledger: Arc<Ledger>,
    local: Local,
    input: T,
}

impl<T> UpdateRequest<T> {
    /// What is asked.
    pub fn input(&self) -> &T {
        &self.input
    }

    /// It is done, with this answer. It is written with what the function writes next, and the caller gets it when that
    /// is durable.
    ///
    /// # Errors
    /// When the answer has no JSON form, or is too large.
    pub fn answer<A: Serialize + ?Sized>(self, answer: &A) -> Result<(), StepError> {
        let answer: Payload = encode("the answer", answer).map_err(StepError::of)?;
        self.ledger.reply(self.local, Reply::Value(answer), false);
        Ok(())
    }

    /// It is not done, for this reason.
    pub fn reject(self, reason: &str) {
        let error = ErrorInfo::terminal("rejected", reason);
        self.ledger.reply(self.local, Reply::Rejected(Arc::new(error)), false);
    }
}

impl Ledger {
    /// Answers what an entry got, unless that is recorded.
    fn reply(&self, local: Local, reply: Reply, unread: bool) {
        let mut state = self.state.lock();
        let known = &mut state.entries[local];
        if let (false, Some(op)) = (std::mem::replace(&mut known.answered, true), known.op) {
            state.buffer.push(Entry::Answer { op, reply, unread });
        }
    }
}
