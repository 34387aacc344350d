//! Asking by SQL: runs are started and signalled inside of transactions beside the engine. What was committed has to be done once,
//! and what was rolled back never, whatever becomes of the nodes and the server in between.

use std::time::{Duration, Instant};

use abide_store::postgres::raw_client;
use abide_store::{PostgresUrl, StoreUrl};
use anyhow::{Result, bail, ensure};

use super::report::PATIENCE;
use super::worker::Notes;

pub(super) fn parse(url: &str) -> Result<PostgresUrl> {
    match url.parse()? {
        StoreUrl::Postgres(url) => Ok(url),
        StoreUrl::Sqlite { .. } | StoreUrl::Memory => bail!("expected the URL of a database, found {url}"),
    }
}

/// Asks in one transaction after the other. What fails because the database is away is given up: whether it was committed then is
/// not known, and nothing is noted of it.
pub(super) async fn ask_for_ever(url: &str, notes: &Notes, seed: u64) -> Result<()> {
    let url = parse(url)?;
    let mut chance = fastrand::Rng::with_seed(seed);
    loop {
        let _ = ask_until_lost(&url, notes, &mut chance).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn ask_until_lost(url: &PostgresUrl, notes: &Notes, chance: &mut fastrand::Rng) -> Result<()> {
    let client = raw_client(url).await?;
    loop {
        let key = format!("sql-{:016x}", chance.u64(..));
        let mut asked: Vec<String> = Vec::new();
        client.batch_execute("BEGIN").await?;
        if chance.bool() {
            asked.push(client.query_one("SELECT start('plain', '0', key => $1)", &[&key]).await?.try_get(0)?);
        } else {
            let start: String = client.query_one("SELECT start('told', '[]', key => $1)", &[&key]).await?.try_get(0)?;
            for number in 1..=2i32 {
                let sql = "SELECT signal($1, 'go', to_jsonb($2::integer))";
                asked.push(client.query_one(sql, &[&start, &number]).await?.try_get(0)?);
            }
            asked.push(start);
        }
        let (end, word) = if chance.u8(0..4) == 0 { ("ROLLBACK", "withdrawn") } else { ("COMMIT", "asked") };
        client.batch_execute(end).await?;
        asked.iter().for_each(|request| notes.write(&[word, request]));
        tokio::time::sleep(Duration::from_millis(chance.u64(5..50))).await;
    }
}

/// Waits until everything that was asked has its answer.
pub(super) async fn all_answered(url: &str) -> Result<()> {
    let client = raw_client(&parse(url)?).await?;
    let began = Instant::now();
    loop {
        let sql = "SELECT count(*) FROM request r WHERE NOT EXISTS (SELECT FROM request_answer a WHERE a.id = r.id)";
        let waiting: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
        if waiting == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "{waiting} requests by SQL have no answer after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
