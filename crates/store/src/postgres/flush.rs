//! Flush: index rows and checkpoints, written behind by one statement with the watermark; and what can be cleared away.

use abide_kernel::shard::{Flush, Record};
use abide_kernel::{Seq, ShardId};

use super::column::{Id, escape, small};
use super::fault::Trouble;
use super::link::{Live, Value, Work};
use super::read::{self, Chain};
use super::shard::end_sum;
use super::{Lease, Owned, PostgresStore};
use crate::row::NO_FACTS;
use crate::{Fault, Verdict, journal, record};

/// An index row only ever moves its revision forward, and is written whole: its checksum is over all of it.
pub(super) const FLUSH: &str = "
WITH held AS MATERIALIZED (
    SELECT s.id FROM shard s
    WHERE s.id = $1 AND s.epoch = $2 AND s.owner IS NOT NULL
      AND (NOT s.leased OR (s.owner = $3 AND clock_ms() < $4)
           OR clock_ms() < (SELECT n.until FROM node n WHERE n.process = s.owner))
    FOR SHARE
), noted AS (
    INSERT INTO progress (shard, number, head, last, checksum, watermark, mark) SELECT id, $5, $6, $7, $8, $9, $10 FROM held
    ON CONFLICT (shard, number) DO UPDATE SET head = excluded.head, last = excluded.last, checksum = excluded.checksum,
        watermark = excluded.watermark, mark = excluded.mark
), before AS (
    DELETE FROM progress p USING held WHERE p.shard = held.id AND p.number = $5 - 1
), purged AS (
    DELETE FROM run r USING held, unnest($11::uuid[]) AS gone (id) WHERE r.id = gone.id
), indexed AS (
    INSERT INTO run (id, head, rev, created_at, updated_at, due, eligible_at, arrival, checksum, version, priority, shard,
        reservation, parent, namespace, workflow, queue, status, step, key, occupies, line, checkpoint)
    SELECT r.*  FROM held, unnest($12::uuid[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[],
        $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[], $22::integer[], $23::smallint[], $24::boolean[],
        $25::uuid[], $26::text[], $27::text[], $28::text[], $29::text[], $30::text[], $31::text[], $32::text[],
        $33::text[], $34::text[]) AS r
    ON CONFLICT (id) DO UPDATE SET
        head = excluded.head, rev = excluded.rev, created_at = excluded.created_at, updated_at = excluded.updated_at,
        due = excluded.due, eligible_at = excluded.eligible_at, arrival = excluded.arrival, checksum = excluded.checksum,
        version = excluded.version, priority = excluded.priority, shard = excluded.shard,
        reservation = excluded.reservation, parent = excluded.parent, namespace = excluded.namespace,
        workflow = excluded.workflow, queue = excluded.queue, status = excluded.status, step = excluded.step,
        key = excluded.key, occupies = excluded.occupies, line = excluded.line, checkpoint = excluded.checkpoint
    WHERE excluded.rev >= run.rev
)
SELECT id FROM held";

/// What was consumed is of no use: its effects are in rows that are durable. Only the highest cursor counts.
pub(super) const CLEAR: &str = "
WITH envelopes AS (
    DELETE FROM envelope e USING unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS c (sender, first, last)
    WHERE e.receiver = $1 AND e.sender = c.sender AND e.number BETWEEN c.first AND c.last
)
DELETE FROM envelope_cursor e USING unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS c (sender, first, last)
WHERE e.receiver = $1 AND e.sender = c.sender AND e.number >= c.first AND e.number < c.last";

const EMPTY: &str = "
UPDATE journal j SET facts = $4, checksum = e.checksum FROM unnest($2::bigint[], $3::bigint[]) AS e (seq, checksum)
WHERE j.shard = $1 AND j.seq = e.seq";

impl PostgresStore {
    pub(super) fn flush_index(&mut self, flush: &Flush) -> Result<Verdict, Fault> {
        let owned = self.shards.get(usize::from(flush.shard.0));
        let Some(owned) = owned.filter(|owned| owned.epoch == flush.epoch && flush.epoch.0 > 0) else {
            return Ok(Verdict::Stale);
        };
        self.counts.write();
        let (index, lease) = (Index::of(flush), &self.lease);
        let emptied: Vec<Seq> = flush.compacted.iter().chain(&flush.purged).map(|(_, head)| *head).collect();
        let held = self.link.run("writing index rows", Work::Repeatable, async |live: &mut Live| {
            if emptied.is_empty() {
                return index.write(live, flush, owned, lease).await;
            }
            live.transaction("BEGIN", async |live| {
                let held = index.write(live, flush, owned, lease).await?;
                if held {
                    for head in &emptied {
                        erase(live, flush.shard, *head).await?;
                    }
                }
                Ok(held)
            })
            .await
        })?;
        if !held {
            return Ok(Verdict::Stale);
        }
        let owned = &mut self.shards[usize::from(flush.shard.0)];
        owned.noted += 1;
        owned.watermark = owned.watermark.max(flush.through);
        self.clear(flush.shard)?;
        Ok(Verdict::Durable)
    }

    /// Clears away envelopes that were consumed, and cursors that others follow. Never where they have been cleared
    /// before: what is dead there may still be in the way.
    fn clear(&mut self, shard: ShardId) -> Result<(), Fault> {
        let consumed = &self.shards[usize::from(shard.0)].consumed;
        let moved = consumed.iter().filter(|(_, (first, last))| first < last);
        let moved: Vec<(i16, (i64, i64))> = moved.map(|(sender, range)| (small(*sender), *range)).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let (senders, ranges): (Vec<i16>, Vec<(i64, i64)>) = moved.into_iter().unzip();
        let (first, last): (Vec<i64>, Vec<i64>) = ranges.into_iter().unzip();
        self.link.run("clearing envelopes away", Work::Repeatable, async |live: &mut Live| {
            live.execute(CLEAR, &[&small(shard.0), &senders, &first, &last]).await
        })?;
        for (first, last) in self.shards[usize::from(shard.0)].consumed.values_mut() {
            // The last cursor stayed, and goes when another follows it.
            *first = *last;
        }
        Ok(())
    }
}

/// Empties a run's journal rows before the one that purges or compacts it, back to the first that says something. The
/// rows themselves stay, so that positions have no gap. A chain that is broken ends there: what is damaged is for a
/// person.
async fn erase(live: &mut Live, shard: ShardId, head: Seq) -> Result<(), Trouble> {
    let chain = Chain::read(live, shard, head, 0, read::Until::Emptied).await?;
    let mut next = head;
    let (mut seqs, mut sums): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
    while let Some(mut row) = chain.row(next).filter(|row| row.prior < next) {
        let prior = row.prior;
        if next != head {
            if row.is_emptied() {
                break;
            }
            row.empty();
            seqs.push(next.0 as i64);
            sums.push(row.checksum);
        }
        next = prior;
    }
    if !seqs.is_empty() {
        let facts = std::str::from_utf8(NO_FACTS).unwrap_or_default();
        live.execute(EMPTY, &[&small(shard.0), &seqs, &sums, &facts]).await?;
    }
    Ok(())
}

type Texts<'a> = Vec<std::borrow::Cow<'a, str>>;
type MaybeTexts<'a> = Vec<Option<std::borrow::Cow<'a, str>>>;

/// Index rows by columns, as the statement takes them.
#[derive(Default)]
struct Index<'a> {
    purged: Vec<Id>,
    id: Vec<Id>,
    head: Vec<i64>,
    rev: Vec<i64>,
    created_at: Vec<i64>,
    updated_at: Vec<i64>,
    due: Vec<Option<i64>>,
    eligible_at: Vec<Option<i64>>,
    arrival: Vec<Option<i64>>,
    checksum: Vec<i64>,
    version: Vec<i64>,
    priority: Vec<Option<i32>>,
    shard: Vec<i16>,
    reservation: Vec<bool>,
    parent: Vec<Option<Id>>,
    namespace: Texts<'a>,
    workflow: Texts<'a>,
    queue: Texts<'a>,
    status: Vec<&'a str>,
    step: MaybeTexts<'a>,
    key: MaybeTexts<'a>,
    occupies: MaybeTexts<'a>,
    line: MaybeTexts<'a>,
    checkpoint: Vec<&'a str>,
}

impl<'a> Index<'a> {
    fn of(flush: &'a Flush) -> Self {
        // In the order of their ids, and each run once: a statement cannot write a row twice.
        let mut records: Vec<&Record> = flush.records.iter().collect();
        records.sort_by_key(|record| (record.run, std::cmp::Reverse(record.rev)));
        records.dedup_by_key(|record| record.run);
        let mut index = Self { purged: flush.purged.iter().map(|(run, _)| Id(*run)).collect(), ..Self::default() };
        // What is purged has no index row, also if one came with it.
        let gone = |record: &&Record| flush.purged.iter().all(|(run, _)| *run != record.run);
        records.into_iter().filter(gone).for_each(|record| index.add(flush.shard, record));
        index
    }

    fn add(&mut self, shard: ShardId, record: &'a Record) {
        let (line, place) = record.ready.as_ref().map(|(line, place)| (line.as_str(), place)).unzip();
        self.id.push(Id(record.run));
        self.head.push(record.head.0 as i64);
        self.rev.push(record.rev.0 as i64);
        self.created_at.push(record.created_at.0);
        self.updated_at.push(record.updated_at.0);
        self.due.push(record.due.map(|due| due.0));
        self.priority.push(place.map(|place| place.priority));
        self.eligible_at.push(place.map(|place| place.eligible_at.0));
        self.arrival.push(place.map(|place| place.arrival.0 as i64));
        self.checksum.push(record::checksum(shard.0, record));
        self.version.push(i64::from(record.version));
        self.shard.push(small(shard.0));
        self.reservation.push(record.reservation);
        self.parent.push(record.parent.map(Id));
        self.namespace.push(escape(&record.namespace));
        self.workflow.push(escape(&record.workflow));
        self.queue.push(escape(&record.queue));
        self.status.push(record.status.name());
        self.step.push(record.step.as_deref().map(escape));
        self.key.push(record.key.as_deref().map(escape));
        self.occupies.push(record.occupies.as_deref().map(escape));
        self.line.push(line.map(escape));
        self.checkpoint.push(std::str::from_utf8(&record.checkpoint).expect("a checkpoint is JSON, and so UTF-8"));
    }

    /// Whether the shard was held, and so all of it was written.
    async fn write(&self, live: &mut Live, flush: &Flush, owned: &Owned, lease: &Lease) -> Result<bool, Trouble> {
        let (shard, epoch, number) = (small(flush.shard.0), flush.epoch.0 as i64, owned.noted + 1);
        let (head, end) = (owned.head.0 as i64, end_sum(flush.shard, number, owned.head, owned.last));
        let watermark = owned.watermark.max(flush.through);
        let (through, mark) = (watermark.0 as i64, journal::mark(flush.shard, watermark));
        let process = escape(&lease.process);
        let mut with: Vec<Value<'_>> = vec![&shard, &epoch, &process, &lease.until, &number, &head, &owned.last, &end];
        with.extend_from_slice(&[&through as Value<'_>, &mark, &self.purged]);
        with.extend_from_slice(&[&self.id as Value<'_>, &self.head, &self.rev, &self.created_at, &self.updated_at]);
        with.extend_from_slice(&[&self.due as Value<'_>, &self.eligible_at, &self.arrival, &self.checksum]);
        with.extend_from_slice(&[&self.version as Value<'_>, &self.priority, &self.shard, &self.reservation]);
        with.extend_from_slice(&[&self.parent as Value<'_>, &self.namespace, &self.workflow, &self.queue]);
        with.extend_from_slice(&[&self.status as Value<'_>, &self.step, &self.key, &self.occupies, &self.line]);
        with.push(&self.checkpoint);
        Ok(live.query_opt(FLUSH, &with).await?.is_some())
    }
}
