//! A shard's own rows: who owns it, how far index rows go, and where its log ended when that was last written; and how it
//! is taken.

use abide_kernel::{Seq, ShardEpoch, ShardId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::column::{escape, small, unescape};
use super::fault::Trouble;
use super::link::Live;
use crate::sum::Sum;
use crate::{Fault, FaultKind, Opened, journal, letter};

/// Who owns a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardRow {
    pub(super) shard: ShardId,
    pub(super) epoch: ShardEpoch,
    pub(super) owner: Option<String>,
    /// Whether its owner writes only while its lease lasts. One that never had a lease is kept out by the next owner.
    pub(super) leased: bool,
}

const LOCK: &str = "SELECT epoch, owner, leased, checksum FROM shard WHERE id = $1 FOR NO KEY UPDATE";

/// After the row is locked, so that what the owner before wrote last is seen.
pub(super) const STANDING: &str = "
SELECT (SELECT n.until > clock_ms() FROM node n WHERE n.process = $2),
       (SELECT n.until > clock_ms() FROM node n WHERE n.process = $3),
       (SELECT n.node FROM node n WHERE n.process = $2),
       p.head, p.last, p.checksum, p.watermark, p.mark, coalesce(j.seq, 0), coalesce(j.at, 0), coalesce(j.checksum, 0),
       (SELECT k.checksum FROM journal k WHERE k.shard = $1 AND k.seq = p.head), p.number
FROM (SELECT * FROM progress WHERE shard = $1 ORDER BY number DESC LIMIT 1) p
LEFT JOIN LATERAL (SELECT seq, at, checksum FROM journal WHERE shard = $1 ORDER BY seq DESC LIMIT 1) j ON true";

/// For every shard: the last envelope to it that is there, the one it consumed last, and the one consumed from it last.
/// Each is the end of an index, however many there were.
pub(super) const NUMBERS: &str = "
SELECT s.id, sent.number, theirs.number, theirs.checksum, ours.number, ours.checksum FROM shard s
LEFT JOIN LATERAL (SELECT number FROM envelope
    WHERE receiver = s.id AND sender = $1 ORDER BY number DESC LIMIT 1) sent ON true
LEFT JOIN LATERAL (SELECT number, checksum FROM envelope_cursor
    WHERE receiver = s.id AND sender = $1 ORDER BY number DESC LIMIT 1) theirs ON true
LEFT JOIN LATERAL (SELECT number, checksum FROM envelope_cursor
    WHERE receiver = $1 AND sender = s.id ORDER BY number DESC LIMIT 1) ours ON true";

impl ShardRow {
    /// A shard that nobody has owned.
    pub(super) fn new(shard: ShardId) -> Self {
        Self { shard, epoch: ShardEpoch(0), owner: None, leased: false }
    }

    /// Writes rows of shards that nobody has owned yet.
    pub(super) async fn insert_all(live: &mut Live, rows: &[Self]) -> Result<(), Trouble> {
        let ids: Vec<i16> = rows.iter().map(|row| small(row.shard.0)).collect();
        let sums: Vec<i64> = rows.iter().map(Self::sum).collect();
        let ends: Vec<i64> = rows.iter().map(|row| end_sum(row.shard, 0, Seq(0), 0)).collect();
        live.execute(
            "INSERT INTO shard (id, epoch, leased, checksum)
             SELECT n.id, 0, false, n.sum FROM unnest($1::smallint[], $2::bigint[]) AS n (id, sum)",
            &[&ids, &sums],
        )
        .await?;
        live.execute(
            "INSERT INTO progress (shard, number, head, last, checksum, watermark, mark)
             SELECT n.id, 0, 0, 0, n.sum, 0, 0 FROM unnest($1::smallint[], $2::bigint[]) AS n (id, sum)",
            &[&ids, &ends],
        )
        .await?;
        Ok(())
    }

    async fn lock(live: &mut Live, shard: ShardId) -> Result<Self, Trouble> {
        let damaged =
            |what: &str| Fault::corrupt(None, None, format!("the row of shard {} is damaged: {what}", shard.0));
        let found = live.query_opt(LOCK, &[&small(shard.0)]).await?;
        let row = found.ok_or_else(|| damaged("it is missing"))?;
        let owner: Option<String> = row.try_get(1)?;
        let epoch = ShardEpoch(row.try_get::<_, i64>(0)? as u64);
        let kept = Self { shard, epoch, owner: owner.map(unescape), leased: row.try_get(2)? };
        if kept.sum() != row.try_get::<_, i64>(3)? {
            return Err(damaged("its checksum does not match").into());
        }
        Ok(kept)
    }

    async fn write(&self, live: &mut Live) -> Result<(), Trouble> {
        live.execute(
            "UPDATE shard SET epoch = $2, owner = $3, leased = $4, checksum = $5 WHERE id = $1",
            &[
                &small(self.shard.0),
                &(self.epoch.0 as i64),
                &self.owner.as_deref().map(escape),
                &self.leased,
                &self.sum(),
            ],
        )
        .await?;
        Ok(())
    }

    fn sum(&self) -> i64 {
        Sum::of("shard")
            .number(i64::from(self.shard.0))
            .number(self.epoch.0 as i64)
            .text(self.owner.as_deref())
            .number(i64::from(self.leased))
            .end()
    }
}

/// The checksum of the end of a log as it is noted.
pub(super) fn end_sum(shard: ShardId, number: i64, head: Seq, last: i64) -> i64 {
    Sum::of("progress").number(i64::from(shard.0)).number(number).number(head.0 as i64).number(last).end()
}

/// What is found under the lock of a shard's row.
struct Standing {
    /// Whether the lease of the one who comes lasts, if there is one.
    mine: Option<bool>,
    /// The same of the one who owns the shard now.
    theirs: Option<bool>,
    node: Option<String>,
    /// The number of what is noted of its progress.
    noted: i64,
    watermark: Seq,
    end: Seq,
    at: Timestamp,
    last: i64,
}

impl Standing {
    fn read(shard: ShardId, row: &Row) -> Result<Self, Trouble> {
        let damaged =
            |what: &str| Fault::corrupt(None, None, format!("the progress of shard {} is damaged: {what}", shard.0));
        let number = |column: usize| row.try_get::<_, i64>(column);
        let (head, last) = (Seq(number(3)? as u64), number(4)?);
        let noted = number(12)?;
        if end_sum(shard, noted, head, last) != number(5)? {
            return Err(damaged("its checksum does not match").into());
        }
        let watermark = watermark(shard, number(6)?, number(7)?)?;
        let end = Seq(number(8)? as u64);
        journal::check_end(shard, end, watermark)?;
        journal::check_end(shard, end, head)?;
        journal::check_last(shard, head, head.0 == 0 || row.try_get::<_, Option<i64>>(11)? == Some(last))?;
        Ok(Self {
            mine: row.try_get(0)?,
            theirs: row.try_get(1)?,
            node: row.try_get(2)?,
            noted,
            watermark,
            end,
            at: Timestamp(number(9)?),
            last: number(10)?,
        })
    }
}

/// A watermark, if it is as it was written. Nought is believed without a mark.
pub(super) fn watermark(shard: ShardId, watermark: i64, mark: i64) -> Result<Seq, Fault> {
    let watermark = Seq(watermark as u64);
    if watermark.0 == 0 || journal::mark(shard, watermark) == mark {
        return Ok(watermark);
    }
    let message = format!("the watermark of shard {} is not what was written", shard.0);
    Err(Fault::corrupt(None, None, message))
}

/// A shard that was taken.
pub(super) struct Taken {
    pub(super) opened: Opened,
    /// The name of its owner's node.
    pub(super) node: String,
    /// The checksum of its last row.
    pub(super) last: i64,
    /// The number of what is noted of its progress.
    pub(super) noted: i64,
}

/// Takes a shard from nobody, from oneself, or from one whose lease has ended. An append of the owner before that is
/// under way holds the row, and is waited for.
pub(super) async fn take(live: &mut Live, shard: ShardId, count: u16, process: &str) -> Result<Taken, Trouble> {
    // One that stopped in the middle of a transaction may hold it: the others are taken meanwhile.
    live.batch("SET LOCAL lock_timeout = 1000").await?;
    let mut kept = match ShardRow::lock(live, shard).await {
        Err(Trouble::Sql(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            let message = format!("somebody who writes to shard {} has not come to an end", shard.0);
            return Err(Fault::new(FaultKind::Held, message).into());
        }
        kept => kept?,
    };
    let owner = kept.owner.clone().unwrap_or_default();
    let with: [super::link::Value<'_>; 3] = [&small(shard.0), &escape(process), &escape(&owner)];
    let Some(row) = live.query_opt(STANDING, &with).await? else {
        return Err(Fault::corrupt(None, None, format!("the progress of shard {} is missing", shard.0)).into());
    };
    let standing = Standing::read(shard, &row)?;
    if kept.leased && owner != process && standing.theirs == Some(true) {
        let message = format!("shard {} belongs to {owner}, whose lease has not ended", shard.0);
        return Err(Fault::new(FaultKind::Held, message).into());
    }
    if standing.mine == Some(false) {
        let message = format!("the lease of {process} has ended: it takes no shard before it is renewed");
        return Err(Fault::new(FaultKind::Refused, message).into());
    }
    kept.epoch = ShardEpoch(kept.epoch.0 + 1);
    kept.owner = Some(process.to_owned());
    kept.leased = standing.mine.is_some();
    kept.write(live).await?;
    let (sent, consumed) = numbers(live, shard, count).await?;
    let opened = Opened {
        epoch: kept.epoch,
        head: standing.end,
        watermark: standing.watermark,
        sent,
        consumed,
        last_at: standing.at,
    };
    let node = standing.node.map_or_else(|| process.to_owned(), unescape);
    Ok(Taken { opened, node, last: standing.last, noted: standing.noted })
}

/// The last envelope sent to each shard, and the last one consumed from each.
async fn numbers(live: &mut Live, shard: ShardId, count: u16) -> Result<(Vec<u64>, Vec<u64>), Trouble> {
    let mut sent = vec![0; usize::from(count)];
    let mut consumed = sent.clone();
    for row in live.query(NUMBERS, &[&small(shard.0)]).await? {
        let other = row.try_get::<_, i16>(0)? as u16;
        let index = usize::from(other);
        if index >= sent.len() {
            continue;
        }
        let sent_last: Option<i64> = row.try_get(1)?;
        let theirs = cursor(&row, 2, other, shard.0)?;
        sent[index] = sent_last.unwrap_or(0).max(theirs) as u64;
        consumed[index] = cursor(&row, 4, shard.0, other)? as u64;
    }
    Ok((sent, consumed))
}

/// A cursor from two columns, if it is as it was written; nought without one.
fn cursor(row: &Row, column: usize, receiver: u16, sender: u16) -> Result<i64, Trouble> {
    let Some(number) = row.try_get::<_, Option<i64>>(column)? else {
        return Ok(0);
    };
    letter::check_cursor(receiver, sender, number, row.try_get(column + 1)?)?;
    Ok(number)
}

/// Gives a shard up, if it is owned under this epoch.
pub(super) async fn release(live: &mut Live, shard: ShardId, epoch: ShardEpoch) -> Result<(), Trouble> {
    let mut kept = ShardRow::lock(live, shard).await?;
    if kept.epoch == epoch && kept.owner.is_some() {
        kept.owner = None;
        kept.write(live).await?;
    }
    Ok(())
}
