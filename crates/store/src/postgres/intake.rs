//! Intake from PostgreSQL: a connection that listens, and reads what has become visible since a snapshot.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{RequestId, ShardEpoch};

use super::column::{Id, Request, small};
use super::connect::{Role, Settings};
use super::fault::Trouble;
use super::limit;
use super::link::{Link, Live, Value, Work};
use crate::intake::{Answered, Asked, HOST, Intake, Ring, Started};
use crate::{Fault, Verdict};

/// So much is read at once, if it is more than one.
const BYTES_AT_ONCE: i64 = 8 * 1024 * 1024;

/// Where the last host stopped.
const CURSOR: &str = "SELECT number, at, snapshot FROM intake ORDER BY number DESC LIMIT 1";

/// What is not visible in a snapshot: transactions that began after it, and those that were under way then, which may lie
/// behind others that were read long ago. A new host also looks at everything of the last day: the database may have been
/// restored elsewhere, where transactions are counted anew.
pub(super) const READ: &str = "
WITH found AS (
    SELECT r.id, r.number FROM request r WHERE r.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
    UNION
    SELECT r.id, r.number FROM request r WHERE r.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
    UNION
    SELECT r.id, r.number FROM request r WHERE r.id >= id_at($2::bigint)
), open AS (
    SELECT f.id, f.number FROM found f
    WHERE f.number > $4 AND NOT EXISTS (SELECT FROM request_answer a WHERE a.id = f.id)
    ORDER BY f.number LIMIT $3
), sized AS (
    SELECT r.*, sum(octet_length(r.payload)) OVER (ORDER BY r.number) - octet_length(r.payload) AS before
    FROM open o JOIN request r ON r.id = o.id
)
SELECT id, what, asked, payload, number FROM sized WHERE before < $5 ORDER BY number";

/// After everything there is.
const NEVER: i64 = (1 << 47) - 1;
const DAY_MS: i64 = 86_400_000;

pub(super) const ANSWER: &str = "
WITH held AS MATERIALIZED (
    SELECT id FROM shard WHERE id = $1 AND epoch = $2 FOR SHARE
), said AS (
    INSERT INTO request_answer (id, at, run, code, message)
    SELECT a.id, clock_ms(), a.run, a.code, a.message
    FROM held, unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[]) AS a (id, run, code, message)
    ON CONFLICT DO NOTHING
), moved AS (
    INSERT INTO intake (number, at, snapshot) SELECT $7, clock_ms(), $8::text FROM held WHERE $8::text IS NOT NULL
    ON CONFLICT DO NOTHING
), cleared AS (
    DELETE FROM intake USING held WHERE intake.number = $7 - 1 AND $8::text IS NOT NULL
)
SELECT count(*) FROM held";

pub(super) const STARTED: &str = "
SELECT a.id IS NOT NULL, CASE WHEN a.code = 'accepted' THEN a.run END
FROM request r LEFT JOIN request_answer a ON a.id = r.id WHERE r.id = $1 AND r.what = 'start'";

/// Nobody else takes the shard meanwhile, and whoever waited for one who did finds nothing: two never look after the tables
/// at once.
const MAKE_DAYS: &str = "
WITH held AS MATERIALIZED (
    SELECT id FROM shard WHERE id = $1 AND epoch = $2 FOR SHARE
)
SELECT make_days() FROM held";
const DROP_DAYS: &str = "
WITH held AS MATERIALIZED (
    SELECT id FROM shard WHERE id = $1 AND epoch = $2 FOR SHARE
)
SELECT drop_days() FROM held";

/// The way in from SQL.
pub(super) struct PostgresIntake {
    link: Link,
    place: Option<Place>,
}

/// How far it was read. It holds for one connection: a server that crashed, or another in its place, may give the numbers of
/// transactions that it lost to others, and those would be taken for read. The place that is noted has a day to look back.
#[derive(Clone)]
struct Place {
    connection: u64,
    /// Everything visible in this snapshot has been read.
    read: String,
    /// Everything from this instant on is looked at all the same.
    from: i64,
    round: Option<Round>,
    /// Under which number a place is noted.
    number: i64,
    /// Everything visible in this snapshot has been answered, which is not noted yet.
    answered: Option<String>,
}

/// What is read until nothing is left.
#[derive(Clone)]
struct Round {
    /// Everything visible in this snapshot will have been read then.
    snapshot: String,
    /// The number of the last that was read. Whoever has a lower one and commits later is not visible in the snapshot.
    after: i64,
}

impl Place {
    async fn noted(live: &mut Live) -> Result<Self, Trouble> {
        let row = live.query_one(CURSOR, &[]).await?;
        let from = (row.try_get::<_, i64>(1)? - DAY_MS).max(0);
        let (number, read) = (row.try_get(0)?, row.try_get(2)?);
        Ok(Self { connection: live.number(), read, from, round: None, number, answered: None })
    }
}

impl PostgresIntake {
    pub(super) fn new(settings: Arc<Settings>) -> Result<Self, Fault> {
        let link = Link::new(settings, Role::Intake)?;
        Ok(Self { link, place: None })
    }
}

impl Intake for PostgresIntake {
    fn read(&mut self, most: usize) -> Result<Vec<Asked>, Fault> {
        let before = self.place.clone();
        let read = self.link.run("reading what was asked by SQL", Work::Read, async |live: &mut Live| {
            let mut place = match before.clone().filter(|place| place.connection == live.number()) {
                Some(place) => place,
                None => Place::noted(live).await?,
            };
            let mut round = match place.round.take() {
                Some(round) => round,
                None => {
                    let row = live.query_one("SELECT pg_current_snapshot()::text", &[]).await?;
                    Round { snapshot: row.try_get(0)?, after: 0 }
                }
            };
            let with: [Value<'_>; 5] = [&place.read, &place.from, &limit(most), &round.after, &BYTES_AT_ONCE];
            let mut asked = Vec::new();
            for row in live.query(READ, &with).await? {
                asked.push(Asked {
                    request: row.try_get::<_, Request>(0)?.0,
                    what: row.try_get(1)?,
                    asked: row.try_get(2)?,
                    payload: row.try_get(3)?,
                });
                round.after = row.try_get(4)?;
            }
            if asked.is_empty() {
                (place.read, place.from) = (round.snapshot, NEVER);
            } else {
                place.round = Some(round);
            }
            Ok((place, asked))
        })?;
        let (place, asked) = read;
        self.place = Some(place);
        Ok(asked)
    }

    fn is_through(&mut self) {
        if let Some(place) = &mut self.place {
            place.answered = Some(place.read.clone());
        }
    }

    fn begin_anew(&mut self) {
        self.place = None;
    }

    fn answer(&mut self, epoch: ShardEpoch, answers: &[Answered]) -> Result<Verdict, Fault> {
        let ids: Vec<Request> = answers.iter().map(|answer| Request(answer.request)).collect();
        let runs: Vec<Option<Id>> = answers.iter().map(|answer| answer.run.map(Id)).collect();
        let codes: Vec<&str> = answers.iter().map(|answer| answer.code.as_str()).collect();
        // PostgreSQL keeps no zero byte, and what a person reads needs none.
        let messages: Vec<Option<String>> =
            answers.iter().map(|answer| answer.message.as_ref().map(|text| text.replace('\0', "\\0"))).collect();
        let place = self.place.clone();
        let held = self.link.run("answering what was asked by SQL", Work::Repeatable, async |live: &mut Live| {
            // What the round before came to is noted with the answers of this one: an idle host writes nothing.
            let place = place.as_ref().filter(|place| place.connection == live.number());
            let number = place.map_or(0, |place| place.number + 1);
            let snapshot = place.and_then(|place| place.answered.as_deref());
            let with: [Value<'_>; 8] =
                [&small(HOST.0), &(epoch.0 as i64), &ids, &runs, &codes, &messages, &number, &snapshot];
            Ok((live.number(), live.query_one(ANSWER, &with).await?.try_get::<_, i64>(0)?))
        })?;
        let (connection, held) = held;
        if held == 0 {
            // Another takes in from here on; should it come back, it asks where that stopped.
            self.place = None;
            return Ok(Verdict::Stale);
        }
        if let Some(place) = self.place.as_mut().filter(|place| place.connection == connection)
            && place.answered.take().is_some()
        {
            place.number += 1;
        }
        Ok(Verdict::Durable)
    }

    fn started(&mut self, request: RequestId) -> Result<Started, Fault> {
        self.link.run("looking up a request", Work::Read, async |live: &mut Live| {
            let Some(row) = live.query_opt(STARTED, &[&Request(request)]).await? else { return Ok(Started::Nothing) };
            let run: Option<Id> = row.try_get(1)?;
            Ok(match (row.try_get(0)?, run) {
                (false, _) => Started::Waiting,
                (true, Some(run)) => Started::Run(run.0),
                (true, None) => Started::Nothing,
            })
        })
    }

    fn upkeep(&mut self, epoch: ShardEpoch) -> Result<(), Fault> {
        let with: [Value<'_>; 2] = [&small(HOST.0), &(epoch.0 as i64)];
        for sql in [MAKE_DAYS, DROP_DAYS] {
            self.link.run("looking after the tables", Work::Repeatable, async |live: &mut Live| {
                live.query(sql, &with).await?;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn wait(&mut self, most: Option<Duration>) {
        self.link.wait(most);
    }

    fn ring(&self) -> Ring {
        let heard = self.link.heard();
        Arc::new(move || heard.notify_one())
    }
}
