//! Admission: callers on any thread give commands to a shard and wait for the answer to be durable.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Ticket};
use abide_kernel::{Refusal, RequestId, RunId, Slot, Timestamp};
use abide_store::Fault;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::driver::Shared;
use crate::entropy::Entropy;
use crate::link::unknown;
use crate::points;

/// How often a command whose outcome is unknown is given again, unless it only waits.
pub(crate) const RETRIES_MAX: u32 = 20;
/// How many of them at once; before each further one there is a pause, twice as long as the one before.
const AT_ONCE: u32 = 3;
/// The longest pause. What fails after somebody has waited for as long is not counted with what failed before.
const PAUSE_MAX_MS: u64 = 1_024;

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
        let (reads, awaits) = (command.changes_nothing(), command.awaits().is_some());
        // Who waits for months may meet any number of passing failures.
        let tries_max = match command.is_repeatable() {
            true if reads && awaits => u32::MAX,
            true => RETRIES_MAX,
            false => 0,
        };
        let mut tries = 0;
        loop {
            let asked = self.now();
            match self.ask(slot, command.clone()).await {
                Ok(Answer::Refused(Refusal::Unknown)) if tries < tries_max => {
                    let waited_long = awaits && asked.after(PAUSE_MAX_MS) <= self.now();
                    tries = if waited_long { 1 } else { tries + 1 };
                    self.pause(tries).await;
                }
                // That nothing more is taken, or can be read, says nothing of what was given before.
                Ok(Answer::Refused(Refusal::Closed { .. } | Refusal::Corrupt { .. })) | Err(Unanswered::Gone)
                    if tries > 0 && !reads =>
                {
                    return Err(Refusal::Unknown.into());
                }
                Ok(Answer::Refused(refusal)) => return Err(refusal.into()),
                answer => return answer,
            }
        }
    }

    /// Waits before something is given again, unless it failed a few times only: what keeps failing does not keep the engine
    /// busy with opening its shards anew.
    pub(crate) async fn pause(&self, tries: u32) {
        // Whoever turns the crank says when it is tried again.
        if self.by_hand || tries <= AT_ONCE {
            return;
        }
        let pause = Duration::from_millis((1 << (tries - AT_ONCE).min(63)).min(PAUSE_MAX_MS));
        // On the engine's own handle: whoever asks may not be inside a runtime at all.
        let _ = self.handle.spawn(async move { tokio::time::sleep(pause).await }).await;
    }

    pub(crate) async fn ask_many_until_known(&self, commands: Vec<(Slot, Command)>) -> Result<Vec<Answer>, Unanswered> {
        let mut answers = self.ask_many(commands.clone()).await?;
        let mut open: Vec<usize> = (0..answers.len()).filter(|index| commands[*index].1.is_repeatable()).collect();
        for tries in 1..=RETRIES_MAX {
            open.retain(|index| answers[*index] == unknown());
            if open.is_empty() {
                break;
            }
            self.pause(tries).await;
            let again = open.iter().map(|index| commands[*index].clone()).collect();
            let told = self.ask_many(again).await.map_err(|_| Refusal::Unknown)?;
            let told: Vec<(usize, Answer)> = open.drain(..).zip(told).collect();
            for (index, answer) in told {
                // That nothing more is taken, or can be read, says nothing of what was given before, and stays so.
                if !matches!(answer, Answer::Refused(Refusal::Closed { .. } | Refusal::Corrupt { .. })) {
                    answers[index] = answer;
                    open.push(index);
                }
            }
        }
        Ok(answers)
    }
}
