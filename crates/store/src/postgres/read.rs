//! Reading rows and index rows back, each against its checksum.

use std::collections::HashMap;

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::LinePlace;
use abide_kernel::{Rev, Row, RunId, Seq, ShardId, ShardMap, Timestamp};

use super::column::{Id, escape, small, unescape};
use super::fault::Trouble;
use super::limit;
use super::link::Live;
use crate::journal::{Gathering, Mark, Walk};
use crate::letter::decode_envelope;
use crate::record::{self, RawRecord};
use crate::row::RawRow;
use crate::{Due, Fault, ReadyPage, Scanned, StoredRun, journal};

pub(super) const SCAN: &str = "SELECT seq, run, rev, prior, at, facts, checksum FROM journal
    WHERE shard = $1 AND seq > $2 ORDER BY seq LIMIT $3";
/// From row to row of a run, in one go: until its journal begins, or a row says that it was emptied before.
pub(super) const CHAIN: &str = "WITH RECURSIVE chain AS (
        SELECT 1 AS place, j.seq, j.run, j.rev, j.prior, j.at, j.facts, j.checksum FROM journal j
        WHERE j.shard = $1 AND j.seq = $2
        UNION ALL
        SELECT c.place + 1, j.seq, j.run, j.rev, j.prior, j.at, j.facts, j.checksum FROM chain c
        JOIN journal j ON j.shard = $1 AND j.seq = c.prior
        WHERE c.place < $3 AND c.prior < c.seq AND c.rev > $4
          AND CASE WHEN $5 THEN c.place = 1 OR c.facts <> '[]' ELSE NOT starts_with(c.facts, '[{\"compacted\"') END
    ) SELECT seq, run, rev, prior, at, facts, checksum FROM chain ORDER BY place";
/// The same way without what the rows say.
pub(super) const TRAIL: &str = "WITH RECURSIVE chain AS (
        SELECT 1 AS place, j.seq, j.run, j.rev, j.prior, starts_with(j.facts, $5) AS begins FROM journal j
        WHERE j.shard = $1 AND j.seq = $2
        UNION ALL
        SELECT c.place + 1, j.seq, j.run, j.rev, j.prior, starts_with(j.facts, $5) FROM chain c
        JOIN journal j ON j.shard = $1 AND j.seq = c.prior
        WHERE c.place < $3 AND c.prior < c.seq AND c.rev > $4 AND NOT c.begins
    ) SELECT seq, run, rev, prior, begins FROM chain ORDER BY place";
pub(super) const PLACES: &str =
    "SELECT seq, run, rev, prior, at, facts, checksum FROM journal WHERE shard = $1 AND seq = ANY ($2)";
pub(super) const RECORD: &str = "SELECT id, shard, head, rev, namespace, workflow, version, queue, status, step, key,
        occupies, parent, created_at, updated_at, due, line, priority, eligible_at, arrival, reservation, checkpoint, checksum,
        labels
    FROM run WHERE id = $1";
pub(super) const CLAIMED: &str = "SELECT id FROM run WHERE shard = $1 AND status = 'executing' ORDER BY id";
pub(super) const READY: &str = "SELECT priority, eligible_at, arrival, id FROM run
    WHERE shard = $1 AND left(line, 500) = left($2, 500) AND line = $2 AND line IS NOT NULL
      AND (priority, eligible_at, arrival, id) > ($3, $4, $5, $6) AND eligible_at <= $7
    ORDER BY priority, eligible_at, arrival, id LIMIT $8";
/// From one line to the next by the index, however many wait in each. A long one is found by how it begins.
pub(super) const LINES: &str = "WITH RECURSIVE found (prefix) AS (
        (SELECT left(line, 500) FROM run WHERE shard = $1 AND line IS NOT NULL ORDER BY left(line, 500) LIMIT 1)
        UNION ALL
        SELECT (SELECT left(r.line, 500) FROM run r WHERE r.shard = $1 AND r.line IS NOT NULL
                AND left(r.line, 500) > f.prefix ORDER BY left(r.line, 500) LIMIT 1)
        FROM found f WHERE f.prefix IS NOT NULL
    )
    SELECT prefix FROM found WHERE length(prefix) < 500
    UNION
    SELECT r.line FROM found f JOIN run r ON r.shard = $1 AND left(r.line, 500) = f.prefix AND r.line IS NOT NULL
    WHERE length(f.prefix) = 500";
/// The page ends between two instants: all runs of its last instant belong to it, however many.
pub(super) const DUE: &str = "SELECT due, id FROM run WHERE shard = $1 AND due >= $2
    ORDER BY due FETCH FIRST $3 ROWS WITH TIES";
pub(super) const NEXT_DUE: &str = "SELECT due FROM run WHERE shard = $1 AND due > $2 ORDER BY due LIMIT 1";
/// Not in order: the planner would look for the lowest id among all.
pub(super) const KEY: &str = "SELECT id FROM run WHERE occupies = $1";
/// Each sender's begin behind what was consumed of it: those before are cleared away, but may still be in the way.
pub(super) const ENVELOPES: &str = "SELECT e.sender, e.number, e.body, e.checksum FROM shard s
    LEFT JOIN LATERAL (SELECT c.number FROM envelope_cursor c WHERE c.receiver = $1 AND c.sender = s.id
        ORDER BY c.number DESC LIMIT 1) c ON true
    CROSS JOIN LATERAL (SELECT e.sender, e.number, e.body, e.checksum FROM envelope e
        WHERE e.receiver = $1 AND e.sender = s.id AND e.number > coalesce(c.number, 0) ORDER BY e.number LIMIT $2) e
    ORDER BY e.sender, e.number LIMIT $2";

/// Rows of a run that are read at once.
const CHAIN_ROWS: i32 = 1_000;
/// Rows that are read together before it is looked whether they are enough: some are large.
const PLACES_TOGETHER: usize = 64;

/// A journal row as the table has it. What it cannot hold by its columns' types it does not hold.
fn raw_row(shard: ShardId, row: &tokio_postgres::Row) -> Result<RawRow, tokio_postgres::Error> {
    let number = |column: usize| row.try_get::<_, i64>(column);
    let Id(run) = row.try_get(1)?;
    Ok(RawRow {
        shard,
        seq: Seq(number(0)? as u64),
        run,
        rev: Rev(number(2)? as u64),
        prior: Seq(number(3)? as u64),
        at: Timestamp(number(4)?),
        facts: row.try_get::<_, &str>(5)?.as_bytes().to_vec(),
        checksum: number(6)?,
    })
}

pub(super) async fn scan(live: &mut Live, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Trouble> {
    let rows = live.query(SCAN, &[&small(shard.0), &(after.0 as i64), &limit(most.max(1))]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let raw = raw_row(shard, row)?;
        found.push((raw.seq, raw.decode()));
    }
    journal::in_order(shard, after, found.into_iter()).map_err(Into::into)
}

/// How far back a run's rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// To the row that its journal begins with.
    Begin,
    /// To one that was emptied: those before it were too.
    Emptied,
}

/// Rows of a run, by position.
pub(super) struct Chain(HashMap<Seq, RawRow>);

impl Chain {
    /// Follows a run's rows from `head`, for as long as their revisions are above `from`.
    pub(super) async fn read(
        live: &mut Live,
        shard: ShardId,
        head: Seq,
        from: u64,
        until: Until,
    ) -> Result<Self, Trouble> {
        let mut found = HashMap::new();
        let mut next = head;
        let emptied = until == Until::Emptied;
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        while next.0 != 0 {
            let rows = live.query(CHAIN, &[&small(shard.0), &(next.0 as i64), &CHAIN_ROWS, &from, &emptied]).await?;
            let full = rows.len() == CHAIN_ROWS as usize;
            next = Seq(0);
            for row in &rows {
                let raw = raw_row(shard, row)?;
                // Read on where the page ends, unless a row leads back to where one was.
                next = if full && raw.prior < raw.seq { raw.prior } else { Seq(0) };
                found.insert(raw.seq, raw);
            }
        }
        Ok(Self(found))
    }

    pub(super) fn row(&self, seq: Seq) -> Option<RawRow> {
        self.0.get(&seq).cloned()
    }
}

/// Where a run's rows lie, by the rows' own word, for as long as their revisions are above `from`.
pub(super) async fn trail(live: &mut Live, shard: ShardId, from: u64, mut walk: Walk) -> Result<Vec<Seq>, Trouble> {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    while let Some(head) = walk.next() {
        let with: [super::link::Value<'_>; 5] =
            [&small(shard.0), &(head.0 as i64), &CHAIN_ROWS, &from, &journal::COMPACTED];
        let rows = live.query(TRAIL, &with).await?;
        if rows.is_empty() {
            walk.take(None)?;
        }
        for row in &rows {
            if walk.next() != Some(Seq(row.try_get::<_, i64>(0)? as u64)) {
                break;
            }
            let (Id(run), rev, prior) = (row.try_get(1)?, row.try_get::<_, i64>(2)?, row.try_get::<_, i64>(3)?);
            walk.take(Some(Mark { run, rev: Rev(rev as u64), prior: Seq(prior as u64), begins: row.try_get(4)? }))?;
        }
    }
    Ok(walk.end())
}

pub(super) async fn rows(
    live: &mut Live,
    shard: ShardId,
    run: RunId,
    places: &[Seq],
    bytes: usize,
) -> Result<Vec<Row>, Trouble> {
    let mut gathering = Gathering::new(shard, run, bytes);
    for some in places.chunks(PLACES_TOGETHER) {
        let numbers: Vec<i64> = some.iter().map(|seq| seq.0 as i64).collect();
        let mut found = HashMap::new();
        for row in &live.query(PLACES, &[&small(shard.0), &numbers]).await? {
            let raw = raw_row(shard, row)?;
            found.insert(raw.seq, raw);
        }
        for seq in some {
            if !gathering.take(*seq, found.remove(seq))? {
                return Ok(gathering.end());
            }
        }
    }
    Ok(gathering.end())
}

/// A run's rows from `head` back to the one its journal begins with, without those below revision `from`, in order.
pub(super) async fn journal(
    live: &mut Live,
    shard: ShardId,
    run: RunId,
    head: Seq,
    from: u64,
) -> Result<Vec<Row>, Trouble> {
    let chain = Chain::read(live, shard, head, from, Until::Begin).await?;
    Ok(journal::follow(shard, run, head, from, |seq| Ok(chain.row(seq)))?)
}

pub(super) async fn read_run(live: &mut Live, map: ShardMap, run: RunId) -> Result<Option<StoredRun>, Trouble> {
    let Some(row) = live.query_opt(RECORD, &[&Id(run)]).await? else {
        return Ok(None);
    };
    let record = raw_record(run, &row)?;
    let rows = match record.checkpoint.is_empty() && record.check().is_ok() {
        true => journal(live, map.home(run.slot()), run, Seq(record.head), 0).await?,
        false => Vec::new(),
    };
    Ok(Some(record.decode(|_| Ok(rows))?))
}

/// An index row as the table has it, from the columns of [`RECORD`].
pub(super) fn raw_record(run: RunId, row: &tokio_postgres::Row) -> Result<RawRecord, Fault> {
    read_record(run, row).map_err(|error| record::damaged(run, &error.to_string()))
}

fn read_record(run: RunId, row: &tokio_postgres::Row) -> Result<RawRecord, tokio_postgres::Error> {
    let number = |column: usize| row.try_get::<_, i64>(column);
    let text = |column: usize| row.try_get::<_, String>(column).map(unescape);
    let maybe = |column: usize| row.try_get::<_, Option<String>>(column).map(|text| text.map(unescape));
    Ok(RawRecord {
        run,
        shard: row.try_get::<_, i16>(1)? as u16,
        head: number(2)? as u64,
        rev: number(3)? as u64,
        namespace: text(4)?,
        workflow: text(5)?,
        version: number(6)? as u32,
        queue: text(7)?,
        status: row.try_get(8)?,
        step: maybe(9)?,
        key: maybe(10)?,
        occupies: maybe(11)?,
        parent: row.try_get::<_, Option<Id>>(12)?.map(|Id(parent)| parent),
        created_at: number(13)?,
        updated_at: number(14)?,
        due: row.try_get(15)?,
        line: maybe(16)?,
        place: [row.try_get::<_, Option<i32>>(17)?.map(i64::from), row.try_get(18)?, row.try_get(19)?],
        reservation: row.try_get(20)?,
        checkpoint: row.try_get::<_, String>(21)?.into_bytes(),
        checksum: number(22)?,
        labels: row.try_get(23)?,
    })
}

pub(super) async fn read_key(live: &mut Live, identity: &str) -> Result<Option<RunId>, Trouble> {
    let rows = live.query(KEY, &[&escape(identity)]).await?;
    Ok(ids(&rows)?.into_iter().min())
}

fn ids(rows: &[tokio_postgres::Row]) -> Result<Vec<RunId>, Trouble> {
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let Id(run) = row.try_get(0)?;
        found.push(run);
    }
    Ok(found)
}

pub(super) async fn read_due(live: &mut Live, shard: ShardId, from: Timestamp, most: usize) -> Result<Due, Trouble> {
    let most = most.max(1);
    let rows = live.query(DUE, &[&small(shard.0), &from.0, &limit(most)]).await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        let Id(run) = row.try_get(1)?;
        entries.push((Timestamp(row.try_get(0)?), run));
    }
    entries.sort_unstable();
    let Some((last, _)) = entries.last().copied().filter(|_| entries.len() >= most) else {
        return Ok(Due { entries, more_from: None });
    };
    let next = live.query_opt(NEXT_DUE, &[&small(shard.0), &last.0]).await?;
    let more_from = next.map(|row| row.try_get(0).map(Timestamp)).transpose()?;
    Ok(Due { entries, more_from })
}

pub(super) async fn read_claimed(live: &mut Live, shard: ShardId) -> Result<Vec<RunId>, Trouble> {
    ids(&live.query(CLAIMED, &[&small(shard.0)]).await?)
}

/// Ids from one to another, without reservations.
pub(super) async fn find(live: &mut Live, low: RunId, high: RunId, most: usize) -> Result<Vec<RunId>, Trouble> {
    let sql = "SELECT id FROM run WHERE id BETWEEN $1 AND $2 AND NOT reservation ORDER BY id LIMIT $3";
    ids(&live.query(sql, &[&Id(low), &Id(high), &limit(most)]).await?)
}

pub(super) async fn read_lines(live: &mut Live, shard: ShardId) -> Result<Vec<String>, Trouble> {
    let rows = live.query(LINES, &[&small(shard.0)]).await?;
    let lines: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0).map(unescape)).collect();
    let mut lines = lines?;
    lines.sort_unstable();
    Ok(lines)
}

pub(super) async fn read_ready(
    live: &mut Live,
    shard: ShardId,
    line: &str,
    after: Option<LinePlace>,
    now: Timestamp,
    most: usize,
) -> Result<ReadyPage, Trouble> {
    // Before every place there can be.
    let first = LinePlace { priority: i32::MIN, eligible_at: Timestamp(i64::MIN), arrival: Seq(0), run: RunId(0) };
    let LinePlace { priority, eligible_at, arrival, run } = after.unwrap_or(first);
    let (arrival, run, most_rows) = (arrival.0 as i64, Id(run), limit(most).saturating_add(1));
    let line = escape(line);
    let with: [super::link::Value<'_>; 8] =
        [&small(shard.0), &line, &priority, &eligible_at.0, &arrival, &run, &now.0, &most_rows];
    let rows = live.query(READY, &with).await?;
    let mut places = Vec::with_capacity(rows.len());
    for row in &rows {
        let (Id(run), arrival) = (row.try_get(3)?, row.try_get::<_, i64>(2)?);
        let eligible_at = Timestamp(row.try_get(1)?);
        places.push(LinePlace { priority: row.try_get(0)?, eligible_at, arrival: Seq(arrival as u64), run });
    }
    let more = places.len() > most;
    places.truncate(most);
    Ok(ReadyPage { places, more })
}

pub(super) async fn read_envelopes(live: &mut Live, to: ShardId, most: usize) -> Result<Vec<Envelope>, Trouble> {
    let rows = live.query(ENVELOPES, &[&small(to.0), &limit(most)]).await?;
    let mut envelopes = Vec::with_capacity(rows.len());
    for row in &rows {
        let sender = row.try_get::<_, i16>(0)? as u16;
        envelopes.push(decode_envelope(to.0, sender, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)?);
    }
    Ok(envelopes)
}
