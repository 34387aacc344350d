//! Append: a group of batches of all a node's shards by one statement, which is its own transaction.

use std::collections::BTreeMap;

use abide_kernel::shard::Batch;
use abide_kernel::{Seq, ShardId};

use super::column::{Id, escape, shards, small};
use super::fault::Trouble;
use super::link::{Live, Value, Work};
use super::{PostgresStore, letter};
use crate::group::{self, Encoded, accepted};
use crate::{Fault, FaultKind, Verdict};

/// A buffer that had to grow beyond this for one group is given back.
const BUFFER_BYTES_KEPT: usize = 16 * 1024 * 1024;
/// How often a group is tried again when somebody took a position between the look at it and the insert.
const TRIES: usize = 3;

/// Whether a shard is owned by one whose lease lasts. A lease that was renewed through this connection is known; for another
/// the node's row is read. Single values, because the planner may choose to answer `EXISTS` by a hash of the whole table.
macro_rules! owned {
    () => {
        "s.owner IS NOT NULL AND (NOT s.leased OR (s.owner = $4 AND clock_ms() < $5)
              OR clock_ms() < (SELECT n.until FROM node n WHERE n.process = s.owner))"
    };
}

/// Shards that are owned under the epochs given, and whose logs end where they are thought to, as far as that is asked:
/// locked, so that nobody takes them before this is committed.
macro_rules! held {
    () => {
        concat!(
            "WITH held AS MATERIALIZED (
            SELECT s.id FROM shard s
            JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS g (shard, epoch, after) ON s.id = g.shard
            WHERE s.epoch = g.epoch AND ",
            owned!(),
            " AND (g.after IS NULL OR
                   g.after = coalesce((SELECT j.seq FROM journal j WHERE j.shard = g.shard ORDER BY j.seq DESC LIMIT 1), 0))
            ORDER BY s.id FOR SHARE OF s
        ), written AS (
            INSERT INTO journal (run, rev, at, seq, prior, checksum, shard, facts)
            SELECT * FROM unnest($6::uuid[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
                                 $12::smallint[], $13::text[]) AS r (run, rev, at, seq, prior, checksum, shard, facts)
            WHERE (r.shard IN (SELECT id FROM held)) IS TRUE
        )"
        )
    };
}

/// One row of one shard, which is what a run that is alone makes: the same without arrays, in half the time.
pub(super) const ROW: &str = concat!(
    "INSERT INTO journal (run, rev, at, seq, prior, checksum, shard, facts)
    SELECT $6::uuid, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::bigint, s.id, $12::text FROM shard s
    WHERE s.id = $1::smallint AND s.epoch = $2::bigint AND ",
    owned!(),
    " AND ($3::bigint IS NULL OR
           $3 = coalesce((SELECT j.seq FROM journal j WHERE j.shard = $1 ORDER BY j.seq DESC LIMIT 1), 0))
    FOR SHARE OF s"
);

/// Rows only, which is what nearly all larger groups are.
pub(super) const ROWS: &str = concat!(held!(), " SELECT id FROM held");

/// Rows, envelopes, and how far others' were consumed.
pub(super) const MESSAGES: &str = concat!(
    held!(),
    ", sent AS (
        INSERT INTO envelope (number, checksum, receiver, sender, body)
        SELECT * FROM unnest($14::bigint[], $15::bigint[], $16::smallint[], $17::smallint[], $18::text[])
            AS e (number, checksum, receiver, sender, body)
        WHERE (e.sender IN (SELECT id FROM held)) IS TRUE
    ), consumed AS (
        INSERT INTO envelope_cursor (number, checksum, receiver, sender)
        SELECT * FROM unnest($19::bigint[], $20::bigint[], $21::smallint[], $22::smallint[])
            AS c (number, checksum, receiver, sender)
        WHERE (c.receiver IN (SELECT id FROM held)) IS TRUE
        ON CONFLICT DO NOTHING
    ) SELECT id FROM held"
);

impl PostgresStore {
    pub(super) fn append_group(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, Fault> {
        let mut verdicts =
            group::fence(group, |shard| self.shards.get(usize::from(shard.0)).map(|owned| (owned.epoch, owned.head)));
        if !verdicts.contains(&Verdict::Durable) {
            return Ok(verdicts);
        }
        self.counts.write();
        let mut buffer = std::mem::take(&mut self.buffer);
        let encoded = group::encode(group, &verdicts, &mut buffer);
        let held = self.write(group, &verdicts, &encoded, &buffer);
        let held = held.inspect_err(|fault| self.forget(fault, group, &verdicts))?;
        for (batch, verdict) in group.iter().zip(&mut verdicts) {
            if !held.contains(&batch.shard) {
                *verdict = Verdict::Stale;
            }
        }
        self.note(group, &verdicts, &encoded);
        if buffer.capacity() <= BUFFER_BYTES_KEPT {
            self.buffer = buffer;
        }
        Ok(verdicts)
    }

    /// Writes what was accepted; answers with the shards that were held.
    fn write(
        &mut self,
        group: &[Batch],
        verdicts: &[Verdict],
        encoded: &[Encoded<'_>],
        buffer: &[u8],
    ) -> Result<Vec<ShardId>, Fault> {
        let mut columns = Columns::default();
        for batch in accepted(group, verdicts) {
            let owned = &self.shards[usize::from(batch.shard.0)];
            columns.add_batch(batch, owned.epoch.0 as i64, owned.head);
        }
        for row in encoded {
            columns.add_row(row, buffer);
        }
        let letters = letter::Letters::of(accepted(group, verdicts), &self.shards);
        let (process, until) = (escape(&self.lease.process), self.lease.until);
        let what = async |live: &mut Live| match letters.is_empty() {
            true => columns.write(live, &process, until).await,
            false => {
                live.transaction("BEGIN", async |live| {
                    let held = columns.write(live, &process, until).await?;
                    letters.write(live, &held).await?;
                    Ok(held)
                })
                .await
            }
        };
        let mut tries = 1;
        loop {
            match self.link.attempt(Work::Once, what) {
                // Where the logs end is asked from now on: the position is taken, and its shard is not held.
                Err(trouble) if trouble.broken() == Some("journal_pkey") && tries < TRIES => tries += 1,
                Err(trouble) => return Err(refused(trouble)),
                Ok(held) => return Ok(held),
            }
        }
    }

    /// What became durable is where the next batch follows.
    fn note(&mut self, group: &[Batch], verdicts: &[Verdict], encoded: &[Encoded<'_>]) {
        let (mut rows, mut bytes) = (0, 0);
        let held: Vec<ShardId> = accepted(group, verdicts).map(|batch| batch.shard).collect();
        for Encoded { shard, row, start, end, checksum } in encoded.iter().filter(|row| held.contains(&row.shard)) {
            let owned = &mut self.shards[usize::from(shard.0)];
            (owned.head, owned.last, owned.last_at) = (row.seq, *checksum, row.at);
            rows += 1;
            bytes += end - start;
        }
        for batch in accepted(group, verdicts) {
            let owned = &mut self.shards[usize::from(batch.shard.0)];
            for (sender, number) in &batch.consumed {
                let (_, to) = owned.consumed.entry(sender.0).or_default();
                *to = (*to).max(*number as i64);
            }
        }
        if !held.is_empty() {
            self.counts.commit(rows, bytes);
        }
    }

    /// Where a log ends is not known any more: its shard must be taken anew before anything follows.
    fn forget(&mut self, fault: &Fault, group: &[Batch], verdicts: &[Verdict]) {
        if fault.kind == FaultKind::Unknown {
            for batch in accepted(group, verdicts) {
                self.shards[usize::from(batch.shard.0)] = super::Owned::default();
            }
        }
    }
}

fn refused(trouble: Trouble) -> Fault {
    let doing = match trouble.broken() {
        Some("envelope_pkey") => "appending an envelope whose number is taken: nothing was written",
        _ => "appending to the journal",
    };
    trouble.into_fault(doing, FaultKind::Unknown)
}

/// A group by columns, as the statement takes it.
#[derive(Default)]
struct Columns<'a> {
    /// By shard: its epoch, and the position that is thought to be its last.
    shards: BTreeMap<i16, (i64, i64)>,
    run: Vec<Id>,
    rev: Vec<i64>,
    at: Vec<i64>,
    seq: Vec<i64>,
    prior: Vec<i64>,
    checksum: Vec<i64>,
    shard: Vec<i16>,
    facts: Vec<&'a str>,
    sent: Sent,
    consumed: Consumed,
}

#[derive(Default)]
struct Sent {
    number: Vec<i64>,
    checksum: Vec<i64>,
    receiver: Vec<i16>,
    sender: Vec<i16>,
    body: Vec<String>,
}

#[derive(Default)]
struct Consumed {
    number: Vec<i64>,
    checksum: Vec<i64>,
    receiver: Vec<i16>,
    sender: Vec<i16>,
}

impl<'a> Columns<'a> {
    fn add_batch(&mut self, batch: &Batch, epoch: i64, after: Seq) {
        self.shards.insert(small(batch.shard.0), (epoch, after.0 as i64));
        for envelope in &batch.envelopes {
            let (number, body) = (envelope.number as i64, crate::letter::body(envelope));
            let sum = crate::letter::envelope_sum(envelope.to.0, envelope.from.0, number, &body);
            self.sent.number.push(number);
            self.sent.checksum.push(sum);
            self.sent.receiver.push(small(envelope.to.0));
            self.sent.sender.push(small(envelope.from.0));
            self.sent.body.push(body);
        }
        for (sender, number) in &batch.consumed {
            let number = *number as i64;
            self.consumed.number.push(number);
            self.consumed.checksum.push(crate::letter::cursor_sum(batch.shard.0, sender.0, number));
            self.consumed.receiver.push(small(batch.shard.0));
            self.consumed.sender.push(small(sender.0));
        }
    }

    fn add_row(&mut self, encoded: &Encoded<'_>, buffer: &'a [u8]) {
        let row = encoded.row;
        let facts = std::str::from_utf8(&buffer[encoded.start..encoded.end]).expect("facts are JSON, and so UTF-8");
        self.run.push(Id(row.run));
        self.rev.push(row.rev.0 as i64);
        self.at.push(row.at.0);
        self.seq.push(row.seq.0 as i64);
        self.prior.push(row.prior.0 as i64);
        self.checksum.push(encoded.checksum);
        self.shard.push(small(encoded.shard.0));
        self.facts.push(facts);
    }

    /// Writes the group; answers with the shards that were held.
    async fn write(&self, live: &mut Live, process: &str, until: i64) -> Result<Vec<ShardId>, Trouble> {
        let written = self.write_all(live, process, until).await;
        match &written {
            Ok(held) => live.followed.extend(held),
            Err(_) => live.followed.clear(),
        }
        written
    }

    async fn write_all(&self, live: &mut Live, process: &str, until: i64) -> Result<Vec<ShardId>, Trouble> {
        let Self { sent, consumed, .. } = self;
        let plain = sent.number.is_empty() && consumed.number.is_empty();
        if plain && self.seq.len() == 1 && self.shards.len() == 1 {
            return self.write_one(live, process, until).await;
        }
        let ids: Vec<i16> = self.shards.keys().copied().collect();
        let epochs: Vec<i64> = self.shards.values().map(|(epoch, _)| *epoch).collect();
        let afters: Vec<Option<i64>> = ids.iter().map(|id| self.after(live, *id)).collect();
        let mut with: Vec<Value<'_>> = vec![&ids, &epochs, &afters, &process, &until, &self.run, &self.rev, &self.at];
        with.extend_from_slice(&[&self.seq as Value<'_>, &self.prior, &self.checksum, &self.shard, &self.facts]);
        if !plain {
            with.extend_from_slice(&[&sent.number as Value<'_>, &sent.checksum, &sent.receiver]);
            with.extend_from_slice(&[&sent.sender as Value<'_>, &sent.body, &consumed.number, &consumed.checksum]);
            with.extend_from_slice(&[&consumed.receiver as Value<'_>, &consumed.sender]);
        }
        shards(&live.query(if plain { ROWS } else { MESSAGES }, &with).await?)
    }

    /// Where a shard's log must end. What was last written by this connection is where it ends: a server that loses what it
    /// acknowledged, as one does that takes over from another, loses its connections first.
    fn after(&self, live: &Live, shard: i16) -> Option<i64> {
        (!live.followed.contains(&ShardId(shard as u16))).then(|| self.shards[&shard].1)
    }

    async fn write_one(&self, live: &mut Live, process: &str, until: i64) -> Result<Vec<ShardId>, Trouble> {
        let (shard, row) = (self.shard[0], 0);
        let (epoch, after) = (self.shards[&shard].0, self.after(live, shard));
        let with: [Value<'_>; 12] = [
            &shard,
            &epoch,
            &after,
            &process,
            &until,
            &self.run[row],
            &self.rev[row],
            &self.at[row],
            &self.seq[row],
            &self.prior[row],
            &self.checksum[row],
            &self.facts[row],
        ];
        let written = live.execute_awake(ROW, &with).await?;
        Ok(if written == 1 { vec![ShardId(shard as u16)] } else { Vec::new() })
    }
}
