//! Flush: index rows and checkpoints of all a node's shards, written behind by one statement with their watermarks; and
//! what can be cleared away.

use abide_kernel::shard::{Flush, Record};
use abide_kernel::{Seq, ShardId};

use super::column::{Id, escape, shards, small};
use super::fault::Trouble;
use super::link::{Live, Value, Work};
use super::read::{self, Chain};
use super::shard::end_sum;
use super::{Lease, Owned, PostgresStore};
use crate::row::NO_FACTS;
use crate::{Fault, Verdict, journal, label, record};

/// Index rows of all shards that are held. An index row only ever moves its revision forward, and is written whole: its
/// checksum is over all of it. What is deleted is looked up one by one, behind `OFFSET 0`: a planner that has seen a table
/// small would rather read all of it, dead rows included.
pub(super) const FLUSH: &str = "
WITH held AS MATERIALIZED (
    SELECT s.id FROM shard s
    JOIN unnest($1::smallint[], $2::bigint[]) AS g (shard, epoch) ON s.id = g.shard
    WHERE s.epoch = g.epoch AND s.owner IS NOT NULL
      AND (NOT s.leased OR (s.owner = $3 AND clock_ms() < $4)
           OR clock_ms() < (SELECT n.until FROM node n WHERE n.process = s.owner))
    ORDER BY s.id FOR SHARE OF s
), noted AS (
    INSERT INTO progress (shard, number, head, last, checksum, watermark, mark)
    SELECT * FROM unnest($1::smallint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])
        AS p (shard, number, head, last, checksum, watermark, mark)
    WHERE (p.shard IN (SELECT id FROM held)) IS TRUE
    ON CONFLICT (shard, number) DO UPDATE SET head = excluded.head, last = excluded.last, checksum = excluded.checksum,
        watermark = excluded.watermark, mark = excluded.mark
), before AS (
    DELETE FROM progress WHERE ctid = ANY (ARRAY(
        SELECT old.ctid FROM unnest($1::smallint[], $5::bigint[]) AS g (shard, number),
            LATERAL (SELECT p.ctid FROM progress p WHERE p.shard = g.shard AND p.number = g.number - 1 OFFSET 0) old
        WHERE (g.shard IN (SELECT id FROM held)) IS TRUE))
), purged AS (
    DELETE FROM run WHERE ctid = ANY (ARRAY(
        SELECT old.ctid FROM unnest($11::uuid[], $12::smallint[]) AS gone (id, shard),
            LATERAL (SELECT r.ctid FROM run r WHERE r.id = gone.id OFFSET 0) old
        WHERE (gone.shard IN (SELECT id FROM held)) IS TRUE))
), outcomes AS (
    DELETE FROM transaction_outcome WHERE ctid = ANY (ARRAY(
        SELECT old.ctid FROM unnest($11::uuid[], $12::smallint[]) AS gone (id, shard),
            LATERAL (SELECT t.ctid FROM transaction_outcome t WHERE t.run = gone.id OFFSET 0) old
        WHERE (gone.shard IN (SELECT id FROM held)) IS TRUE))
), indexed AS (
    INSERT INTO run (id, head, rev, created_at, updated_at, due, eligible_at, arrival, checksum, version, priority, shard,
        reservation, parent, namespace, workflow, queue, status, step, key, occupies, line, checkpoint, labels)
    SELECT * FROM unnest($13::uuid[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
        $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::integer[], $24::smallint[], $25::boolean[],
        $26::uuid[], $27::text[], $28::text[], $29::text[], $30::text[], $31::text[], $32::text[], $33::text[],
        $34::text[], $35::text[], $36::text[]) AS r (id, head, rev, created_at, updated_at, due, eligible_at, arrival, checksum, version,
            priority, shard, reservation, parent, namespace, workflow, queue, status, step, key, occupies, line, checkpoint,
            labels)
    WHERE (r.shard IN (SELECT id FROM held)) IS TRUE
    ON CONFLICT (id) DO UPDATE SET
        head = excluded.head, rev = excluded.rev, created_at = excluded.created_at, updated_at = excluded.updated_at,
        due = excluded.due, eligible_at = excluded.eligible_at, arrival = excluded.arrival, checksum = excluded.checksum,
        version = excluded.version, priority = excluded.priority, shard = excluded.shard,
        reservation = excluded.reservation, parent = excluded.parent, namespace = excluded.namespace,
        workflow = excluded.workflow, queue = excluded.queue, status = excluded.status, step = excluded.step,
        key = excluded.key, occupies = excluded.occupies, line = excluded.line, checkpoint = excluded.checkpoint,
        labels = excluded.labels
    WHERE excluded.rev >= run.rev
)
SELECT id FROM held";

/// What was consumed is of no use: its effects are in rows that are durable. Only the highest cursor counts.
pub(super) const CLEAR: &str = "
WITH envelopes AS (
    DELETE FROM envelope WHERE ctid = ANY (ARRAY(
        SELECT old.ctid
        FROM unnest($1::smallint[], $2::smallint[], $3::bigint[], $4::bigint[]) AS c (receiver, sender, first, last),
            LATERAL (SELECT e.ctid FROM envelope e WHERE e.receiver = c.receiver AND e.sender = c.sender
                     AND e.number BETWEEN c.first AND c.last OFFSET 0) old))
)
DELETE FROM envelope_cursor WHERE ctid = ANY (ARRAY(
    SELECT old.ctid
    FROM unnest($1::smallint[], $2::smallint[], $3::bigint[], $4::bigint[]) AS c (receiver, sender, first, last),
        LATERAL (SELECT e.ctid FROM envelope_cursor e WHERE e.receiver = c.receiver AND e.sender = c.sender
                 AND e.number >= c.first AND e.number < c.last OFFSET 0) old))";

const EMPTY: &str = "
UPDATE journal j SET facts = $4, checksum = e.checksum FROM unnest($2::bigint[], $3::bigint[]) AS e (seq, checksum)
WHERE j.shard = $1 AND j.seq = e.seq";

impl PostgresStore {
    pub(super) fn flush_index(&mut self, group: &[Flush]) -> Result<Vec<Verdict>, Fault> {
        let ours: Vec<&Flush> = group.iter().filter(|flush| self.may_flush(flush)).collect();
        if ours.is_empty() {
            return Ok(vec![Verdict::Stale; group.len()]);
        }
        self.counts.write();
        let mut index = Index::default();
        ours.iter().for_each(|flush| index.add(flush, &self.shards[usize::from(flush.shard.0)]));
        let (ours, index, lease) = (&ours, &index, &self.lease);
        let held = self.link.run("writing index rows", Work::Repeatable, async |live: &mut Live| {
            if ours.iter().all(|flush| emptied(flush).next().is_none()) {
                return index.write(live, lease).await;
            }
            live.transaction("BEGIN", async |live| {
                let held = index.write(live, lease).await?;
                for flush in ours.iter().filter(|flush| held.contains(&flush.shard)) {
                    for head in emptied(flush) {
                        erase(live, flush.shard, head).await?;
                    }
                }
                Ok(held)
            })
            .await
        })?;
        for flush in ours.iter().filter(|flush| held.contains(&flush.shard)) {
            let owned = &mut self.shards[usize::from(flush.shard.0)];
            owned.noted += 1;
            owned.watermark = owned.watermark.max(flush.through);
        }
        self.clear(&held)?;
        let durable = |flush: &Flush| held.contains(&flush.shard) && self.may_flush(flush);
        let verdict = |flush| if durable(flush) { Verdict::Durable } else { Verdict::Stale };
        Ok(group.iter().map(verdict).collect())
    }

    /// Whether the shard is thought to be owned under the epoch of a flush.
    fn may_flush(&self, flush: &Flush) -> bool {
        let owned = self.shards.get(usize::from(flush.shard.0));
        owned.is_some_and(|owned| owned.epoch == flush.epoch && flush.epoch.0 > 0)
    }

    /// Clears away envelopes that were consumed, and cursors that others follow. Never where they have been cleared
    /// before: what is dead there may still be in the way.
    fn clear(&mut self, shards: &[ShardId]) -> Result<(), Fault> {
        let (mut receivers, mut senders, mut firsts, mut lasts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for shard in shards {
            let consumed = &self.shards[usize::from(shard.0)].consumed;
            for (sender, (first, last)) in consumed.iter().filter(|(_, (first, last))| first < last) {
                receivers.push(small(shard.0));
                senders.push(small(*sender));
                firsts.push(*first);
                lasts.push(*last);
            }
        }
        if receivers.is_empty() {
            return Ok(());
        }
        self.link.run("clearing envelopes away", Work::Repeatable, async |live: &mut Live| {
            live.execute(CLEAR, &[&receivers, &senders, &firsts, &lasts]).await
        })?;
        for shard in shards {
            for (first, last) in self.shards[usize::from(shard.0)].consumed.values_mut() {
                // The last cursor stayed, and goes when another follows it.
                *first = *last;
            }
        }
        Ok(())
    }
}

/// The rows before which a flush empties the journals of their runs.
fn emptied(flush: &Flush) -> impl Iterator<Item = Seq> {
    flush.compacted.iter().chain(&flush.purged).map(|(_, head)| *head)
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
    progress: Progress,
    purged: Vec<Id>,
    purged_shard: Vec<i16>,
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
    labels: Vec<Option<String>>,
}

/// What is noted of each shard.
#[derive(Default)]
struct Progress {
    shard: Vec<i16>,
    epoch: Vec<i64>,
    number: Vec<i64>,
    head: Vec<i64>,
    last: Vec<i64>,
    checksum: Vec<i64>,
    watermark: Vec<i64>,
    mark: Vec<i64>,
}

impl Progress {
    fn add(&mut self, flush: &Flush, owned: &Owned) {
        let (number, watermark) = (owned.noted + 1, owned.watermark.max(flush.through));
        self.shard.push(small(flush.shard.0));
        self.epoch.push(flush.epoch.0 as i64);
        self.number.push(number);
        self.head.push(owned.head.0 as i64);
        self.last.push(owned.last);
        self.checksum.push(end_sum(flush.shard, number, owned.head, owned.last));
        self.watermark.push(watermark.0 as i64);
        self.mark.push(journal::mark(flush.shard, watermark));
    }
}

impl<'a> Index<'a> {
    fn add(&mut self, flush: &'a Flush, owned: &Owned) {
        self.progress.add(flush, owned);
        // In the order of their ids, and each run once: a statement cannot write a row twice.
        let mut records: Vec<&Record> = flush.records.iter().collect();
        records.sort_by_key(|record| (record.run, std::cmp::Reverse(record.rev)));
        records.dedup_by_key(|record| record.run);
        self.purged.extend(flush.purged.iter().map(|(run, _)| Id(*run)));
        self.purged_shard.extend(flush.purged.iter().map(|_| small(flush.shard.0)));
        // What is purged has no index row, also if one came with it.
        let stays = |record: &&Record| flush.purged.iter().all(|(run, _)| *run != record.run);
        records.into_iter().filter(stays).for_each(|record| self.add_record(flush.shard, record));
    }

    fn add_record(&mut self, shard: ShardId, record: &'a Record) {
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
        self.labels.push(label::written(&record.labels));
    }

    /// The shards that were held, of which all was written.
    async fn write(&self, live: &mut Live, lease: &Lease) -> Result<Vec<ShardId>, Trouble> {
        let (progress, process) = (&self.progress, escape(&lease.process));
        let mut with: Vec<Value<'_>> = vec![&progress.shard, &progress.epoch, &process, &lease.until, &progress.number];
        with.extend_from_slice(&[&progress.head as Value<'_>, &progress.last, &progress.checksum]);
        with.extend_from_slice(&[&progress.watermark as Value<'_>, &progress.mark, &self.purged, &self.purged_shard]);
        with.extend_from_slice(&[&self.id as Value<'_>, &self.head, &self.rev, &self.created_at, &self.updated_at]);
        with.extend_from_slice(&[&self.due as Value<'_>, &self.eligible_at, &self.arrival, &self.checksum]);
        with.extend_from_slice(&[&self.version as Value<'_>, &self.priority, &self.shard, &self.reservation]);
        with.extend_from_slice(&[&self.parent as Value<'_>, &self.namespace, &self.workflow, &self.queue]);
        with.extend_from_slice(&[&self.status as Value<'_>, &self.step, &self.key, &self.occupies, &self.line]);
        with.extend_from_slice(&[&self.checkpoint as Value<'_>, &self.labels]);
        shards(&live.query(FLUSH, &with).await?)
    }
}
