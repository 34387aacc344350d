//! Several nodes over one database, with leases by the database's clock.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_kernel::{ShardEpoch, ShardId, ShardMap, Timestamp};
use tokio_postgres::Row;

use super::column::{escape, unescape};
use super::fault::Trouble;
use super::link::{Live, Work};
use super::{Lease, PostgresStore, shard};
use crate::{Cluster, Fault, Living, Member, Membership, Owned};

/// A member whose lease ended so long ago is forgotten.
const FORGOTTEN_MS: i64 = 24 * 3_600 * 1_000;

/// The node's own row is written and not seen by the rest of the statement, so it comes from what was written. Whether it
/// drains is written only as it enters: later others may have asked it to. Each row says by its first column what it is
/// about: a node, a shard, or a shard for which others sent something that it has not consumed.
pub(super) const RENEW: &str = "
WITH tick AS MATERIALIZED (
    SELECT clock_ms() AS now
), mine AS (
    INSERT INTO node (process, node, address, draining, until) SELECT $1, $2, $3, $4, tick.now + $5 FROM tick
    ON CONFLICT (process) DO UPDATE SET
        node = excluded.node, address = excluded.address, until = excluded.until
    RETURNING process, node, address, draining, until
), forgotten AS (
    DELETE FROM node USING tick WHERE node.until < tick.now - $6 AND node.process <> $1
)
SELECT 'node', tick.now, until, process, node, address, draining FROM mine, tick
UNION ALL
SELECT 'node', tick.now, until, process, node, address, draining FROM node, tick
    WHERE process <> $1 AND until > tick.now
UNION ALL
SELECT 'shard', id, epoch, owner, NULL, NULL, NULL FROM shard
UNION ALL
SELECT 'mail', r.id, 0, NULL, NULL, NULL, NULL FROM shard r
    WHERE r.owner = $1 AND (SELECT found.number FROM shard s CROSS JOIN LATERAL (
        SELECT e.number FROM envelope e WHERE e.receiver = r.id AND e.sender = s.id AND e.number > coalesce((
            SELECT c.number FROM envelope_cursor c WHERE c.receiver = r.id AND c.sender = s.id
            ORDER BY c.number DESC LIMIT 1), 0)
        ORDER BY e.number LIMIT 1) found
    WHERE s.owner IS DISTINCT FROM $1 LIMIT 1) IS NOT NULL";

/// The same for those who only look.
const LOOK: &str = "
WITH tick AS MATERIALIZED (
    SELECT clock_ms() AS now
)
SELECT 'node', tick.now, until, process, node, address, draining FROM node, tick
UNION ALL
SELECT 'shard', id, epoch, owner, NULL, NULL, NULL FROM shard";

impl Cluster for PostgresStore {
    fn renew(&mut self, member: &Member, lease: Duration) -> Result<Membership, Fault> {
        self.counts.write();
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX / 2);
        let map = self.map;
        let seen = self.link.run("renewing the node's lease", Work::Repeatable, async |live: &mut Live| {
            let with: [super::link::Value<'_>; 6] = [
                &escape(&member.process),
                &escape(&member.node),
                &escape(&member.address),
                &member.draining,
                &lease,
                &FORGOTTEN_MS,
            ];
            membership(map, &live.query(RENEW, &with).await?)
        })?;
        let own = seen.living.iter().find(|living| living.member.process == member.process);
        let until = own.map_or(0, |living| living.until.0);
        self.lease = Lease { process: member.process.to_string(), until };
        Ok(seen)
    }

    fn release(&mut self, shard: ShardId, epoch: ShardEpoch) -> Result<(), Fault> {
        self.counts.write();
        self.link.run("releasing a shard", Work::Repeatable, async |live: &mut Live| {
            live.transaction("BEGIN", async |live| shard::release(live, shard, epoch).await).await
        })
    }

    fn drain(&mut self, process: &str, draining: bool) -> Result<bool, Fault> {
        self.counts.write();
        self.link.run("asking a node to drain", Work::Repeatable, async |live: &mut Live| {
            let sql = "UPDATE node SET draining = $2 WHERE process = $1";
            Ok(live.execute(sql, &[&escape(process), &draining]).await? > 0)
        })
    }

    fn secret(&mut self) -> Result<Vec<u8>, Fault> {
        self.link.run("reading the cluster's secret", Work::Repeatable, async |live: &mut Live| {
            let row = live.query_one("SELECT value FROM secret", &[]).await?;
            Ok(row.try_get::<_, String>(0)?.into_bytes())
        })
    }

    fn leave(&mut self, process: &str) -> Result<(), Fault> {
        self.counts.write();
        if self.lease.process == process {
            self.lease = Lease::default();
        }
        self.link.run("leaving the store", Work::Repeatable, async |live: &mut Live| {
            live.execute("DELETE FROM node WHERE process = $1", &[&escape(process)]).await?;
            Ok(())
        })
    }
}

/// Everybody whom the store knows of.
pub(super) async fn look(live: &mut Live, map: ShardMap) -> Result<Membership, Trouble> {
    membership(map, &live.query(LOOK, &[]).await?)
}

fn membership(map: ShardMap, rows: &[Row]) -> Result<Membership, Trouble> {
    let mut seen = Membership::default();
    for row in rows {
        let text = |column: usize| row.try_get::<_, String>(column).map(unescape);
        let about: &str = row.try_get(0)?;
        if about == "mail" {
            seen.mail.push(ShardId(row.try_get::<_, i64>(1)? as u16));
            continue;
        }
        if about == "shard" {
            let owner: Option<String> = row.try_get(3)?;
            seen.shards.push(Owned {
                shard: ShardId(row.try_get::<_, i64>(1)? as u16),
                epoch: ShardEpoch(row.try_get::<_, i64>(2)? as u64),
                owner: owner.map(|owner| unescape(owner).into()),
            });
            continue;
        }
        seen.now = seen.now.max(Timestamp(row.try_get(1)?));
        let member = Member {
            process: text(3)?.into(),
            node: text(4)?.into(),
            address: text(5)?.into(),
            draining: row.try_get(6)?,
        };
        seen.living.push(Living { member, until: Timestamp(row.try_get(2)?) });
    }
    seen.living.sort_by(|one, other| one.member.process.cmp(&other.member.process));
    (seen.living, seen.gone) = seen.living.into_iter().partition(|living| living.until > seen.now);
    // One whose row is missing is damaged, and has its place: nobody owns it, and whoever takes it is told what is wrong.
    let known: BTreeSet<ShardId> = seen.shards.iter().map(|owned| owned.shard).collect();
    let missing = map.all().filter(|shard| !known.contains(shard));
    seen.shards.extend(missing.map(|shard| Owned { shard, epoch: ShardEpoch(0), owner: None }));
    seen.shards.sort_by_key(|owned| owned.shard);
    Ok(seen)
}
