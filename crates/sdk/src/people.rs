//! People: what runs ask of them, and what they answer.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::manual::{Assigning, Deciding};
use abide_kernel::{BoundaryId, Choice, Manual, Payload, Refusal, RequestId, Status, Str};
use abide_store::{Filter, Page};
use serde::Serialize;

use crate::client::unexpected;
use crate::{Client, ClientError, Review, RunHandle};

/// What a run asks of a person now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenBoundary {
    /// Its id, by which it is decided.
    pub id: BoundaryId,
    /// The workflow that asks.
    pub workflow: Str,
    /// What is asked, whose it is, and what happened to it so far.
    pub manual: Manual,
}

impl OpenBoundary {
    /// The operation that waits for a yes, if a control has it reviewed.
    #[must_use]
    pub fn review(&self) -> Option<Review> {
        self.manual.asked.reviews()?;
        self.manual.asked.payload.decode().ok()
    }
}

impl Client {
    /// What runs that match ask of people, newest run first. A run that executes meanwhile is not listed.
    ///
    /// # Errors
    /// When the store cannot be read, or the engine has stopped.
    pub async fn boundaries(&self, filter: &Filter, page: &Page) -> Result<Vec<OpenBoundary>, ClientError> {
        let mut filter = filter.clone();
        // One that is in doubt about an effect may ask for a person as well.
        filter.statuses = vec![Status::AwaitingDecision, Status::InDoubt];
        let mut found = Vec::new();
        for listed in self.list(&filter, page).await? {
            let run = match self.show(listed.run).await {
                Ok(run) => run,
                // It went on and was removed since it was listed.
                Err(ClientError::Refused(Refusal::NotFound { .. })) => continue,
                Err(error) => return Err(error),
            };
            if let Some(manual) = run.boundary() {
                let (id, workflow) = (run.boundary_id(manual), run.started.spec.workflow.clone());
                found.push(OpenBoundary { id, workflow, manual: manual.clone() });
            }
        }
        Ok(found)
    }
}

impl RunHandle {
    /// What the run asks of a person now, and the id by which that is decided.
    ///
    /// # Errors
    /// When there is no such run, or its record is damaged.
    pub async fn boundary(&self) -> Result<Option<OpenBoundary>, ClientError> {
        let run = self.show().await?;
        Ok(run.boundary().map(|manual| OpenBoundary {
            id: run.boundary_id(manual),
            workflow: run.started.spec.workflow.clone(),
            manual: manual.clone(),
        }))
    }

    /// Approves, as `actor`. Await it to send it; it is durable when that returns.
    pub fn approve(&self, boundary: BoundaryId, actor: &str) -> Decide {
        self.decide(boundary, Choice::Approve, actor)
    }

    /// Rejects, as `actor`.
    pub fn reject(&self, boundary: BoundaryId, actor: &str) -> Decide {
        self.decide(boundary, Choice::Reject, actor)
    }

    /// Lets a paused run go on, as `actor`.
    pub fn resume(&self, boundary: BoundaryId, actor: &str) -> Decide {
        self.decide(boundary, Choice::Resume, actor)
    }

    /// Hands in the result of a task, as `actor`: whoever has it, if somebody does.
    pub fn complete_task<R: Serialize + ?Sized>(&self, boundary: BoundaryId, actor: &str, result: &R) -> Decide {
        self.decide(boundary, Choice::Complete, actor).payload(result)
    }

    /// Takes a task, as `actor`: from then on nobody else may decide it.
    pub fn claim_task(&self, boundary: BoundaryId, actor: &str) -> Assign {
        self.assign(boundary, actor, Some(actor.into()))
    }

    /// Gives a task back, as `actor`, who has it.
    pub fn release_task(&self, boundary: BoundaryId, actor: &str) -> Assign {
        self.assign(boundary, actor, None)
    }

    fn decide(&self, boundary: BoundaryId, choice: Choice, actor: &str) -> Decide {
        let deciding = Deciding {
            op: boundary.op,
            choice,
            actor: actor.into(),
            roles: Vec::new(),
            note: None,
            payload: Payload::null(),
            request: self.client.request(),
        };
        Decide { run: self.clone(), boundary, deciding, unencodable: None }
    }

    fn assign(&self, boundary: BoundaryId, actor: &str, to: Option<Str>) -> Assign {
        let assigning = Assigning {
            op: boundary.op,
            to,
            actor: actor.into(),
            roles: Vec::new(),
            note: None,
            take_over: false,
            request: self.client.request(),
        };
        Assign { run: self.clone(), boundary, assigning }
    }

    async fn person(&self, boundary: BoundaryId, command: Command) -> Result<bool, ClientError> {
        if boundary.run != self.id() {
            return Err(Refusal::StaleBoundary { op: boundary.op, current: None }.into());
        }
        match self.client.ask(self.id(), command).await? {
            Answer::Recorded { duplicate, .. } => Ok(!duplicate),
            other => Err(unexpected(&other)),
        }
    }
}

/// A decision that is being sent.
#[must_use = "the decision is sent when this is awaited"]
pub struct Decide {
    run: RunHandle,
    boundary: BoundaryId,
    deciding: Deciding,
    unencodable: Option<serde_json::Error>,
}

impl Decide {
    /// A role in which the person acts. Give it again for another.
    pub fn role(mut self, role: &str) -> Self {
        self.deciding.roles.push(role.into());
        self
    }

    /// Why, in their words.
    pub fn note(mut self, note: &str) -> Self {
        self.deciding.note = Some(note.into());
        self
    }

    /// The request that it is: sent again under the same one, it is accepted once.
    pub(crate) fn request(mut self, request: RequestId) -> Self {
        self.deciding.request = request;
        self
    }

    /// What they hand in with it.
    pub fn payload<P: Serialize + ?Sized>(mut self, payload: &P) -> Self {
        match Payload::encode(payload) {
            Ok(payload) => self.deciding.payload = payload,
            Err(error) => self.unencodable = Some(error),
        }
        self
    }
}

impl IntoFuture for Decide {
    /// Whether it was decided now, and not before by the same request.
    type Output = Result<bool, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if let Some(source) = self.unencodable {
                let what = format!("what is handed in at {}", self.boundary);
                return Err(ClientError::Codec { what, source });
            }
            let (run, deciding) = (self.run.id(), Box::new(self.deciding));
            self.run.person(self.boundary, Command::Decide { run, deciding }).await
        })
    }
}

/// A task that is being taken, handed on or given back.
#[must_use = "it is sent when this is awaited"]
pub struct Assign {
    run: RunHandle,
    boundary: BoundaryId,
    assigning: Assigning,
}

impl Assign {
    /// Gives it to somebody else.
    pub fn to(mut self, name: &str) -> Self {
        self.assigning.to = Some(name.into());
        self
    }

    /// A role in which the person acts. Give it again for another.
    pub fn role(mut self, role: &str) -> Self {
        self.assigning.roles.push(role.into());
        self
    }

    /// Why, in their words.
    pub fn note(mut self, note: &str) -> Self {
        self.assigning.note = Some(note.into());
        self
    }

    /// Also when somebody else has it.
    pub fn take_over(mut self) -> Self {
        self.assigning.take_over = true;
        self
    }
}

impl IntoFuture for Assign {
    /// Whether anything changed by it.
    type Output = Result<bool, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (run, assigning) = (self.run.id(), Box::new(self.assigning));
            self.run.person(self.boundary, Command::Assign { run, assigning }).await
        })
    }
}
