//! What leaves a node: attempts, answers and revocations. Each must be true of what is durable when it leaves, whether the
//! node still owns the shard or only believes so.

use abide_kernel::TokenHash;
use abide_kernel::shard::{Answer, Output, Ticket};
use abide_kernel::transition::start::StartAnswer;

use super::state::{LAST, State, run_id};
use super::{Bounds, EVERY, Word, laws};
use crate::Violation;

/// The ticket of a client.
pub(super) const CLIENT: Ticket = Ticket(1);

/// Who said what about which claim: by it an answer finds its question again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spoken {
    pub(super) claim: u32,
    pub(super) hand: usize,
    /// In which life of its process, if it lives in one.
    pub(super) life: u8,
    pub(super) word: Word,
}

impl Spoken {
    /// Claims are counted from one, so that no client has such a ticket.
    pub(super) fn ticket(self) -> Ticket {
        let digits = [u64::from(self.claim), u64::from(self.life), self.hand as u64, self.word as u64];
        Ticket(digits.into_iter().fold(0, |ticket, digit| ticket * 10 + digit))
    }

    fn of(ticket: Ticket) -> Option<Self> {
        let digit = |place| ticket.0 / 10_u64.pow(place) % 10;
        let word = EVERY.iter().copied().find(|known| *known as u64 == digit(0))?;
        let (claim, life, hand) = (digit(3) as u32, digit(2) as u8, digit(1) as usize);
        (claim > 0).then_some(Self { claim, hand, life, word })
    }
}

impl State {
    /// Everything that leaves the node is durable, leaves once, and goes to the right place.
    pub(super) fn listen(&mut self, bounds: &Bounds, node: usize) -> Result<(), Violation> {
        let Some((_, owned)) = self.nodes[node].owned() else { return Ok(()) };
        if let Some(bug) = owned.shard.bug() {
            return Err(format!("the kernel noticed: {bug}"));
        }
        let outputs = owned.shard.take_outputs();
        let quiet = owned.epoch == self.disk.epoch && owned.flying.is_none() && !owned.shard.wants_append();
        if quiet {
            self.disk.ledger.compare_memory(owned.shard.run(run_id()))?;
        }
        let hands = owned.hands.clone();
        for output in outputs {
            match output {
                Output::Dispatch(dispatch) => {
                    let hand = hands[dispatch.worker.0 as usize];
                    self.dispatch(dispatch.claim.number, hand, &*dispatch.step == LAST)?;
                }
                Output::Answer(CLIENT, answer) => self.answer_client(&answer)?,
                Output::Answer(ticket, answer) => {
                    // What a node gives back of itself, nobody waits for; and who has died waits for nothing.
                    let lives = |spoken: &Spoken| spoken.life == self.nodes[spoken.hand].worker_life(bounds);
                    if let Some(spoken) = Spoken::of(ticket).filter(lives) {
                        let token = self.nodes[spoken.hand].token(bounds);
                        self.answer(node, spoken, token, &answer)?;
                    }
                }
                Output::Revoked(claim) => self.disk.ledger.is_lost(claim.number)?,
                Output::Progressed(_) | Output::Told { .. } | Output::Scheduled { .. } | Output::Deliver(_) => {}
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, claim: u32, hand: usize, last: bool) -> Result<(), Violation> {
        if !self.disk.ledger.claims.contains_key(&claim) {
            return Err(format!("claim {claim} is handed out before it is durable"));
        }
        if self.dispatched.insert(claim, last).is_some() {
            return Err(format!("claim {claim} is handed out twice"));
        }
        self.hands[hand].claims.insert(claim);
        Ok(())
    }

    /// Whoever asks for the run, for the first time or again, is told of it and of no other.
    fn answer_client(&self, answer: &Answer) -> Result<(), Violation> {
        match answer {
            Answer::Started(StartAnswer::Created(id)) if *id != run_id() => {
                Err(format!("a start is answered with {id}"))
            }
            Answer::Started(StartAnswer::Created(_)) if self.disk.run().is_none() => {
                Err("a start is acknowledged before it is durable".into())
            }
            Answer::Started(StartAnswer::Created(_)) | Answer::Recorded { .. } => Ok(()),
            other => Err(format!("a client is answered with {other:?}")),
        }
    }

    /// A worker is told that its word took effect only if it did, and only of its own claim.
    fn answer(&mut self, node: usize, spoken: Spoken, token: TokenHash, answer: &Answer) -> Result<(), Violation> {
        let Spoken { claim, word, .. } = spoken;
        let ledger = &self.disk.ledger;
        let said = laws::said(claim, token, word);
        if matches!(answer, Answer::Refused(_)) {
            return if word.is_result() { self.refused(node, claim, &said) } else { Ok(()) };
        }
        if ledger.claims.get(&claim) != Some(&token) {
            return Err(format!("{word:?} of claim {claim} is obeyed, from one who does not hold it"));
        }
        let holds = match (answer, word) {
            (Answer::Recorded { duplicate, .. }, Word::Done | Word::Late | Word::Failed) => {
                if !duplicate && !self.told.insert(claim) {
                    return Err(format!("a result of claim {claim} is recorded twice"));
                }
                ledger.results.get(&claim) == Some(&said)
            }
            (Answer::Recorded { .. }, Word::Returned) => ledger.returned.contains(&claim),
            (Answer::Extended { lease_until }, Word::Beat) => ledger.is_leased(claim, *lease_until),
            _ => false,
        };
        if holds { Ok(()) } else { Err(format!("{word:?} of claim {claim} is answered with {answer:?}, not durable")) }
    }

    /// What was refused was not done. The last result of a run is recognised when it is said again; of an older one, only
    /// whoever owns the shard no longer may say that it knows nothing.
    fn refused(&mut self, node: usize, claim: u32, said: &str) -> Result<(), Violation> {
        let Some(times) = self.returned.get_mut(said) else { return Ok(()) };
        *times -= 1;
        let current = self.nodes[node].owned.as_ref().is_some_and(|owned| owned.epoch == self.disk.epoch);
        let last = self.disk.ledger.results.last_key_value();
        if current && last.is_some_and(|(last, recorded)| *last == claim && recorded == said) {
            return Err(format!("a result of claim {claim} is refused, and it is the one that is recorded"));
        }
        self.wanted()
    }

    /// Every result that is recorded was returned at least once without being refused.
    pub(super) fn wanted(&self) -> Result<(), Violation> {
        let refused = |said: &&String| self.returned.get(*said).is_none_or(|times| *times == 0);
        match self.disk.ledger.results.values().find(refused) {
            Some(said) => Err(format!("{said} is recorded, and was refused each time it was returned")),
            None => Ok(()),
        }
    }
}
