//! Asking a run from outside: what it shows, and what it is to do.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;

use abide_kernel::shard::{Answer, Command, Told};
use abide_kernel::transition::update::Requesting;
use abide_kernel::{Payload, Reply, RequestId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::unexpected;
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

    /// Asks a function to do something that it takes with [`FnCtx::update`](crate::FnCtx::update). Await it to send it
    /// and to wait for the answer, however long that takes; both are durable when it returns.
    ///
    /// ```
    /// use abide::{Engine, Failure, FnCtx, Function};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let greeter = Function::new("greeter", async |ctx: FnCtx, greeting: String| {
    ///     let asked = ctx.update::<String>("greet").await?;
    ///     let said = format!("{greeting} {}", asked.input());
    ///     asked.answer(&said)?;
    ///     Ok::<_, Failure>(())
    /// });
    /// let engine = Engine::open("memory:").register(greeter).start().await?;
    /// let run = engine.client().start("greeter", "hello").await?;
    /// let said: String = run.update("greet", "Ada").dedup("visitor-1").await?;
    /// assert_eq!(said, "hello Ada");
    /// run.result::<()>().await?;
    /// // Whoever asks again with the same key gets the same answer, also after the end.
    /// let said: String = run.update("greet", "Ada").dedup("visitor-1").await?;
    /// assert_eq!(said, "hello Ada");
    /// # engine.stop(std::time::Duration::from_secs(1)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn update<A, I: Serialize + ?Sized>(&self, name: &str, input: &I) -> AskUpdate<A> {
        AskUpdate {
            run: self.clone(),
            name: name.into(),
            input: Payload::encode(input),
            dedup: None,
            request: self.client().request(),
            answer: PhantomData,
        }
    }
}

/// An update that is being asked for.
#[must_use = "the run is asked when this is awaited"]
pub struct AskUpdate<A> {
    run: RunHandle,
    name: String,
    input: Result<Payload, serde_json::Error>,
    dedup: Option<String>,
    request: RequestId,
    answer: PhantomData<fn() -> A>,
}

impl<A> AskUpdate<A> {
    /// A key under which the run is asked once: whoever asks again with it gets the first answer.
    pub fn dedup(mut self, key: &str) -> Self {
        self.dedup = Some(key.into());
        self
    }

    pub(crate) fn request(mut self, request: RequestId) -> Self {
        self.request = request;
        self
    }

    /// Asks, and does not wait for the answer: ask again with the same key to get it. Whether it was accepted now, and not
    /// before.
    ///
    /// # Errors
    /// When the run does not take it; see [`ClientError`].
    pub async fn accepted(self) -> Result<bool, ClientError> {
        match self.send(Told::Accepted).await?.0 {
            Answer::Requested(accepted) => Ok(!accepted.duplicate),
            other => Err(unexpected(&other)),
        }
    }

    async fn send(self, told: Told) -> Result<(Answer, RunHandle, String), ClientError> {
        let Self { run, name, input, dedup, request, .. } = self;
        let input =
            input.map_err(|source| ClientError::Codec { what: format!("the input of update {name:?}"), source })?;
        let shown = run.show().await?;
        let spec = &shown.started.spec;
        let here = run.client().here();
        if here.and_then(|engine| engine.replays(&spec.workflow, spec.version)) == Some(false) {
            return Err(ClientError::NoUpdates { run: run.id(), workflow: spec.workflow.to_string() });
        }
        let asked = Requesting { name: name.as_str().into(), input, dedup: dedup.map(Into::into), request };
        let command = Command::Update { run: run.id(), asked: Box::new(asked), told };
        let answer = run.client().ask(run.id(), command).await?;
        Ok((answer, run, name))
    }
}

impl<A: DeserializeOwned + 'static> IntoFuture for AskUpdate<A> {
    type Output = Result<A, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (answer, run, name) = self.send(Told::Answered).await?;
            match answer {
                Answer::Answered(Reply::Value(value)) => value.decode().map_err(|source| {
                    let what = format!("the answer of {} to update {name:?}", run.id());
                    ClientError::Codec { what, source }
                }),
                Answer::Answered(Reply::Rejected(error)) => {
                    Err(ClientError::UpdateRejected { run: run.id(), name, error: Box::new((*error).clone()) })
                }
                other => Err(unexpected(&other)),
            }
        })
    }
}
