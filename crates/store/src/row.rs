//! The written form of a journal row: facts as JSON, and a checksum over the whole row.

use abide_kernel::{FORMAT, Facts, Rev, Row, RunId, Seq, Timestamp};
use xxhash_rust::xxh3::Xxh3Default;

/// Writes facts as JSON to the end of `into`.
pub fn encode_facts(facts: &Facts, into: &mut Vec<u8>) {
    // Facts are plain data with text keys; writing them to memory cannot fail.
    serde_json::to_writer(into, facts).expect("facts have a JSON form");
}

/// Reads facts from their JSON.
///
/// # Errors
/// When the text is no list of facts that this release knows.
pub fn decode_facts(text: &[u8]) -> Result<Facts, serde_json::Error> {
    serde_json::from_slice(text)
}

/// The checksum of a row: over its identity, its place and its facts, so that a row moved elsewhere is noticed.
#[must_use]
pub fn checksum(run: RunId, rev: Rev, prior: Seq, at: Timestamp, facts: &[u8]) -> i64 {
    let mut head = [0u8; 41];
    head[0] = FORMAT;
    head[1..17].copy_from_slice(&run.0.to_be_bytes());
    head[17..25].copy_from_slice(&rev.0.to_be_bytes());
    head[25..33].copy_from_slice(&prior.0.to_be_bytes());
    head[33..41].copy_from_slice(&at.0.to_be_bytes());
    let mut hash = Xxh3Default::new();
    hash.update(&head);
    hash.update(facts);
    hash.digest() as i64
}

/// The checksum of a row that is at hand, written into `buffer` on the way.
#[must_use]
pub(crate) fn encode(row: &Row, buffer: &mut Vec<u8>) -> i64 {
    let start = buffer.len();
    encode_facts(&row.facts, buffer);
    checksum(row.run, row.rev, row.prior, row.at, &buffer[start..])
}
