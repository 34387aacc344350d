//! Waits for people: a pause, an approval, a task. A function asks for one person at a time, because a run has one
//! manual boundary at most; a wait that is dropped is withdrawn.

use std::future::{IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use abide_kernel::transition::manual::Asking;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{Choice, Decided, EndedAt, ManualKind, OnTimeout, OpState, Payload, Str};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::points::Boxed;
use super::{Ledger, Local, LocalKind, Mode, moment};
use crate::StepError;

/// Waits for a person to let the function go on, or to approve or reject.
#[must_use = "a person is asked when this is awaited"]
pub struct ManualWait {
    ledger: Arc<Ledger>,
    point: String,
    asking: Result<Asking, StepError>,
    input: u64,
    place: &'static Location<'static>,
}

impl ManualWait {
    pub(crate) fn new(ledger: Arc<Ledger>, point: String, kind: ManualKind, place: &'static Location<'static>) -> Self {
        Self { ledger, point, asking: Ok(Asking::new(kind)), input: 0, place }
    }

    fn change(mut self, change: impl FnOnce(&mut Asking)) -> Self {
        if let Ok(asking) = &mut self.asking {
            change(asking);
        }
        self
    }

    /// What the person is shown. A replay that comes here with another payload has diverged.
    pub fn payload<P: Serialize + ?Sized>(mut self, payload: &P) -> Self {
        match Payload::encode(payload) {
            Err(error) => self.asking = Err(error.into()),
            Ok(payload) => {
                self.input = payload.canonical_hash().max(1);
                return self.change(|asking| asking.payload = payload);
            }
        }
        self
    }

    /// The roles of which one is needed to decide. Without any, anybody may.
    pub fn roles(self, roles: &[&str]) -> Self {
        let roles = roles.iter().map(|role| Str::from(*role)).collect();
        self.change(|asking| asking.roles = roles)
    }

    /// Whose it is. Nobody else may decide it, unless it is given back or handed on.
    pub fn assignee(self, name: &str) -> Self {
        self.change(|asking| asking.assignee = Some(name.into()))
    }

    /// Waits no longer than this.
    pub fn deadline(self, limit: Duration) -> Self {
        self.change(|asking| asking.deadline = Some(moment(limit)))
    }

    /// Counts as approved when nobody has decided by the deadline; that is recorded as a decision by nobody.
    pub fn approve_on_timeout(self) -> Self {
        self.on_timeout(Choice::Approve, Payload::null())
    }

    /// Counts as rejected when nobody has decided by the deadline; that is recorded as a decision by nobody.
    pub fn reject_on_timeout(self) -> Self {
        self.on_timeout(Choice::Reject, Payload::null())
    }

    fn on_timeout(self, choice: Choice, payload: Payload) -> Self {
        self.change(|asking| asking.on_timeout = OnTimeout::Decide { choice, payload })
    }

    /// Asks, and waits for the answer.
    async fn decided(self) -> Result<Decision, StepError> {
        let asking = self.asking?;
        asking.validate().map_err(|refusal| StepError::new(&refusal).code(refusal.code()).terminal())?;
        if let Some(open) = self.ledger.asks(&self.point) {
            let message = format!(
                "{:?} asks for a person while {open:?} still does; a run has one manual boundary at a time",
                self.point
            );
            return Err(StepError::new(message).code("second_boundary").terminal());
        }
        let wanted = Wanted::Manual(Box::new(asking));
        let local = self.ledger.point(&self.point, &wanted, self.input, self.place)?;
        let asked = AskedFor { ledger: &self.ledger, local };
        let state = poll_fn(|cx| self.ledger.ended(local, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        drop(asked);
        Decision::of(&state)
    }
}

impl IntoFuture for ManualWait {
    type Output = Result<Decision, StepError>;
    type IntoFuture = Boxed<'static, Result<Decision, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.decided())
    }
}

/// Waits for a person to do a piece of work and to hand in its result.
#[must_use = "a person is asked when this is awaited"]
pub struct TaskWait<T> {
    wait: ManualWait,
    result: PhantomData<fn() -> T>,
}

impl<T> TaskWait<T> {
    pub(crate) fn new(wait: ManualWait) -> Self {
        Self { wait, result: PhantomData }
    }

    fn change(self, change: impl FnOnce(ManualWait) -> ManualWait) -> Self {
        Self { wait: change(self.wait), result: PhantomData }
    }

    /// The roles of which one is needed to do it. Without any, anybody may.
    pub fn roles(self, roles: &[&str]) -> Self {
        self.change(|wait| wait.roles(roles))
    }

    /// Whose it is. Nobody else may do it, unless it is given back or handed on.
    pub fn assignee(self, name: &str) -> Self {
        self.change(|wait| wait.assignee(name))
    }

    /// Waits no longer than this; after it the task fails with `task_timed_out`.
    pub fn deadline(self, limit: Duration) -> Self {
        self.change(|wait| wait.deadline(limit))
    }

    /// The result that counts as handed in when nobody has by the deadline.
    pub fn result_on_timeout<R: Serialize + ?Sized>(self, result: &R) -> Self {
        self.change(|mut wait| match Payload::encode(result) {
            Ok(payload) => wait.on_timeout(Choice::Complete, payload),
            Err(error) => {
                wait.asking = Err(error.into());
                wait
            }
        })
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for TaskWait<T> {
    type Output = Result<T, StepError>;
    type IntoFuture = Boxed<'static, Result<T, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let name = self.wait.point.clone();
            let decision = self.wait.decided().await?;
            match &decision.decided {
                Some(_) => decision.payload(),
                None => {
                    let message = format!("nobody handed in the result of task {name:?} in time");
                    Err(StepError::new(message).code("task_timed_out").terminal())
                }
            }
        })
    }
}

/// What came of asking a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    decided: Option<Decided>,
}

impl Decision {
    pub(super) fn of(state: &OpState) -> Result<Self, StepError> {
        let decided = match state {
            OpState::Done { value, .. } => Some(value.decode().map_err(|error| {
                StepError::new(format!("a recorded decision does not decode: {error}")).code("undecodable").terminal()
            })?),
            OpState::Failed { error, .. } => return Err(StepError::of((**error).clone())),
            OpState::Elapsed { .. } | OpState::Open => None,
        };
        Ok(Self { decided })
    }

    /// What was chosen; `None` when nobody decided in time and nothing was to follow from that by itself.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        self.decided.as_ref().map(|decided| decided.choice)
    }

    /// Whether it was approved.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        self.choice() == Some(Choice::Approve)
    }

    /// Whether it was rejected.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.choice() == Some(Choice::Reject)
    }

    /// Whether no person decided in time, whatever then counted as decided.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        self.actor().is_none()
    }

    /// Who decided; `None` when nobody did.
    #[must_use]
    pub fn actor(&self) -> Option<&str> {
        self.decided.as_ref()?.actor.as_deref()
    }

    /// Why, in their words.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.decided.as_ref()?.note.as_deref()
    }

    /// What they handed in with it.
    ///
    /// # Errors
    /// When it does not have the shape of `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, StepError> {
        let payload = self.decided.as_ref().map_or_else(Payload::null, |decided| decided.payload.clone());
        payload.decode().map_err(|error| {
            let message = format!("what was handed in does not decode as {}: {error}", std::any::type_name::<T>());
            StepError::new(message).code("undecodable").terminal()
        })
    }
}

/// A person is asked for as long as this lives.
pub(super) struct AskedFor<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) local: Local,
}

impl Drop for AskedFor<'_> {
    fn drop(&mut self) {
        // A function that panics is tried again, and then asks for the same.
        if !std::thread::panicking() {
            self.ledger.withdraw(self.local);
        }
    }
}

impl Ledger {
    /// The wait for a person that the code is in when it comes to the next one of this name, if it is in one. A replay
    /// finds the same one, ended or not; a review that asked only later was not in the way then, and is not now.
    fn asks(&self, name: &str) -> Option<Str> {
        let state = self.state.lock();
        let own = state.recorded_next(name);
        let before = |op: abide_kernel::OpId| own.is_none_or(|own| op < own);
        let waits = |known: &&super::Known| {
            known.kind == LocalKind::Manual && known.asked && !known.delivered && known.op.is_some_and(before)
        };
        state.entries.iter().find(waits).map(|known| known.key.clone())
    }

    /// The code does not wait for a person any more. Nothing is written when it has had its answer, or when the whole
    /// function leaves memory: what it had to write was taken before.
    fn withdraw(&self, local: Local) {
        let mut state = self.state.lock();
        state.waiting.remove(&local);
        // A step that comes here again asks the same; when it is left, nobody is asked any more.
        if self.mode == Mode::Step {
            return;
        }
        let at = state.now;
        let ended = state.ended + 1;
        let known = &mut state.entries[local];
        if known.delivered {
            return;
        }
        known.delivered = true;
        if known.state != OpState::Open {
            return;
        }
        known.state = OpState::Elapsed { when: EndedAt { ended, seen: 0, at } };
        if let Some(op) = known.op {
            state.ended = ended;
            state.buffer.push(Entry::Withdraw { op });
            // Woken inside the poll that dropped the wait: the function goes on by itself.
            let reviews = state.wake_manual(local);
            drop(state);
            reviews.into_iter().for_each(std::task::Waker::wake);
        }
    }
}

/// What a function that failed has to write: it is tried again, and then asks for what it asked when it failed.
pub(crate) fn still_asking(mut entries: Vec<Entry>) -> Vec<Entry> {
    let asks = |entry: &Entry| matches!(entry, Entry::Intend { what: Wanted::Manual(_), .. });
    let last = entries.iter().rposition(asks).map_or(0, |index| index + 1);
    let mut index = 0;
    entries.retain(|entry| {
        index += 1;
        index <= last || !matches!(entry, Entry::Withdraw { .. })
    });
    entries
}
