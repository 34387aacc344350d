//! Asking a run from outside: what it shows, and what it is to do.

use serde::de::DeserializeOwned;

use crate::{ClientError, RunHandle};

/// The guide, so that its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/asking.md")]
struct Guide;

impl RunHandle {
    /// The state of the run as it is seen from outside: what a function set with
    /// [`FnCtx::set_state`](crate::FnCtx::set_state), or the state that a machine's next step is given. Before a function
    /// has set one, it is the input it began with. Reading it does not wake the run, and works after its end.
    ///
    /// # Errors
    /// When there is no such run, or the state does not have the shape of `T`.
    pub async fn state<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let run = self.show().await?;
        run.visible_state().decode().map_err(|source| {
            let unset = if run.published.is_none() { ", which has set none beyond what it was given" } else { "" };
            ClientError::Codec { what: format!("the state of {}{unset}", self.id()), source }
        })
    }
}
