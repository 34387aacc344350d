//! Answers of effects in steps: executed now, recorded before, or with another attempt.
//!
//! A function has no such answer: what it executed in one attempt is recorded in the next, so code that told the two
//! apart would do something else in its replay. From outside, [`EffectView`](crate::EffectView) tells what is recorded.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::points::{self, Boxed, Call, Effect};
use super::{Ledger, Mode};
use crate::StepError;

/// The effect is one of a function, which is replayed.
#[derive(Debug)]
pub enum InFunction {}

/// The effect is one of a machine's step, which runs again from its beginning.
#[derive(Debug)]
pub enum InStep {}

/// How a step came by what an effect gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// This attempt executed it.
    Executed(T),
    /// It was recorded before, by an earlier attempt at this step or by somebody's word. Nothing was called.
    Recorded(T),
    /// The claim of this attempt has ended: another attempt has the effect, or had it. Nothing was called, and nothing that
    /// this attempt does will be recorded.
    Elsewhere,
}

impl<T> Answer<T> {
    /// What the effect gave; an error with the code `in_progress_elsewhere` when that is another attempt's.
    ///
    /// # Errors
    /// Then.
    pub fn value(self) -> Result<T, StepError> {
        match self {
            Self::Executed(value) | Self::Recorded(value) => Ok(value),
            Self::Elsewhere => {
                let message = "the claim of this attempt has ended: the effect is with another attempt";
                Err(StepError::new(message).code("in_progress_elsewhere"))
            }
        }
    }
}

impl<'a, F, R, T> Effect<'a, F, R, T, InStep> {
    /// Executes it unless it is recorded, and says which of the two it was.
    ///
    /// ```
    /// use abide::{Answer, Machine, StepError, done};
    ///
    /// let charge = Machine::<u32>::new("charge").step("charge", async |ctx, amount: u32| {
    ///     let charged = ctx.effect("charge", async |_| Ok::<_, StepError>(amount)).answer().await?;
    ///     Ok(match charged {
    ///         Answer::Executed(amount) => done(&format!("charged {amount}")),
    ///         Answer::Recorded(amount) => done(&format!("had charged {amount}")),
    ///         Answer::Elsewhere => done("another attempt has it, and this is not recorded"),
    ///     })
    /// });
    /// ```
    ///
    /// # Errors
    /// Its error, now or as recorded.
    pub fn answer<E>(self) -> Boxed<'a, Result<Answer<T>, StepError>>
    where
        F: FnOnce(Call) -> R + Send + 'a,
        R: Future<Output = Result<T, E>> + Send + 'a,
        T: Serialize + DeserializeOwned + Send + 'a,
        E: Into<StepError> + 'a,
    {
        Box::pin(points::run(self))
    }
}

impl Ledger {
    /// Whether a step still executes although its claim has ended. A function does not: it is dropped then.
    pub(super) fn is_lost(&self) -> bool {
        self.mode == Mode::Step && self.link.is_cancelled()
    }
}
