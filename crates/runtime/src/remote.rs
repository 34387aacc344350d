//! Workers outside of this process: they ask for attempts, and report what came of them.

use std::sync::{Arc, Weak};

use abide_kernel::Slot;
use abide_kernel::shard::{Answer, Command, Dispatch};
use tokio::sync::oneshot;

use crate::admission::Unanswered;
use crate::core::Core;
use crate::desk::{Handed, Lately, Offer};
use crate::driver::{Engine, Shared};

/// Someone who waits for attempts. Whoever drops it does not wait any more, and what was claimed meanwhile goes back.
#[derive(Debug)]
pub struct Claiming {
    shared: Weak<Shared>,
    seat: u64,
    receiver: oneshot::Receiver<Vec<Dispatch>>,
}

/// Attempts that were claimed. Those that are not taken go back, and do not count as delivered.
#[derive(Debug)]
pub struct Work {
    shared: Weak<Shared>,
    attempts: Vec<Dispatch>,
}

impl Work {
    /// What was claimed.
    #[must_use]
    pub fn attempts(&self) -> &[Dispatch] {
        &self.attempts
    }

    /// Takes what was claimed, to be executed.
    #[must_use]
    pub fn take(mut self) -> Vec<Dispatch> {
        std::mem::take(&mut self.attempts)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.give_back_all(std::mem::take(&mut self.attempts));
        }
    }
}

impl Claiming {
    /// Whether something was claimed already, and is on its way.
    #[must_use]
    pub fn is_promised(&self) -> bool {
        let promised = |shared: Arc<Shared>| shared.core.lock().desk.is_served(self.seat);
        !self.receiver.is_empty() || self.shared.upgrade().is_some_and(promised)
    }

    /// What is claimed, once there is something.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub async fn work(mut self) -> Result<Work, Unanswered> {
        let attempts = (&mut self.receiver).await.map_err(|_| Unanswered::Gone)?;
        Ok(Work { shared: self.shared.clone(), attempts })
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = shared.now();
        shared.core.lock().desk.stand_up(now, self.seat);
        // From here on nothing is sent; what was sent before is here.
        self.receiver.close();
        if let Ok(attempts) = self.receiver.try_recv() {
            shared.give_back_all(attempts);
        }
    }
}

impl Engine {
    /// Asks for attempts, for a worker outside of this process.
    #[must_use]
    pub fn claim(&self, offer: &Offer) -> Claiming {
        self.shared.report(Vec::new(), Some(offer)).1.expect("there is an offer")
    }

    /// Gives commands of a worker outside of this process to their shards, and asks for more attempts with the same breath:
    /// what follows from the commands is claimed in the commit that makes them durable.
    pub fn report(
        &self,
        commands: Vec<(Slot, Command)>,
        next: Option<&Offer>,
    ) -> (impl Future<Output = Result<Vec<Answer>, Unanswered>> + use<>, Option<Claiming>) {
        self.shared.report(commands, next)
    }

    /// The workers outside of this process that were here lately.
    #[must_use]
    pub fn workers(&self) -> Vec<Lately> {
        self.shared.core.lock().desk.lately().to_vec()
    }
}

impl Shared {
    fn report(
        self: &Arc<Self>,
        commands: Vec<(Slot, Command)>,
        next: Option<&Offer>,
    ) -> (impl Future<Output = Result<Vec<Answer>, Unanswered>> + use<>, Option<Claiming>) {
        let now = self.now();
        let mut core = self.core.lock();
        let receivers: Vec<_> = commands.into_iter().map(|(slot, command)| core.submit(now, slot, command).1).collect();
        let claiming = next.map(|offer| {
            let (reply, receiver) = oneshot::channel();
            if core.closed.is_some() {
                // Without the other end the receiver knows that nothing comes.
                return Claiming { shared: Weak::new(), seat: 0, receiver };
            }
            let (seat, learned) = core.desk.sit(now, offer, reply);
            if let Some((id, worker)) = learned {
                core.served_mut().for_each(|shard| shard.join(id, worker.clone()));
            }
            core.fill(now);
            Claiming { shared: Arc::downgrade(self), seat, receiver }
        });
        drop(core);
        self.bell.ring();
        let answers = async move {
            let mut answers = Vec::with_capacity(receivers.len());
            for receiver in receivers {
                answers.push(receiver.await.map_err(|_| Unanswered::Gone)?);
            }
            Ok(answers)
        };
        (answers, claiming)
    }

    /// Hands attempts to those who asked for them; of those who are gone they go back.
    pub(crate) fn hand(&self, handed: Vec<Handed>) {
        for (reply, attempts) in handed {
            if let Err(attempts) = reply.send(attempts) {
                self.give_back_all(attempts);
            }
        }
    }

    fn give_back_all(&self, attempts: Vec<Dispatch>) {
        if attempts.is_empty() {
            return;
        }
        let now = self.now();
        let mut core = self.core.lock();
        attempts.into_iter().for_each(|dispatch| core.give_back(now, &dispatch));
        // Others may wait for them.
        core.fill(now);
        drop(core);
        self.bell.ring();
    }
}

impl Core {
    /// Gives back an attempt that nobody will execute: it does not count as delivered.
    pub(crate) fn give_back(&mut self, now: abide_kernel::Timestamp, dispatch: &Dispatch) {
        let command = Command::GiveBack { claim: dispatch.claim, token: dispatch.by.token };
        self.put_quietly(now, dispatch.claim.run.slot(), command);
    }
}
