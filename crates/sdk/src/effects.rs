//! Effects from outside: the ledger of a run, and what becomes of an effect that is in doubt.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use abide_kernel::shard::Command;
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{EffectView, ErrorInfo, Payload, Resolution, Standing, Status, Str};
use abide_store::{Filter, Page};
use serde::Serialize;

use crate::{Client, ClientError, RunHandle};

impl RunHandle {
    /// The effects of the run, in the order they were begun: which took place, which did not, and which nobody knows.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn effects(&self) -> Result<Vec<EffectView>, ClientError> {
        Ok(self.show().await?.effects().collect())
    }

    /// Says what became of an effect that is in doubt: call one of the methods of what this gives, and await it.
    pub fn resolve(&self, key: &str) -> Resolve {
        Resolve {
            run: self.clone(),
            key: key.into(),
            interrupt: None,
            actor: "client".into(),
            roles: Vec::new(),
            note: None,
            how: None,
        }
    }
}

impl Client {
    /// Runs that wait because an effect is in doubt, with those effects: at most `most` runs, newest first.
    ///
    /// # Errors
    /// When the store cannot be read, or the engine has stopped.
    pub async fn in_doubt(&self, most: usize) -> Result<Vec<(RunHandle, EffectView)>, ClientError> {
        let mut filter = Filter::default();
        filter.statuses = vec![Status::InDoubt];
        let mut found = Vec::new();
        for listed in self.list(&filter, &Page { most, before: None }).await? {
            let run = self.run(listed.run);
            let doubted = run.effects().await?.into_iter().filter(|effect| effect.standing == Standing::InDoubt);
            found.extend(doubted.map(|effect| (run.clone(), effect)));
        }
        Ok(found)
    }
}

/// What someone says of an effect that is in doubt.
#[must_use = "it is said when this is awaited"]
pub struct Resolve {
    run: RunHandle,
    key: String,
    interrupt: Option<u32>,
    actor: String,
    roles: Vec<Str>,
    note: Option<String>,
    how: Option<Result<Resolution, serde_json::Error>>,
}

impl Resolve {
    /// Who says so.
    pub fn actor(mut self, actor: &str) -> Self {
        self.actor = actor.into();
        self
    }

    /// A role in which they do. Give it again for another. A retry of an effect that was reviewed needs one of the roles
    /// that its review asked for.
    pub fn role(mut self, role: &str) -> Self {
        self.roles.push(role.into());
        self
    }

    /// Why.
    pub fn note(mut self, note: &str) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The interrupt that is answered, as [`EffectView::interrupt`] says. A retry must name it.
    pub fn interrupt(mut self, interrupt: u32) -> Self {
        self.interrupt = Some(interrupt);
        self
    }

    /// It took place, with this result: the run goes on with it.
    pub fn value<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        self.how = Some(Payload::encode(value).map(Resolution::Value));
        self
    }

    /// It did not take place, or not well: the code gets this error.
    pub fn failed(mut self, message: &str) -> Self {
        let error = ErrorInfo::terminal("resolved_as_failed", message);
        self.how = Some(Ok(Resolution::Failed(std::sync::Arc::new(error))));
        self
    }

    /// It is executed once more.
    pub fn retry(mut self) -> Self {
        self.how = Some(Ok(Resolution::Retry));
        self
    }

    /// It took place and was undone by hand: the code gets an error that says so.
    pub fn compensated(mut self) -> Self {
        self.how = Some(Ok(Resolution::Compensated));
        self
    }
}

impl IntoFuture for Resolve {
    type Output = Result<(), ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let codec = |source| ClientError::Codec { what: format!("the result of effect {:?}", self.key), source };
            let how = self.how.unwrap_or(Ok(Resolution::Retry)).map_err(codec)?;
            let request = self.run.client().request();
            let resolving = Resolving {
                key: self.key.as_str().into(),
                interrupt: self.interrupt,
                how,
                actor: self.actor.as_str().into(),
                roles: self.roles,
                note: self.note.as_deref().map(Into::into),
                request,
            };
            let run = self.run.id();
            self.run.client().ask(run, Command::Resolve { run, resolving: Box::new(resolving) }).await.map(|_| ())
        })
    }
}
