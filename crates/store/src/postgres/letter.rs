//! Dead letters: envelopes that were set aside, and those that are settled. Both are rare, and go beside the one
//! statement, in its transaction.

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::shard::Batch;
use abide_kernel::{LetterId, ShardId, Timestamp};

use super::Owned;
use super::column::{escape, unescape};
use super::fault::Trouble;
use super::link::Live;
use crate::letter::RawLetter;
use crate::{DeadLetterItem, journal};

/// The dead letters of a group: what is set aside, when and by whom, and what is settled.
#[derive(Default)]
pub(super) struct Letters<'a> {
    dead: Vec<(ShardId, Timestamp, &'a str, &'a DeadEnvelope)>,
    settled: Vec<(ShardId, LetterId)>,
}

impl<'a> Letters<'a> {
    pub(super) fn of(batches: impl Iterator<Item = &'a Batch>, shards: &'a [Owned]) -> Self {
        let mut letters = Self::default();
        for batch in batches {
            let owned = &shards[usize::from(batch.shard.0)];
            let at = batch.rows.last().map_or(owned.last_at, |row| row.at);
            letters.dead.extend(batch.dead.iter().map(|dead| (batch.shard, at, &*owned.node, dead)));
            letters.settled.extend(batch.settled.iter().map(|letter| (batch.shard, *letter)));
        }
        letters
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.settled.is_empty()
    }

    /// Writes those of the shards that are held. One that is not there was settled before.
    pub(super) async fn write(&self, live: &mut Live, held: &[ShardId]) -> Result<(), Trouble> {
        for (_, letter) in self.settled.iter().filter(|(shard, _)| held.contains(shard)) {
            let removed = live.execute("DELETE FROM dead_letter WHERE id = $1", &[&(letter.0 as i64)]).await?;
            if removed == 0 {
                return Err(journal::no_letter(*letter).into());
            }
        }
        for (_, at, node, dead) in self.dead.iter().filter(|(shard, ..)| held.contains(shard)) {
            set_aside(live, *at, node, dead).await?;
        }
        Ok(())
    }
}

/// Sets an envelope aside under a number that was never used.
pub(super) async fn set_aside(live: &mut Live, at: Timestamp, node: &str, dead: &DeadEnvelope) -> Result<(), Trouble> {
    let row = live.query_one("SELECT nextval('dead_letter_id')", &[]).await?;
    let letter = RawLetter::of(row.try_get(0)?, at, node, dead);
    live.execute(
        "INSERT INTO dead_letter (id, at, node, reason, body, checksum) VALUES ($1, $2, $3, $4, $5, $6)",
        &[&letter.id, &letter.at, &escape(&letter.node), &escape(&letter.reason), &letter.body, &letter.sum()],
    )
    .await?;
    Ok(())
}

/// All that were set aside, in order.
pub(super) async fn read_all(live: &mut Live) -> Result<Vec<DeadLetterItem>, Trouble> {
    let rows = live.query("SELECT id, at, node, reason, body, checksum FROM dead_letter ORDER BY id", &[]).await?;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        let text = |column: usize| row.try_get::<_, String>(column).map(unescape);
        let letter = RawLetter {
            id: row.try_get(0)?,
            at: row.try_get(1)?,
            node: text(2)?,
            reason: text(3)?,
            body: row.try_get(4)?,
        };
        items.push(letter.decode(row.try_get(5)?)?);
    }
    Ok(items)
}
