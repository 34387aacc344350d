//! Workers outside of this process: they ask for attempts, and report what came of them.

use std::sync::{Arc, Weak};

use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::{Refusal, RunId, Slot, Str, Timestamp, TokenHash};
use tokio::sync::oneshot;

use crate::admission::Unanswered;
use crate::core::Core;
use crate::desk::{Handed, Offer, Reply};
use crate::driver::Shared;
use crate::engine::Engine;
use crate::link::Letter;
use crate::ring::Ring;

/// Attempts are sent to another node together up to so many bytes, and at least one.
const LETTER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What became of reports, in their order.
type Answers = Result<Vec<Answer>, Unanswered>;

/// What became of a question for attempts: its asker waits, or there was no room.
type Seated = Result<Claiming, Refusal>;

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

/// The hash of the token that a worker's command carries.
fn token(command: &Command) -> Option<TokenHash> {
    match command {
        Command::Heartbeat { token, .. } | Command::Progress { token, .. } | Command::GiveBack { token, .. } => {
            Some(*token)
        }
        Command::Complete { completing, .. } => Some(completing.token),
        Command::Fail { failing, .. } => Some(failing.token),
        Command::Record { recording, .. } => Some(recording.token),
        _ => None,
    }
}

impl Work {
    /// Gives back all but the first so many.
    pub fn keep(&mut self, most: usize) {
        let rest = self.attempts.split_off(most.min(self.attempts.len()));
        if let Some(shared) = self.shared.upgrade() {
            shared.give_back_all(rest);
        }
    }

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
        self.shared.upgrade().is_none_or(|shared| !shared.core.lock().desk.waits(self.seat))
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
    ///
    /// # Errors
    /// When there is no room for more who ask.
    pub fn claim(&self, offer: &Offer) -> Result<Claiming, Refusal> {
        let (_, claiming) = self.shared.report(Vec::new(), Some(offer));
        claiming.transpose()?.ok_or(Refusal::Unknown)
    }

    /// Gives commands of a worker outside of this process to their shards, and asks for more attempts with the same breath:
    /// what follows from the commands is claimed in the commit that makes them durable.
    pub fn report(
        &self,
        commands: Vec<(Slot, Command)>,
        next: Option<&Offer>,
    ) -> (impl Future<Output = Answers> + use<>, Option<Seated>) {
        self.shared.report(commands, next)
    }

    /// The namespace and the queue of a run that is in memory here, as whatever is claimed here is.
    #[must_use]
    pub fn place(&self, run: RunId) -> Option<(Str, Str)> {
        let mut core = self.shared.core.lock();
        let home = core.map.home(run.slot());
        let spec = &core.at(home)?.run(run)?.started.spec;
        Some((spec.namespace.clone(), spec.queue.clone()))
    }

    /// Whether it can be asked for something: it is open, and its store has answered lately.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let now = self.now();
        let core = self.shared.core.lock();
        core.closed.is_none() && !core.draining && core.ring.as_ref().is_none_or(|ring| ring.has_renewed(now))
    }
}

impl Shared {
    fn report(
        self: &Arc<Self>,
        commands: Vec<(Slot, Command)>,
        next: Option<&Offer>,
    ) -> (impl Future<Output = Answers> + use<>, Option<Seated>) {
        let now = self.now();
        let mut core = self.core.lock();
        let spoken = commands.first().and_then(|(_, command)| token(command));
        spoken.into_iter().for_each(|token| core.desk.heard(now, token));
        // Whoever reports comes first to what follows from it, after those who wait.
        let receivers: Vec<_> = core.submit_all(now, commands);
        let claiming = next.map(|offer| {
            let (reply, receiver) = oneshot::channel();
            if core.closed.is_some() {
                // Without the other end the receiver knows that nothing comes.
                return Ok(Claiming { shared: Weak::new(), seat: 0, receiver });
            }
            let (seat, learned) = core.desk.sit(now, offer, reply)?;
            if let Some((id, worker)) = learned {
                core.served_mut().for_each(|shard| shard.join(id, worker.clone()));
                core.tell_kinds(now);
            }
            Ok(Claiming { shared: Arc::downgrade(self), seat, receiver })
        });
        core.fill(now);
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
            match reply {
                Reply::Here(reply) => {
                    if let Err(attempts) = reply.send(attempts) {
                        self.give_back_all(attempts);
                    }
                }
                Reply::There { process, seat } => self.give_back_all(self.send_away(&process, seat, attempts)),
            }
        }
    }

    /// Sends attempts to the node at whose desk somebody asked for them. What finds no room in a letter comes back, and all
    /// if the node is gone.
    fn send_away(&self, process: &Str, seat: u64, mut attempts: Vec<Dispatch>) -> Vec<Dispatch> {
        let mut bytes = 0;
        let fits = |dispatch: &&Dispatch| {
            bytes += dispatch.bytes();
            bytes <= LETTER_BYTES_MAX
        };
        let fitting = attempts.iter().take_while(fits).count().max(1);
        let core = self.core.lock();
        let Some((ring, member)) = core.ring.as_ref().and_then(|ring| Some((ring, ring.find(process)?))) else {
            return attempts;
        };
        let rest = attempts.split_off(fitting.min(attempts.len()));
        ring.send(member, Letter::Handed { seat, attempts });
        rest
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

impl Ring {
    /// Whether the store took this node's lease when it was last due: of one that was not renewed, less than a third is
    /// left before long.
    fn has_renewed(&self, now: Timestamp) -> bool {
        now.after(self.lease_ms / 3) < self.serves_until
    }
}

impl Core {
    /// Gives back an attempt that nobody will execute: it does not count as delivered.
    pub(crate) fn give_back(&mut self, now: Timestamp, dispatch: &Dispatch) {
        let command = Command::GiveBack { claim: dispatch.claim, token: dispatch.by.token };
        self.put_quietly(now, dispatch.claim.run.slot(), command);
    }
}

#[cfg(test)]
mod tests {
    use abide_store::Member;

    use super::*;
    use crate::link::NoLink;

    /// AB-18: a node whose store is gone says so before its lease is over, and one that renews in time never does.
    #[test]
    fn a_node_that_does_not_renew_is_not_ready() {
        let member = Member { process: "1".into(), node: "one".into(), address: "".into(), draining: false };
        let mut ring = Ring::new(member, Arc::new(NoLink), 15_000, false);
        assert!(!ring.has_renewed(Timestamp(0)), "it has not begun");
        ring.serves_until = Timestamp(13_500);
        assert!([0, 5_000, 6_500].iter().all(|now| ring.has_renewed(Timestamp(*now))), "it renews every 5 s");
        assert!([8_500, 13_499, 20_000].iter().all(|now| !ring.has_renewed(Timestamp(*now))));
    }
}
