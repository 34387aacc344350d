//! Inspection of a PostgreSQL store through a connection of its own.

use std::sync::Arc;

use abide_kernel::{Row, RunId, Seq, ShardId, ShardMap};

use super::connect::{Role, Settings};
use super::fault::Trouble;
use super::link::{Link, Live, Work};
use super::list::list;
use super::{cluster, kept, letter, read, schema, shard, token, transaction};
use crate::counts::Counts;
use crate::journal::Walk;
use crate::listing::prefix_range;
use crate::transaction::Outcome;
use crate::{
    DeadLetterItem, Depth, Fault, FaultKind, Filter, Kept, Listed, Membership, Opener, Page, Reader, Scanned, Stats,
    StoredRun, StoredToken,
};

/// Several statements that see one state of the tables.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

const WATERMARKS: &str = "SELECT s.id, p.watermark, p.mark FROM shard s
    CROSS JOIN LATERAL (SELECT watermark, mark FROM progress WHERE shard = s.id ORDER BY number DESC LIMIT 1) p
    ORDER BY s.id";
/// Positions have no gap and rows never go: where the logs end is how many there are.
const ROWS: &str = "SELECT coalesce(sum(j.seq), 0)::bigint FROM shard s
    CROSS JOIN LATERAL (SELECT seq FROM journal WHERE shard = s.id ORDER BY seq DESC LIMIT 1) j";
const STATUSES: &str = "SELECT status, count(*) FROM run WHERE NOT reservation GROUP BY status ORDER BY status";
const WAITING: &str =
    "SELECT count(*) FROM envelope e WHERE e.number > coalesce((SELECT c.number FROM envelope_cursor c
    WHERE c.receiver = e.receiver AND c.sender = e.sender ORDER BY c.number DESC LIMIT 1), 0)";
const BYTES: &str = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'";

/// A view of a PostgreSQL store that never writes.
#[derive(Debug)]
pub struct PostgresReader {
    link: Link,
    settings: Arc<Settings>,
    map: ShardMap,
    counts: Arc<Counts>,
}

impl PostgresReader {
    pub(super) fn open(settings: Arc<Settings>, counts: Arc<Counts>) -> Result<Self, Fault> {
        let mut link = Link::new(settings.clone(), Role::Reader)?;
        let name = &settings.schema;
        let shards =
            link.run("opening the store to read", Work::Read, async |live: &mut Live| {
                match schema::format(live, name).await? {
                    Some(schema::FORMAT) => schema::shards(live).await,
                    Some(format) => {
                        let known = schema::FORMAT;
                        let message = format!(
                            "the store in schema {name} has format {format}, and this release reads format {known}"
                        );
                        Err(Fault::new(FaultKind::Unusable, message).into())
                    }
                    None => {
                        let message = format!("there is no store in schema {name}; start an engine on it first");
                        Err(Fault::new(FaultKind::Unusable, message).into())
                    }
                }
            })?;
        Ok(Self { link, settings, map: ShardMap::new(shards), counts })
    }

    fn read<T: Send>(
        &mut self,
        doing: &str,
        what: impl AsyncFn(&mut Live) -> Result<T, Trouble> + Send + Sync,
    ) -> Result<T, Fault> {
        self.counts.read();
        self.link.run(doing, Work::Read, what)
    }
}

impl Reader for PostgresReader {
    fn map(&self) -> ShardMap {
        self.map
    }

    fn opener(&self) -> Opener {
        let (settings, counts) = (self.settings.clone(), self.counts.clone());
        Arc::new(move || Ok(Box::new(Self::open(settings.clone(), counts.clone())?)))
    }

    fn watermarks(&mut self) -> Result<Vec<(ShardId, Seq)>, Fault> {
        self.read("reading watermarks", async |live: &mut Live| {
            let mut found = Vec::new();
            for row in live.query(WATERMARKS, &[]).await? {
                let id = ShardId(row.try_get::<_, i16>(0)? as u16);
                found.push((id, shard::watermark(id, row.try_get(1)?, row.try_get(2)?)?));
            }
            Ok(found)
        })
    }

    fn scan(&mut self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        self.read("reading the journal", async |live: &mut Live| read::scan(live, shard, after, most).await)
    }

    fn read_run(&mut self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        let map = self.map;
        // One transaction: a run without a checkpoint is folded from the journal that its index row meant.
        self.read("reading a run", async |live: &mut Live| {
            live.transaction(SNAPSHOT, async |live| read::read_run(live, map, run).await).await
        })
    }

    fn journal(&mut self, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        self.read("reading a run's journal", async |live: &mut Live| {
            live.transaction(SNAPSHOT, async |live| read::journal(live, shard, run, head, from).await).await
        })
    }

    fn trail(&mut self, run: RunId, head: Seq, from: u64, most: usize) -> Result<Vec<Seq>, Fault> {
        let shard = self.map.home(run.slot());
        self.read("reading a run's journal", async |live: &mut Live| {
            let walk = || Walk::new(shard, run, head, from, most);
            live.transaction(SNAPSHOT, async |live| read::trail(live, shard, from, walk()).await).await
        })
    }

    fn rows(&mut self, run: RunId, places: &[Seq], bytes: usize) -> Result<Vec<Row>, Fault> {
        let shard = self.map.home(run.slot());
        self.read("reading a run's journal", async |live: &mut Live| read::rows(live, shard, run, places, bytes).await)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
        self.read("listing runs", async |live: &mut Live| list(live, filter, page).await)
    }

    fn dead_letters(&mut self) -> Result<Vec<DeadLetterItem>, Fault> {
        self.read("reading dead letters", async |live: &mut Live| letter::read_all(live).await)
    }

    fn stats(&mut self) -> Result<Stats, Fault> {
        let settings = self.settings.clone();
        self.read("counting", async |live: &mut Live| {
            live.transaction(SNAPSHOT, async |live| count(live, &settings.schema).await).await
        })
    }

    fn kept(&mut self, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault> {
        let doing = "reading what a server wrote down";
        self.read(doing, async |live: &mut Live| kept::read(live, kind, before, most).await)
    }

    fn kept_as(&mut self, kind: &str, id: &str) -> Result<Option<Kept>, Fault> {
        let doing = "reading what a server wrote down";
        self.read(doing, async |live: &mut Live| kept::read_one(live, kind, id).await)
    }

    fn bytes(&mut self) -> Result<u64, Fault> {
        let settings = self.settings.clone();
        self.read("measuring the tables", async |live: &mut Live| bytes(live, &settings.schema).await)
    }

    fn depths(&mut self, namespace: Option<&str>) -> Result<Vec<Depth>, Fault> {
        self.read("counting what waits", async |live: &mut Live| kept::depths(live, namespace).await)
    }

    fn tokens(&mut self) -> Result<Vec<StoredToken>, Fault> {
        self.read("reading tokens", async |live: &mut Live| token::read_all(live).await)
    }

    fn token(&mut self, id: &str) -> Result<Option<StoredToken>, Fault> {
        self.read("reading a token", async |live: &mut Live| token::read_one(live, id).await)
    }

    fn find(&mut self, prefix: &str, most: usize) -> Result<Vec<RunId>, Fault> {
        let Some(range) = prefix_range(prefix) else {
            return Ok(Vec::new());
        };
        let (low, high) = range.into_inner();
        self.read("looking for runs", async |live: &mut Live| read::find(live, low, high, most).await)
    }

    fn outcomes(&mut self, after: Option<&Outcome>, most: usize) -> Result<Vec<Outcome>, Fault> {
        self.read("reading outcomes of transactions", async |live: &mut Live| {
            transaction::outcomes(live, after, super::limit(most)).await
        })
    }

    fn membership(&mut self) -> Result<Option<Membership>, Fault> {
        let map = self.map;
        self.read("looking who lives", async |live: &mut Live| Ok(Some(cluster::look(live, map).await?)))
    }
}

async fn bytes(live: &mut Live, name: &str) -> Result<u64, Trouble> {
    Ok(live.query_one(BYTES, &[&name]).await?.try_get::<_, i64>(0)? as u64)
}

async fn count(live: &mut Live, name: &str) -> Result<Stats, Trouble> {
    // Here all of a table is wanted.
    live.batch("SET LOCAL enable_seqscan = on").await?;
    let format = schema::format(live, name).await?;
    let mut runs = Vec::new();
    for row in live.query(STATUSES, &[]).await? {
        runs.push((row.try_get(0)?, row.try_get::<_, i64>(1)? as u64));
    }
    let rows: i64 = live.query_one(ROWS, &[]).await?.try_get(0)?;
    let envelopes: i64 = live.query_one(WAITING, &[]).await?.try_get(0)?;
    let bytes = bytes(live, name).await?;
    Ok(Stats { journal_rows: rows as u64, runs, envelopes: envelopes as u64, bytes, format: format.unwrap_or(0) })
}
