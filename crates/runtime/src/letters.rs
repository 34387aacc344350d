//! Dead letters: envelopes that were set aside are found in the store, and settled by the shard they are for.

use std::sync::Arc;

use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{LetterId, Refusal};
use abide_store::{DeadLetterItem, Fault};

use crate::admission::{RETRIES_MAX, Unanswered};
use crate::driver::Shared;

impl Shared {
    pub(crate) fn dead_letters(&self) -> Result<Vec<DeadLetterItem>, Fault> {
        self.reader.lock().dead_letters()
    }

    /// Settles a dead letter. After an unknown outcome the store is asked again: if the letter is gone, it cannot be told
    /// whether by this word or by another's. While it is there nothing was done, and it is settled again, so often.
    pub(crate) async fn settle(self: &Arc<Self>, letter: LetterId, how: Settling) -> Result<(), Unanswered> {
        let mut tried = false;
        for _ in 0..=RETRIES_MAX {
            let asked = {
                // Nothing is appended between the look and the word: what the store has is what the shard decides on.
                let _store = self.visit();
                let found = self.dead_letters()?.into_iter().find(|item| item.id == letter);
                let Some(item) = found else {
                    return Err(if tried { Refusal::Unknown } else { Refusal::NoLetter { letter } }.into());
                };
                let envelope = Box::new(item.dead.envelope);
                self.ask(envelope.message.slot(), Command::Settle { letter, envelope, how })
            };
            match asked.await? {
                Answer::Settled => return Ok(()),
                Answer::Refused(Refusal::Unknown) => tried = true,
                // It was there a moment ago: what was said first may have come late.
                Answer::Refused(Refusal::NoLetter { .. }) if tried => return Err(Refusal::Unknown.into()),
                Answer::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Unanswered::unexpected(&other)),
            }
        }
        Err(Refusal::Unknown.into())
    }
}
