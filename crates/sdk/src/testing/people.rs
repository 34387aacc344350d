//! People in a test: what a run asks of them is answered in one line.

use std::future::IntoFuture;

use abide_kernel::{BoundaryId, Choice, Manual, ManualKind, Payload, Str};
use serde::Serialize;

use super::TestRun;
use crate::{ClientError, Decide, Review, RunHandle};

/// What somebody says when a run asks.
#[derive(Clone)]
pub(super) struct Said {
    pub(super) choice: Choice,
    pub(super) actor: String,
    pub(super) note: Option<String>,
    pub(super) payload: Payload,
}

impl Said {
    pub(super) fn new(choice: Choice, actor: &str) -> Self {
        Self { choice, actor: actor.into(), note: None, payload: Payload::null() }
    }

    pub(super) fn note(self, note: &str) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(super) fn payload<T: Serialize + ?Sized>(self, payload: &T) -> Self {
        Self { payload: Payload::encode(payload).expect("what is handed in has a JSON form"), ..self }
    }

    fn decide(&self, run: &RunHandle, boundary: BoundaryId, roles: &[Str]) -> Decide {
        let decide = match self.choice {
            Choice::Approve => run.approve(boundary, &self.actor),
            Choice::Reject => run.reject(boundary, &self.actor),
            Choice::Resume => run.resume(boundary, &self.actor),
            Choice::Complete => run.complete_task(boundary, &self.actor, &self.payload),
        };
        let decide = self.note.iter().fold(decide, |decide, note| decide.note(note));
        roles.iter().fold(decide, |decide, role| decide.role(role))
    }
}

/// What a boundary is called in a test: the name that the code gives it, or that of the effect which is reviewed.
fn is_named(manual: &Manual, name: &str) -> bool {
    let key = &*manual.asked.key;
    key == name || key.split('#').next() == Some(name) || manual.asked.reviews() == Some(name)
}

impl TestRun {
    /// Approves what the run asks under this name, or the effect of this name that a control has reviewed, and lets happen
    /// what follows at once. The person acts in every role that is asked for.
    ///
    /// # Panics
    /// When the run asks for nothing of this name, or the engine says no.
    pub fn approve(&self, name: &str, actor: &str) -> &Self {
        self.answer(name, &Said::new(Choice::Approve, actor))
    }

    /// Rejects it, and says why.
    ///
    /// # Panics
    /// When the run asks for nothing of this name, or the engine says no.
    pub fn reject(&self, name: &str, actor: &str, note: &str) -> &Self {
        self.answer(name, &Said::new(Choice::Reject, actor).note(note))
    }

    /// Lets a run go on that pauses under this name.
    ///
    /// # Panics
    /// When the run does not pause there, or the engine says no.
    pub fn resume(&self, name: &str, actor: &str) -> &Self {
        self.answer(name, &Said::new(Choice::Resume, actor))
    }

    /// Hands in the result of the task of this name.
    ///
    /// # Panics
    /// When the run asks for no such task, or the engine says no.
    pub fn complete<T: Serialize + ?Sized>(&self, name: &str, actor: &str, result: &T) -> &Self {
        self.answer(name, &Said::new(Choice::Complete, actor).payload(result))
    }

    /// What the run asks of a person now, once everything has happened that can happen now.
    #[must_use]
    pub fn asks(&self) -> Option<Manual> {
        self.show().boundary().cloned()
    }

    /// The operation that waits for a reviewer's yes now, if one does.
    #[must_use]
    pub fn review(&self) -> Option<Review> {
        let manual = self.asks().filter(|manual| manual.asked.reviews().is_some())?;
        manual.asked.payload.decode().ok()
    }

    pub(super) fn answer(&self, name: &str, said: &Said) -> &Self {
        let Some(manual) = self.asks().filter(|manual| is_named(manual, name)) else {
            panic!("{} asks nobody for {name:?}: {}", self.alias(), self.why());
        };
        let decided = self.decide(&manual, said);
        decided.unwrap_or_else(|error| panic!("{name:?} of {} cannot be decided: {error}", self.alias()));
        self.engine.settle();
        self
    }

    fn decide(&self, manual: &Manual, said: &Said) -> Result<bool, ClientError> {
        let (request, boundary) = (self.engine.request(), BoundaryId { run: self.id, op: manual.asked.op });
        self.engine.ask(|client| {
            let run = client.run(self.id);
            said.decide(&run, boundary, &manual.asked.roles).request(request).into_future()
        })
    }
}

/// Whether what somebody says answers what a run asks.
pub(super) fn answers(manual: &Manual, name: &str, said: &Said) -> bool {
    let kind: ManualKind = manual.asked.kind;
    is_named(manual, name) && kind.choices().contains(&said.choice)
}
