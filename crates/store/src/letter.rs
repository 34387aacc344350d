//! The written forms of envelopes, of how far they were consumed, and of dead letters: each against its checksum.

use abide_kernel::envelope::{DeadEnvelope, Envelope};
use abide_kernel::{LetterId, Timestamp};
use xxhash_rust::xxh3::Xxh3Default;

use crate::sum::Sum;
use crate::{DeadLetterItem, Fault};

/// The body of an envelope as it is written.
pub(crate) fn body(envelope: &Envelope) -> String {
    serde_json::to_string(envelope).expect("envelopes have a JSON form")
}

/// Over its place as well: an envelope that was moved is not the one that was sent.
pub(crate) fn envelope_sum(receiver: u16, sender: u16, number: i64, body: &str) -> i64 {
    let mut hash = Xxh3Default::new();
    hash.update(&receiver.to_be_bytes());
    hash.update(&sender.to_be_bytes());
    hash.update(&number.to_be_bytes());
    hash.update(body.as_bytes());
    hash.digest() as i64
}

/// The envelope, if it is as it was written.
pub(crate) fn decode_envelope(
    receiver: u16,
    sender: u16,
    number: i64,
    body: &str,
    checksum: i64,
) -> Result<Envelope, Fault> {
    let damaged = |what: &str| {
        let message = format!("envelope {number} from shard {sender} to shard {receiver} is damaged: {what}");
        Fault::corrupt(None, None, message)
    };
    if envelope_sum(receiver, sender, number, body) != checksum {
        return Err(damaged("its checksum does not match"));
    }
    serde_json::from_str(body).map_err(|error| damaged(&error.to_string()))
}

pub(crate) fn cursor_sum(receiver: u16, sender: u16, number: i64) -> i64 {
    Sum::of("envelope_cursor").number(i64::from(receiver)).number(i64::from(sender)).number(number).end()
}

/// Whether a cursor is as it was written.
pub(crate) fn check_cursor(receiver: u16, sender: u16, number: i64, checksum: i64) -> Result<(), Fault> {
    if cursor_sum(receiver, sender, number) == checksum {
        return Ok(());
    }
    let message = format!(
        "the cursor of shard {receiver} over envelopes from shard {sender} is damaged: its checksum does not match"
    );
    Err(Fault::corrupt(None, None, message))
}

/// A dead letter as a store has it: not yet checked.
#[derive(Clone, Debug)]
pub(crate) struct RawLetter {
    pub(crate) id: i64,
    pub(crate) at: i64,
    pub(crate) node: String,
    pub(crate) reason: String,
    pub(crate) body: String,
}

impl RawLetter {
    /// The written form of an envelope that is set aside.
    pub(crate) fn of(id: i64, at: Timestamp, node: &str, dead: &DeadEnvelope) -> Self {
        Self { id, at: at.0, node: node.to_owned(), reason: dead.reason.to_string(), body: body(&dead.envelope) }
    }

    pub(crate) fn sum(&self) -> i64 {
        Sum::of("dead_letter")
            .number(self.id)
            .number(self.at)
            .text(Some(&self.node))
            .text(Some(&self.reason))
            .text(Some(&self.body))
            .end()
    }

    /// The letter, if it is as it was written.
    pub(crate) fn decode(self, checksum: i64) -> Result<DeadLetterItem, Fault> {
        let damaged = |what: &str| Fault::corrupt(None, None, format!("dead letter {} is damaged: {what}", self.id));
        if self.sum() != checksum {
            return Err(damaged("its checksum does not match"));
        }
        let envelope: Envelope = serde_json::from_str(&self.body).map_err(|error| damaged(&error.to_string()))?;
        let dead = DeadEnvelope { envelope, reason: self.reason.into() };
        Ok(DeadLetterItem { id: LetterId(self.id as u64), at: Timestamp(self.at), node: self.node, dead })
    }
}
