//! A group of batches on its way into a store: which of them may follow, and their rows as they are written.

use std::collections::BTreeMap;

use abide_kernel::shard::Batch;
use abide_kernel::{Row, Seq, ShardEpoch, ShardId};

use crate::{Verdict, journal, row};

/// Which batches may follow. `owned` is a shard's epoch and the end of its log, if the owner has it. A later batch of a
/// shard follows the earlier ones of the group.
pub(crate) fn fence(group: &[Batch], owned: impl Fn(ShardId) -> Option<(ShardEpoch, Seq)>) -> Vec<Verdict> {
    let mut heads: BTreeMap<ShardId, Seq> = BTreeMap::new();
    let judge = |batch: &Batch| {
        let Some((epoch, head)) = owned(batch.shard) else {
            return Verdict::Stale;
        };
        let head = heads.entry(batch.shard).or_insert(head);
        let verdict = journal::fence(batch, epoch, *head);
        if let (Verdict::Durable, Some(last)) = (verdict, batch.rows.last()) {
            *head = last.seq;
        }
        verdict
    };
    group.iter().map(judge).collect()
}

/// The batches that are to be written.
pub(crate) fn accepted<'a, 'b>(
    group: &'a [Batch],
    verdicts: &'b [Verdict],
) -> impl Iterator<Item = &'a Batch> + use<'a, 'b> {
    let durable = group.iter().zip(verdicts);
    durable.filter_map(|(batch, verdict)| (*verdict == Verdict::Durable).then_some(batch))
}

/// A row on its way; its facts are a part of a buffer.
pub(crate) struct Encoded<'a> {
    pub(crate) shard: ShardId,
    pub(crate) row: &'a Row,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) checksum: i64,
}

/// The rows of the batches that are to be written, with their facts in `buffer`.
pub(crate) fn encode<'a>(group: &'a [Batch], verdicts: &[Verdict], buffer: &mut Vec<u8>) -> Vec<Encoded<'a>> {
    buffer.clear();
    let mut encoded = Vec::with_capacity(accepted(group, verdicts).map(|batch| batch.rows.len()).sum());
    for batch in accepted(group, verdicts) {
        for row in &batch.rows {
            let start = buffer.len();
            let checksum = row::encode(batch.shard, row, buffer);
            encoded.push(Encoded { shard: batch.shard, row, start, end: buffer.len(), checksum });
        }
    }
    encoded
}
