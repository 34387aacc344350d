//! What a server keeps beside the runs, and how much waits in queues.

use abide_kernel::Timestamp;

use super::column::{escape, unescape};
use super::fault::Trouble;
use super::limit;
use super::link::Live;
use crate::{Depth, Kept};

/// All of it, in one statement.
pub(super) async fn write(live: &mut Live, all: &[Kept]) -> Result<(), Trouble> {
    let texts = |text: fn(&Kept) -> &str| all.iter().map(|kept| escape(text(kept))).collect::<Vec<_>>();
    let sums: Vec<i64> = all.iter().map(Kept::sum).collect();
    live.execute(
        "INSERT INTO kept (kind, id, body, checksum)
         SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
         ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, checksum = excluded.checksum",
        &[&texts(|kept| &kept.kind), &texts(|kept| &kept.id), &texts(|kept| &kept.body), &sums],
    )
    .await?;
    Ok(())
}

pub(super) async fn remove(live: &mut Live, kind: &str, id: &str) -> Result<bool, Trouble> {
    Ok(live.execute("DELETE FROM kept WHERE kind = $1 AND id = $2", &[&escape(kind), &escape(id)]).await? > 0)
}

/// Those of a kind below an id, the lowest first.
pub(super) async fn remove_below(live: &mut Live, kind: &str, id: &str, most: usize) -> Result<u64, Trouble> {
    let sql = "DELETE FROM kept WHERE kind = $1
               AND id IN (SELECT id FROM kept WHERE kind = $1 AND id < $2 ORDER BY id LIMIT $3)";
    live.execute(sql, &[&escape(kind), &escape(id), &limit(most)]).await
}

/// Those of a kind, the largest ids first.
pub(super) async fn read(live: &mut Live, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Trouble> {
    let sql = "SELECT kind, id, body, checksum FROM kept
               WHERE kind = $1 AND ($2::text IS NULL OR id < $2) ORDER BY id DESC LIMIT $3";
    let rows = live.query(sql, &[&escape(kind), &before.map(escape), &limit(most)]).await?;
    rows.iter().map(kept).collect()
}

pub(super) async fn read_one(live: &mut Live, kind: &str, id: &str) -> Result<Option<Kept>, Trouble> {
    let sql = "SELECT kind, id, body, checksum FROM kept WHERE kind = $1 AND id = $2";
    live.query_opt(sql, &[&escape(kind), &escape(id)]).await?.as_ref().map(kept).transpose()
}

fn kept(row: &tokio_postgres::Row) -> Result<Kept, Trouble> {
    let text = |column: usize| row.try_get::<_, String>(column).map(unescape);
    Ok(Kept { kind: text(0)?, id: text(1)?, body: text(2)? }.check(row.try_get(3)?)?)
}

/// In the words of the index on open runs.
macro_rules! depths {
    ($of:literal) => {
        concat!(
            "SELECT queue, count(line), min(eligible_at) FILTER (WHERE line IS NOT NULL),
                    count(*) FILTER (WHERE status = 'executing')
             FROM run WHERE ",
            $of,
            " NOT reservation AND status <> 'done' AND status IN ('runnable', 'executing') GROUP BY queue ORDER BY queue"
        )
    };
}

/// How much waits in the queues of a namespace, or of all of them.
pub(super) async fn depths(live: &mut Live, namespace: Option<&str>) -> Result<Vec<Depth>, Trouble> {
    let rows = match namespace.map(escape) {
        Some(namespace) => live.query(depths!("namespace = $1 AND"), &[&namespace]).await?,
        None => live.query(depths!(""), &[]).await?,
    };
    let mut depths = Vec::new();
    for row in rows {
        depths.push(Depth {
            queue: row.try_get::<_, String>(0).map(unescape)?,
            waiting: row.try_get::<_, i64>(1)? as u64,
            oldest: row.try_get::<_, Option<i64>>(2)?.map(Timestamp),
            running: row.try_get::<_, i64>(3)? as u64,
        });
    }
    Ok(depths)
}
