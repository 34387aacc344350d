//! The written form of a journal row: facts as JSON, and a checksum over the whole row and its place.

use abide_kernel::{Facts, Rev, Row, RunId, Seq, ShardId, Timestamp};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{Fault, Scanned};

/// Which bytes a checksum covers, and in which order. It changes only with a store's format.
const LAYOUT: u8 = 1;

/// What is left of the facts of a row that a purge or a compaction has emptied.
pub(crate) const NO_FACTS: &[u8] = b"[]";

/// A journal row as a store has it: not yet checked.
#[derive(Clone, Debug)]
pub(crate) struct RawRow {
    pub(crate) shard: ShardId,
    pub(crate) seq: Seq,
    pub(crate) run: RunId,
    pub(crate) rev: Rev,
    pub(crate) prior: Seq,
    pub(crate) at: Timestamp,
    pub(crate) facts: Vec<u8>,
    pub(crate) checksum: i64,
}

impl RawRow {
    /// The written form of a row.
    pub(crate) fn of(shard: ShardId, row: &Row) -> Self {
        let mut facts = Vec::new();
        let checksum = encode(shard, row, &mut facts);
        Self { shard, seq: row.seq, run: row.run, rev: row.rev, prior: row.prior, at: row.at, facts, checksum }
    }

    /// The row, if it is as it was written.
    pub(crate) fn decode(&self) -> Scanned {
        if self.sum() != self.checksum {
            return Err(self.damaged("its checksum does not match"));
        }
        let facts: Facts = serde_json::from_slice(&self.facts)
            .map_err(|error| self.damaged(&format!("its facts do not decode: {error}")))?;
        Ok(Row { seq: self.seq, run: self.run, rev: self.rev, prior: self.prior, at: self.at, facts })
    }

    /// Takes the facts out. The row stays, so that positions have no gap and the rows before it can be found.
    pub(crate) fn empty(&mut self) {
        self.facts = NO_FACTS.to_vec();
        self.checksum = self.sum();
    }

    /// Whether the facts were taken out. Those of the run's rows before it were too, in the same transaction.
    pub(crate) fn is_emptied(&self) -> bool {
        self.facts == NO_FACTS
    }

    pub(crate) fn damaged(&self, what: &str) -> Fault {
        damaged(self.shard, self.seq, Some(self.run), what)
    }

    fn sum(&self) -> i64 {
        checksum(self.shard, self.seq, self.run, self.rev, self.prior, self.at, &self.facts)
    }
}

/// A journal row that is not as it was written.
pub(crate) fn damaged(shard: ShardId, seq: Seq, run: Option<RunId>, what: &str) -> Fault {
    let of = run.map(|run| format!(", of {run},")).unwrap_or_default();
    let message = format!("journal row {} of shard {}{of} is damaged: {what}", seq.0, shard.0);
    Fault::corrupt(run, Some((shard, seq)), message)
}

/// Writes a row's facts to the end of `buffer`, and answers with the row's checksum.
#[must_use]
pub(crate) fn encode(shard: ShardId, row: &Row, buffer: &mut Vec<u8>) -> i64 {
    let start = buffer.len();
    // Facts are plain data with text keys; writing them to memory cannot fail.
    serde_json::to_writer(&mut *buffer, &row.facts).expect("facts have a JSON form");
    checksum(shard, row.seq, row.run, row.rev, row.prior, row.at, &buffer[start..])
}

/// Over its place as well, so that a row that was moved or copied elsewhere is noticed.
fn checksum(shard: ShardId, seq: Seq, run: RunId, rev: Rev, prior: Seq, at: Timestamp, facts: &[u8]) -> i64 {
    let mut head = [0u8; 51];
    head[0] = LAYOUT;
    head[1..3].copy_from_slice(&shard.0.to_be_bytes());
    head[3..11].copy_from_slice(&seq.0.to_be_bytes());
    head[11..27].copy_from_slice(&run.0.to_be_bytes());
    head[27..35].copy_from_slice(&rev.0.to_be_bytes());
    head[35..43].copy_from_slice(&prior.0.to_be_bytes());
    head[43..51].copy_from_slice(&at.0.to_be_bytes());
    let mut hash = Xxh3Default::new();
    hash.update(&head);
    hash.update(facts);
    hash.digest() as i64
}

#[cfg(test)]
mod tests {
    use abide_kernel::mix;

    use super::*;
    use crate::FaultKind;

    const FACTS: &str = r#"[{"signal_received":{"id":1,"name":"n","payload":{"a":[1,"ж"]},"request":"req_00000000000000000000000000000001"}}]"#;

    fn raw() -> RawRow {
        let facts = serde_json::from_str(FACTS).unwrap();
        let row = Row { seq: Seq(3), run: RunId(7), rev: Rev(2), prior: Seq(1), at: Timestamp(9), facts };
        let raw = RawRow::of(ShardId(1), &row);
        assert_eq!(raw.decode().unwrap(), row);
        raw
    }

    fn is_corrupt(raw: &RawRow) -> bool {
        raw.decode().is_err_and(|fault| matches!(fault.kind, FaultKind::Corrupt { position: Some(_), .. }))
    }

    #[test]
    fn any_changed_byte_of_a_row_is_noticed() {
        for index in 0..raw().facts.len() {
            for bit in 0..8 {
                let mut changed = raw();
                changed.facts[index] ^= 1 << bit;
                assert!(is_corrupt(&changed), "bit {bit} of byte {index}");
            }
        }
        let raw = raw();
        assert!(is_corrupt(&RawRow { seq: Seq(4), ..raw.clone() }));
        assert!(is_corrupt(&RawRow { run: RunId(6), ..raw.clone() }));
        assert!(is_corrupt(&RawRow { rev: Rev(3), ..raw.clone() }));
        assert!(is_corrupt(&RawRow { prior: Seq(0), ..raw.clone() }));
        assert!(is_corrupt(&RawRow { at: Timestamp(8), ..raw.clone() }));
        assert!(is_corrupt(&RawRow { shard: ShardId(2), ..raw }));
    }

    /// Bytes under a checksum that fits may still be no facts: they are refused by name, and nothing panics.
    #[test]
    fn bytes_that_are_no_facts_are_refused() {
        for seed in 0..20_000u64 {
            let mut changed = raw();
            let draw = |n: u64| mix(seed * 8 + n) as usize;
            let (at, length) = (draw(1) % changed.facts.len(), draw(2) % 12);
            let end = (at + length).min(changed.facts.len());
            let with: Vec<u8> = (0..draw(3) % 8).map(|n| mix(seed ^ (n as u64) << 40) as u8).collect();
            changed.facts.splice(at..end, with);
            changed.checksum = changed.sum();
            match changed.decode() {
                Ok(row) => assert_eq!(RawRow::of(changed.shard, &row).decode().unwrap(), row),
                Err(_) => assert!(is_corrupt(&changed)),
            }
        }
    }
}
