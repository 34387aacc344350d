//! A run in a test.

use std::future::IntoFuture;

use abide_kernel::{EffectView, OpKind, Payload, Phase, Row, Run, RunId, Status, Update, WaitKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{TestEngine, history, journal, wait::block_on};
use crate::{Client, ClientError, Resolve};

/// A run in a test. Its methods wait by themselves, and panic when the engine says no.
#[derive(Clone)]
pub struct TestRun {
    pub(super) engine: TestEngine,
    pub(super) id: RunId,
}

impl TestRun {
    /// The run.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Its name in golden histories: `run-1` is the first that the test met.
    #[must_use]
    pub fn alias(&self) -> String {
        self.engine.aliases().lock().of(self.id)
    }

    /// Sends a signal, and lets happen what follows from it at once.
    ///
    /// # Panics
    /// When the run does not take it.
    pub fn signal<P: Serialize + ?Sized>(&self, name: &str, payload: &P) -> &Self {
        let payload = Payload::encode(payload).expect("the payload of a signal has a JSON form");
        self.send(name, &payload);
        self.engine.settle();
        self
    }

    pub(super) fn send(&self, name: &str, payload: &Payload) {
        self.engine.settle();
        let request = self.engine.request();
        let sent = self.engine.ask(|client| {
            let (payload, run) = (payload.clone(), self.id);
            async move { client.signal(run, name, payload, None, request).await }
        });
        sent.unwrap_or_else(|error| panic!("{} did not take signal {name:?}: {error}", self.alias()));
    }

    /// Asks the run to do something, lets time pass until it has answered, and gives the answer.
    ///
    /// # Errors
    /// When it rejects that, ends without an answer, or the answer does not have the shape of `A`.
    ///
    /// # Panics
    /// When it waits for something that only the test can bring; the message says what.
    pub fn update<A, I>(&self, name: &str, input: &I) -> Result<A, ClientError>
    where
        A: DeserializeOwned + 'static,
        I: Serialize + ?Sized,
    {
        self.engine.settle();
        let request = self.engine.request();
        let asked = |client: Client| client.run(self.id).update::<A, I>(name, input).request(request);
        self.engine.ask(|client| asked(client).accepted())?;
        let is_ours = |update: &Update| update.request == request && update.reply().is_some();
        let answered = || {
            let shown = self.engine.ask(|client| async move { client.show(self.id).await });
            shown.is_ok_and(|run| run.status().is_terminal() || run.updates.iter().any(is_ours))
        };
        assert!(self.engine.run_until(answered) || answered(), "{} is blocked: {}", self.alias(), self.why());
        self.engine.ask(|client| asked(client).into_future())
    }

    /// Says that an effect which is in doubt took place, with this result, and lets happen what follows at once.
    ///
    /// # Panics
    /// When there is no such effect in doubt.
    pub fn resolve<T: Serialize + ?Sized>(&self, effect: &str, value: &T) -> &Self {
        self.say(effect, |resolve| resolve.value(value))
    }

    /// Says that an effect which is in doubt did not take place, and lets happen what follows at once.
    ///
    /// # Panics
    /// When there is no such effect in doubt.
    pub fn resolve_failed(&self, effect: &str, message: &str) -> &Self {
        self.say(effect, |resolve| resolve.failed(message))
    }

    /// Lets an effect which is in doubt be executed once more.
    ///
    /// # Panics
    /// When there is no such effect in doubt.
    pub fn resolve_retry(&self, effect: &str) -> &Self {
        let doubted = self.effects().into_iter().find(|view| &*view.key == effect);
        let interrupt = doubted.and_then(|view| view.interrupt);
        let interrupt = interrupt.unwrap_or_else(|| panic!("{effect} of {} is not in doubt", self.alias()));
        self.say(effect, |resolve| resolve.interrupt(interrupt).retry())
    }

    fn say(&self, effect: &str, say: impl Fn(Resolve) -> Resolve) -> &Self {
        self.engine.settle();
        let resolved = self.engine.ask(|client| say(client.run(self.id).resolve(effect)).into_future());
        resolved.unwrap_or_else(|error| panic!("{effect} of {} cannot be resolved: {error}", self.alias()));
        self.engine.settle();
        self
    }

    /// Its effects, in the order they were begun: which took place, which did not, and which nobody knows.
    #[must_use]
    pub fn effects(&self) -> Vec<EffectView> {
        self.show().effects().collect()
    }

    /// Ends the run from outside.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn cancel(&self, reason: &str) -> &Self {
        self.engine.settle();
        let cancelled = self.engine.ask(|client| async move { client.cancel(self.id, false, reason).await });
        cancelled.unwrap_or_else(|error| panic!("{} could not be cancelled: {error}", self.alias()));
        self.engine.settle();
        self
    }

    /// The run as it stands, once everything has happened that can happen now.
    ///
    /// # Panics
    /// When there is no such run.
    #[must_use]
    pub fn show(&self) -> Run {
        self.engine.settle();
        let shown = self.engine.ask(|client| async move { client.show(self.id).await });
        shown.unwrap_or_else(|error| panic!("{} cannot be shown: {error}", self.alias()))
    }

    /// Its state as it is seen from outside, once everything has happened that can happen now.
    ///
    /// # Panics
    /// When it does not have the shape of `T`.
    #[must_use]
    pub fn state<T: DeserializeOwned>(&self) -> T {
        self.engine.settle();
        let state = self.engine.ask(|client| {
            let run = client.run(self.id);
            async move { run.state().await }
        });
        state.unwrap_or_else(|error| panic!("the state of {} cannot be read: {error}", self.alias()))
    }

    /// Its status, once everything has happened that can happen now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.show().status()
    }

    /// Lets time pass until the run has ended, and gives its result.
    ///
    /// # Errors
    /// When it ended otherwise, or the result does not have the shape of `T`.
    ///
    /// # Panics
    /// When it waits for something that only the test can bring; the message says what.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let ended = self.engine.run_until(|| self.has_ended());
        assert!(ended || self.has_ended(), "{} is blocked: {}", self.alias(), self.why());
        self.engine.ask(|client| {
            let run = client.run(self.id);
            async move { run.result().await }
        })
    }

    /// Why the run does not move.
    ///
    /// # Panics
    /// When there is no such run.
    #[must_use]
    pub fn why(&self) -> String {
        let run = self.engine.client().run(self.id);
        let explained = block_on(run.explain());
        explained.map_or_else(|error| error.to_string(), |explained| explained.sentence)
    }

    pub(super) fn has_ended(&self) -> bool {
        let shown = self.engine.ask(|client| async move { client.show(self.id).await });
        shown.is_ok_and(|run| run.status().is_terminal())
    }

    /// Its journal.
    ///
    /// # Panics
    /// When there is no such run.
    #[must_use]
    pub fn journal(&self) -> Vec<Row> {
        self.engine.settle();
        let rows = self.engine.ask(|client| async move { client.journal(self.id, 0).await });
        rows.unwrap_or_else(|error| panic!("the journal of {} cannot be read: {error}", self.alias()))
    }

    /// Its journal as a text that is the same whenever the same happens: one line for each row, with the time since the
    /// beginning, runs by their aliases, and without what differs by chance. For golden files.
    #[must_use]
    pub fn history(&self) -> String {
        history::tell(&self.journal(), self.engine.beginning(), &mut self.engine.aliases().lock())
    }

    /// Its journal as `abide run export` writes it, to be kept beside the tests; see [`Journals`](super::Journals).
    #[must_use]
    pub fn export(&self) -> String {
        journal::write_journal(&self.journal())
    }

    /// Asks for an update, and does not wait for the answer.
    pub(super) fn request(&self, name: &str, input: &Payload) {
        self.engine.settle();
        let request = self.engine.request();
        let asked = |client: Client| client.run(self.id).update::<(), _>(name, input).request(request).accepted();
        let accepted = self.engine.ask(asked);
        accepted.unwrap_or_else(|error| panic!("{} did not take update {name:?}: {error}", self.alias()));
    }

    /// The signals and updates that the run waits for.
    pub(super) fn awaited(&self) -> Vec<Message> {
        let run = self.show();
        let open = run.open_ops().filter_map(|(_, op)| match &op.kind {
            OpKind::Signal { name, .. } => Some(Message::Signal(name.to_string())),
            OpKind::Update { name, .. } => Some(Message::Update(name.to_string())),
            OpKind::Effect(_) | OpKind::Timer { .. } | OpKind::Child { .. } | OpKind::Patch | OpKind::Manual { .. } => {
                None
            }
        });
        let mut awaited: Vec<Message> = open.collect();
        for cursor in &run.cursors {
            if let Phase::Waiting(wait) = &cursor.phase
                && let WaitKind::Signal { names, .. } = &wait.kind
            {
                awaited.extend(names.iter().map(|name| Message::Signal(name.to_string())));
            }
        }
        awaited
    }
}

/// What a run waits for from outside, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Signal(String),
    Update(String),
}
