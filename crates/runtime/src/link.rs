//! Link: what nodes that share a store say to each other. Letters may be lost, late, doubled and out of order: whatever
//! must come through is said again until it is answered.

use std::sync::Arc;

use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::{ClaimId, Claimant, Op, OpId, Refusal, RunId, ShardEpoch, ShardId, Slot, Str, Timestamp};
use abide_store::Member;
use serde::{Deserialize, Serialize};

use crate::core::{Core, Waiter};
use crate::desk::{Kind, Lately};
use crate::dispatch::tell;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::ring::reads;
use crate::tail::Happened;
use crate::wire::Mailbox;

/// How letters travel. Sending never waits, and may be called under locks.
pub trait Link: Send + Sync {
    /// Sends a letter from this node to another, if it can.
    fn send(&self, from: &Member, to: &Member, letter: Letter);
}

/// Envelopes up to a number wait in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// Whose they are.
    pub from: ShardId,
    /// For whom.
    pub to: ShardId,
    /// The last of them.
    pub number: u64,
}

/// What one node says to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Letter {
    /// Give this command to your shard. The same number is the same question.
    Ask {
        /// The question's number among those of the sender's process.
        id: u64,
        /// Questions below this are settled: nothing of them need be remembered.
        settled: u64,
        /// Whose shard.
        slot: Slot,
        /// The ownership under which you serve it. Under another this is nothing to you: whoever asks may have asked
        /// somebody else since, and been answered.
        epoch: ShardEpoch,
        /// When this was said.
        at: Timestamp,
        /// The command.
        command: Box<Command>,
    },
    /// The answer to a question.
    Answer {
        /// The question's number.
        id: u64,
        /// The answer.
        answer: Box<Answer>,
    },
    /// The shard of a question is not served here under the ownership that was meant. Nothing was done, and nothing will be.
    Elsewhere {
        /// The question's number.
        id: u64,
        /// The ownership that was meant.
        epoch: ShardEpoch,
        /// The shard and the ownership under which it is served here, if it is.
        serves: Option<(ShardId, ShardEpoch)>,
    },
    /// Whoever asked this no longer wants to know.
    Forget {
        /// The question's number.
        id: u64,
    },
    /// Envelopes wait in the store for shards of yours.
    Mail(Vec<Mail>),
    /// Envelopes were fetched.
    Fetched(Vec<Mail>),
    /// Here I am, and I have no shards yet.
    Joined,
    /// These shards are served here now.
    Took(Vec<(ShardId, ShardEpoch)>),
    /// These shards are free.
    Released(Vec<(ShardId, ShardEpoch)>),
    /// The records of these shards are damaged, as was found here. They are not served here.
    Damaged(Vec<(ShardId, String)>),
    /// These kinds of workers ask at my desk.
    Desk(Vec<Kind>),
    /// There is something here for workers of a kind that asks at your desk.
    Work(Box<Kind>),
    /// One of them takes it.
    Seat {
        /// Its number at the sender's desk.
        seat: u64,
        /// Its kind.
        kind: Box<Kind>,
        /// Who claims.
        by: Box<Claimant>,
        /// How much it takes.
        most: usize,
    },
    /// What was claimed for one who asked at your desk; nothing, if somebody was quicker.
    Handed {
        /// Its number there.
        seat: u64,
        /// The attempts.
        attempts: Vec<Dispatch>,
    },
    /// Tell me what happens in your shards, for as long as a lease lasts.
    Follow {
        /// The number of the last letter about it that came.
        heard: Option<u64>,
    },
    /// What happened in my shards.
    Rows {
        /// The letter's number among those about it.
        number: u64,
        /// What, by namespace.
        rows: Vec<(Str, Happened)>,
    },
    /// What holds for queues, as far as I know.
    Rules {
        /// The same where the same holds.
        mark: u64,
    },
    /// A run of mine has something to show that is in no row.
    Moved {
        /// The run.
        run: RunId,
    },
    /// Who works for a namespace at your desk?
    WhoWorks {
        /// The question's number.
        id: u64,
        /// The namespace.
        namespace: Str,
    },
    /// They do.
    Workers {
        /// The question's number.
        id: u64,
        /// Who was here lately.
        workers: Vec<Lately>,
    },
    /// An attempt of yours is told what became of an entry of its ledger.
    Told {
        /// The attempt.
        claim: ClaimId,
        /// The entry.
        id: OpId,
        /// What became of it.
        op: Box<Op>,
    },
}

impl Engine {
    /// Takes in the letters that come into a box, from now on.
    pub fn receives(&self, mailbox: &Mailbox) {
        mailbox.belongs_to(&self.shared);
    }

    /// Takes in a letter from another node to a process at this address.
    pub fn receive(&self, from: &Member, to: &str, letter: Letter) {
        self.shared.receive(from, to, letter);
    }
}

impl Shared {
    pub(crate) fn receive(&self, from: &Member, to: &str, letter: Letter) {
        // The process that was here before may have been meant. Each of them counts its questions and seats anew, so that
        // an answer for one would pass for an answer to the other.
        if *self.process != *to {
            return;
        }
        let now = self.now();
        let mut core = self.core.lock();
        if core.closed.is_some() || core.ring.is_none() {
            return;
        }
        let mut replies = Vec::new();
        match letter {
            // What came of it may be forgotten: whoever still wants to know says it again.
            Letter::Ask { at, .. } if core.ring.as_ref().is_some_and(|ring| ring.is_late(now, at)) => {}
            Letter::Ask { id, settled, slot, epoch, command, .. } => {
                self.asked(&mut core, from, (id, settled), (slot, epoch), *command);
            }
            Letter::Answer { id, answer } => core.answered(now, id, *answer, &mut replies),
            Letter::Elsewhere { id, epoch, serves } => core.is_elsewhere(now, id, from, epoch, serves),
            Letter::Forget { id } => core.forget_asked(&from.process, id),
            Letter::Mail(mail) => core.mail_came(from, mail),
            Letter::Fetched(mail) => core.mail_fetched(&mail),
            Letter::Joined => core.another_joined(now),
            Letter::Took(shards) => {
                core.others_took(now, from, &shards, &mut replies);
                // Whoever had them may have died before it told what happened there.
                self.tell_anew(&core);
                self.follow_others(&core);
            }
            Letter::Follow { heard } => self.followed_by(&core, now, &from.process, heard),
            Letter::Rules { mark } => self.heard_rules(mark),
            Letter::Moved { run } => self.heard_of_move(run),
            Letter::Rows { number, rows } => self.heard_of(&from.process, number, rows),
            Letter::Released(shards) => core.others_released(now, &shards),
            Letter::Damaged(shards) => core.others_set_aside(now, from, shards, &mut replies),
            Letter::Desk(kinds) => core.heard_kinds(now, from, kinds),
            Letter::Work(kind) => core.is_asked(now, from, &kind),
            Letter::Seat { seat, kind, by, most } => core.seat(now, from, seat, *kind, *by, most),
            Letter::Handed { seat, attempts } => core.attempts_came(now, seat, attempts),
            Letter::WhoWorks { id, namespace } => core.answer_roll_call(now, from, id, &namespace),
            Letter::Workers { id, workers } => core.roll_call_answered(from, id, workers),
            Letter::Told { claim, id, op } => {
                if let Some(executing) = core.executing.get(&claim) {
                    executing.news.tell(id, *op);
                }
            }
        }
        let draining = core.draining;
        let handed = std::mem::take(&mut core.handed);
        drop(core);
        self.hand(handed);
        tell(replies);
        if draining {
            self.attempt_ended.notify_waiters();
        }
        self.bell.ring();
    }

    /// Another node asks.
    fn asked(
        &self,
        core: &mut Core,
        from: &Member,
        (id, settled): (u64, u64),
        (slot, epoch): (Slot, ShardEpoch),
        command: Command,
    ) {
        let now = self.now();
        let home = core.map.home(slot);
        let serves = core.serves(now, home);
        let held = core.at(home).map(|shard| shard.epoch());
        let Some(ring) = &mut core.ring else { return };
        let peer = ring.peers.entry(from.process.clone()).or_default();
        peer.heard(now, settled);
        let reads = reads(&command);
        match peer.find(id, reads) {
            Some(None) => {}
            Some(Some(answer)) => {
                let answer = Box::new(answer.clone());
                ring.send(from, Letter::Answer { id, answer });
            }
            None if held != Some(epoch) => {
                // Who does not know of that ownership yet may be about to have it, and is asked again.
                if ring.view.epoch(home) >= epoch {
                    let serves = held.filter(|_| serves).map(|held| (home, held));
                    ring.send(from, Letter::Elsewhere { id, epoch, serves });
                }
            }
            // Its lease may be renewed yet.
            None if !serves => {}
            None => {
                let run = command.run().filter(|_| reads);
                if !reads {
                    peer.begin(id);
                }
                let ticket = core.put(now, slot, command, Waiter::There { process: from.process.clone(), id });
                let peer = core.ring.as_mut().and_then(|ring| ring.peers.get_mut(&from.process));
                if let (Some(run), Some(peer)) = (run, peer) {
                    peer.reads(id, run, ticket);
                }
            }
        }
    }
}

/// A link that leads nowhere, for a node that is alone.
#[derive(Debug, Default)]
pub struct NoLink;

impl Link for NoLink {
    fn send(&self, _: &Member, _: &Member, _: Letter) {}
}

impl NoLink {
    /// As nodes are told of it.
    #[must_use]
    pub fn shared() -> Arc<dyn Link> {
        Arc::new(Self)
    }
}

/// What a caller is told when nobody knows what became of a command.
pub(crate) fn unknown() -> Answer {
    Answer::Refused(Refusal::Unknown)
}
