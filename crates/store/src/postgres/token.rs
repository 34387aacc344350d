//! Tokens by which clients of a server are known.

use super::column::{escape, unescape};
use super::fault::Trouble;
use super::link::Live;
use crate::StoredToken;

pub(super) async fn write(live: &mut Live, token: &StoredToken) -> Result<(), Trouble> {
    live.execute(
        "INSERT INTO token (id, body, checksum) VALUES ($1, $2, $3)
         ON CONFLICT (id) DO UPDATE SET body = excluded.body, checksum = excluded.checksum",
        &[&escape(&token.id), &escape(&token.body), &token.sum()],
    )
    .await?;
    Ok(())
}

pub(super) async fn remove(live: &mut Live, id: &str) -> Result<bool, Trouble> {
    Ok(live.execute("DELETE FROM token WHERE id = $1", &[&escape(id)]).await? > 0)
}

pub(super) async fn read_all(live: &mut Live) -> Result<Vec<StoredToken>, Trouble> {
    let rows = live.query("SELECT id, body, checksum FROM token ORDER BY id", &[]).await?;
    rows.iter().map(token).collect()
}

pub(super) async fn read_one(live: &mut Live, id: &str) -> Result<Option<StoredToken>, Trouble> {
    let found = live.query_opt("SELECT id, body, checksum FROM token WHERE id = $1", &[&escape(id)]).await?;
    found.as_ref().map(token).transpose()
}

fn token(row: &tokio_postgres::Row) -> Result<StoredToken, Trouble> {
    let text = |column: usize| row.try_get::<_, String>(column).map(unescape);
    Ok(StoredToken { id: text(0)?, body: text(1)? }.check(row.try_get(2)?)?)
}
