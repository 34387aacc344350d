//! Admission: callers on any thread give commands to a shard and wait for the answer to be durable.

use std::future::Future;
use std::sync::{Arc, Weak};

use abide_kernel::shard::{Answer, Command, Ticket};
use abide_kernel::{Refusal, RequestId, RunId, Slot, Timestamp};
use abide_store::Fault;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::driver::Shared;
use crate::entropy::Entropy;
use crate::points;

/// How often a command whose outcome is unknown is given again.
pub(crate) const RETRIES_MAX: u32 = 20;

/// Why there is no answer to what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The engine said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] Fault),
    /// An engine in another process said no, in words that have no type here.
    #[error("{detail} ({code})")]
    Said {
        /// The stable word for it.
        code: String,
        /// What happened.
        detail: String,
    },
    /// The engine is gone.
    #[error("the engine has stopped; open it again and retry with the same request")]
    Gone,
    /// The engine answered something that does not fit the question: a bug of ours.
    #[error("expected another kind of answer, found {0}")]
    Unexpected(String),
}

impl Unanswered {
    pub(crate) fn unexpected(answer: &Answer) -> Self {
        Self::Unexpected(format!("{answer:?}"))
    }
}

/// A request id of this moment. Keep it for retries: the same one gets the first answer.
#[must_use]
pub fn new_request(now: Timestamp) -> RequestId {
    RequestId::new(now, Entropy::System.next())
}

/// Someone who waits for a run's end or answer, perhaps for months, and may give up: then nothing is kept of them.
struct Watch {
    shared: Weak<Shared>,
    run: RunId,
    ticket: Ticket,
    /// Nothing is kept of those who were told.
    told: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|_| !self.told) {
            let waiter = shared.core.lock().unwatch(self.run, self.ticket);
            // Dropped without the lock: it may wake someone.
            drop(waiter);
        }
    }
}

impl Shared {
    /// Gives a command to the shard of `slot`. The answer comes when it is durable.
    pub(crate) fn ask(
        self: &Arc<Self>,
        slot: Slot,
        mut command: Command,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
        self.settle_versions(&mut command);
        let watched = command.awaits();
        let (ticket, receiver) = self.give(slot, command);
        let mut watch = watched.map(|run| Watch { shared: Arc::downgrade(self), run, ticket, told: false });
        async move {
            let answer = receiver.await.map_err(|_| Unanswered::Gone);
            if let Some(watch) = &mut watch {
                watch.told = answer.is_ok();
            }
            answer
        }
    }

    /// The same for those who may take it back, by its ticket.
    pub(crate) fn give(&self, slot: Slot, command: Command) -> (Ticket, oneshot::Receiver<Answer>) {
        let now = self.now();
        let recorded = matches!(command, Command::Record { .. });
        let mut core = self.core.lock();
        let (ticket, receiver) = core.submit(now, slot, command);
        // Steps that write to their ledgers keep the driver busy: half of them are written while the rest go on.
        let hand_over = recorded && self.should_hand_over(&core);
        let rouse = self.needs_driver(&core);
        drop(core);
        if hand_over {
            self.writer.ring();
        }
        points::reach("admitted");
        if rouse {
            self.bell.ring();
        }
        (ticket, receiver)
    }

    /// Whether the driver has something to do for those who ask. A writer that is at it rings when it is through: until
    /// then the driver could only find the store busy, unless an answer may leave at once.
    fn needs_driver(&self, core: &Core) -> bool {
        !self.writer.is_at_it() || core.has_outputs()
    }

    /// Gives several commands to their shards under one lock, so that they share a commit.
    pub(crate) fn ask_many(
        &self,
        commands: Vec<(Slot, Command)>,
    ) -> impl Future<Output = Result<Vec<Answer>, Unanswered>> + use<> {
        let now = self.now();
        let mut core = self.core.lock();
        let receivers: Vec<_> = commands.into_iter().map(|(slot, command)| core.submit(now, slot, command).1).collect();
        let rouse = self.needs_driver(&core);
        drop(core);
        if rouse {
            self.bell.ring();
        }
        async move {
            let mut answers = Vec::with_capacity(receivers.len());
            for receiver in receivers {
                answers.push(receiver.await.map_err(|_| Unanswered::Gone)?);
            }
            Ok(answers)
        }
    }

    pub(crate) async fn ask_until_known(self: &Arc<Self>, slot: Slot, command: Command) -> Result<Answer, Unanswered> {
        // Who waits for months may meet any number of passing failures.
        let retries = match command.is_repeatable() {
            true if command.awaits().is_some() => u32::MAX,
            true => RETRIES_MAX,
            false => 0,
        };
        let mut tries = 0;
        loop {
            match self.ask(slot, command.clone()).await {
                Ok(Answer::Refused(Refusal::Unknown)) if tries < retries => tries += 1,
                // That nothing more is taken, or can be read, says nothing of what was given before.
                Ok(Answer::Refused(Refusal::Closed { .. } | Refusal::Corrupt { .. })) | Err(Unanswered::Gone)
                    if tries > 0 =>
                {
                    return Err(Refusal::Unknown.into());
                }
                Ok(Answer::Refused(refusal)) => return Err(refusal.into()),
                answer => return answer,
            }
        }
    }

    pub(crate) async fn ask_many_until_known(&self, commands: Vec<(Slot, Command)>) -> Result<Vec<Answer>, Unanswered> {
        let mut answers = self.ask_many(commands.clone()).await?;
        for _ in 0..RETRIES_MAX {
            let unknown = |index: &usize| {
                answers[*index] == Answer::Refused(Refusal::Unknown) && commands[*index].1.is_repeatable()
            };
            let unknown: Vec<usize> = (0..answers.len()).filter(unknown).collect();
            if unknown.is_empty() {
                break;
            }
            let again = unknown.iter().map(|index| commands[*index].clone()).collect();
            let told = self.ask_many(again).await?;
            // That nothing more is taken, or can be read, says nothing of what was given before.
            let known = told.into_iter().map(|answer| match answer {
                Answer::Refused(Refusal::Closed { .. } | Refusal::Corrupt { .. }) => Answer::Refused(Refusal::Unknown),
                answer => answer,
            });
            unknown.into_iter().zip(known).for_each(|(index, answer)| answers[index] = answer);
        }
        Ok(answers)
    }
}
