//! Dead letters: envelopes that were set aside go back in line, or are given up, by a person's word.

use super::{Answer, Settling, Shard, Ticket};
use crate::envelope::Envelope;
use crate::{LetterId, Refusal};

impl Shard {
    /// Takes an envelope out of the dead letters. Its message, if it goes back in line, is delivered by the same batch:
    /// obeyed at once when its target is in memory, else sent again. A second word about it is refused.
    pub(super) fn settle_letter(&mut self, ticket: Ticket, letter: LetterId, envelope: Envelope, how: Settling) {
        if envelope.to != self.config.id {
            let found = alloc::format!("one for {:?}", envelope.to);
            let refusal = Refusal::invalid("dead letter", "an envelope for this shard", found);
            return self.answer(Some(ticket), Answer::Refused(refusal));
        }
        if self.settling.insert(letter, ()).is_some() {
            return self.answer(Some(ticket), Answer::Refused(Refusal::NoLetter { letter }));
        }
        self.batch.settled.push(letter);
        match how {
            Settling::Requeue => self.messages.push_back(envelope.message),
            Settling::Discard => {}
        }
        self.pump();
        self.answer(Some(ticket), Answer::Settled);
    }
}
