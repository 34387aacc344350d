//! Intake from PostgreSQL: a connection that listens, and reads what has become visible since a snapshot.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{RequestId, RunId, ShardEpoch};

use super::column::{Id, Request, small};
use super::connect::{Role, Settings};
use super::limit;
use super::link::{Link, Live, Value, Work};
use crate::intake::{Answered, Asked, HOST, Intake, Ring};
use crate::{Fault, Verdict};

/// A snapshot in which nothing is visible.
const NOTHING: &str = "1:1:";

/// Where the last host stopped. A database that was restored elsewhere counts its transactions anew.
pub(super) const CURSOR: &str = "
SELECT number, CASE WHEN pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax(snapshot::pg_snapshot)
                    THEN snapshot END
FROM intake ORDER BY number DESC LIMIT 1";

/// A row of a transaction that was under way then may lie behind others that were read long ago.
pub(super) const READ: &str = "
SELECT r.id, r.what, r.asked, r.payload FROM request r
WHERE r.xid >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(r.xid, $1::text::pg_snapshot)
  AND NOT EXISTS (SELECT FROM request_answer a WHERE a.id = r.id)
ORDER BY r.number LIMIT $2";

pub(super) const ANSWER: &str = "
WITH held AS MATERIALIZED (
    SELECT id FROM shard WHERE id = $1 AND epoch = $2 FOR SHARE
), said AS (
    INSERT INTO request_answer (id, at, run, code, message)
    SELECT a.id, clock_ms(), a.run, a.code, a.message
    FROM held, unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[]) AS a (id, run, code, message)
    ON CONFLICT DO NOTHING
), moved AS (
    INSERT INTO intake (number, snapshot) SELECT $7, $8::text FROM held WHERE $8::text IS NOT NULL
    ON CONFLICT DO NOTHING
), cleared AS (
    DELETE FROM intake USING held WHERE intake.number < $7 AND $8::text IS NOT NULL
)
SELECT count(*) FROM held";

pub(super) const STARTED: &str = "SELECT run FROM request_answer WHERE id = $1";

pub(super) const UPKEEP: &str = "
SELECT upkeep() FROM (SELECT id FROM shard WHERE id = $1 AND epoch = $2 FOR SHARE) held";

/// The way in from SQL.
pub(super) struct PostgresIntake {
    link: Link,
    /// Everything visible in this snapshot has been answered, under this number.
    cursor: Option<(i64, String)>,
    /// The same will be said of this one when what was read has its answers.
    round: Option<String>,
    /// Whether all of that was read.
    whole: bool,
}

impl PostgresIntake {
    pub(super) fn new(settings: Arc<Settings>) -> Result<Self, Fault> {
        let link = Link::new(settings, Role::Intake)?;
        Ok(Self { link, cursor: None, round: None, whole: false })
    }

    /// Everything that was read has its answer.
    fn move_on(&mut self) {
        if let (Some(cursor), Some(round)) = (&mut self.cursor, self.round.take()) {
            *cursor = (cursor.0 + 1, round);
        }
        self.whole = false;
    }
}

impl Intake for PostgresIntake {
    fn read(&mut self, most: usize) -> Result<Vec<Asked>, Fault> {
        let before = (self.cursor.clone(), self.round.clone());
        let read = self.link.run("reading what was asked by SQL", Work::Read, async |live: &mut Live| {
            let (cursor, round) = before.clone();
            let cursor = match cursor {
                Some(cursor) => cursor,
                None => {
                    let row = live.query_one(CURSOR, &[]).await?;
                    (row.try_get(0)?, row.try_get::<_, Option<String>>(1)?.unwrap_or_else(|| NOTHING.into()))
                }
            };
            let round = match round {
                Some(round) => round,
                None => live.query_one("SELECT pg_current_snapshot()::text", &[]).await?.try_get(0)?,
            };
            let mut asked = Vec::new();
            for row in live.query(READ, &[&cursor.1, &limit(most)]).await? {
                asked.push(Asked {
                    request: row.try_get::<_, Request>(0)?.0,
                    what: row.try_get(1)?,
                    asked: row.try_get(2)?,
                    payload: row.try_get(3)?,
                });
            }
            Ok((cursor, round, asked))
        })?;
        let (cursor, round, asked) = read;
        (self.cursor, self.round) = (Some(cursor), Some(round));
        self.whole = asked.len() < most;
        if asked.is_empty() {
            self.move_on();
        }
        Ok(asked)
    }

    fn answer(&mut self, epoch: ShardEpoch, answers: &[Answered], all: bool) -> Result<Verdict, Fault> {
        let ids: Vec<Request> = answers.iter().map(|answer| Request(answer.request)).collect();
        let runs: Vec<Option<Id>> = answers.iter().map(|answer| answer.run.map(Id)).collect();
        let codes: Vec<&str> = answers.iter().map(|answer| answer.code.as_str()).collect();
        // PostgreSQL keeps no zero byte, and what a person reads needs none.
        let messages: Vec<Option<String>> =
            answers.iter().map(|answer| answer.message.as_ref().map(|text| text.replace('\0', "\\0"))).collect();
        let done = self.whole && all;
        let next = self.round.clone().filter(|_| done);
        let number = self.cursor.as_ref().map_or(0, |cursor| cursor.0) + 1;
        let with: [Value<'_>; 8] = [&small(HOST.0), &(epoch.0 as i64), &ids, &runs, &codes, &messages, &number, &next];
        let held = self.link.run("answering what was asked by SQL", Work::Repeatable, async |live: &mut Live| {
            Ok(live.query_one(ANSWER, &with).await?.try_get::<_, i64>(0)?)
        })?;
        if held == 0 {
            // Another takes in from here on; should it come back, it asks where that stopped.
            (self.cursor, self.round) = (None, None);
            return Ok(Verdict::Stale);
        }
        if done {
            self.move_on();
        }
        Ok(Verdict::Durable)
    }

    fn started(&mut self, request: RequestId) -> Result<Option<RunId>, Fault> {
        self.link.run("looking up a request", Work::Read, async |live: &mut Live| {
            let found = live.query_opt(STARTED, &[&Request(request)]).await?;
            let run: Option<Option<Id>> = found.map(|row| row.try_get(0)).transpose()?;
            Ok(run.flatten().map(|id| id.0))
        })
    }

    fn upkeep(&mut self, epoch: ShardEpoch) -> Result<(), Fault> {
        self.link.run("looking after the tables", Work::Repeatable, async |live: &mut Live| {
            live.query(UPKEEP, &[&small(HOST.0), &(epoch.0 as i64)]).await?;
            Ok(())
        })
    }

    fn wait(&mut self, most: Option<Duration>) {
        self.link.wait(most);
    }

    fn ring(&self) -> Ring {
        let heard = self.link.heard();
        Arc::new(move || heard.notify_one())
    }
}
