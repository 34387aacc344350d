//! The tables, and how a schema of an earlier release becomes one of this release.

use abide_kernel::ShardMap;

use super::fault::Trouble;
use super::link::Live;
use super::shard::ShardRow;
use crate::{Fault, FaultKind, setting};

/// The format of a store written by this release.
pub(super) const FORMAT: u32 = 1;

/// The name of the setting that says which format a store has.
const NAME: &str = "format";

/// The steps from one format to the next; the first makes an empty schema a store. Text columns are in the order of
/// their bytes, whatever language the database speaks.
const MIGRATIONS: [&str; FORMAT as usize] = [include_str!("format_1.sql")];

/// The format of the store: nothing for a schema that is empty or not there.
pub(super) async fn format(live: &mut Live, schema: &str) -> Result<Option<u32>, Trouble> {
    let found = live
        .query_one(
            "SELECT to_regclass($1 || '.setting') IS NOT NULL,
                    (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v'))",
            &[&schema],
        )
        .await?;
    if !found.try_get::<_, bool>(0)? {
        return match found.try_get::<_, i64>(1)? {
            0 => Ok(None),
            tables => {
                let message = format!(
                    "the schema {schema} has {tables} tables that are not Abide's; give a name of its own, as in ?schema=abide"
                );
                Err(Fault::new(FaultKind::Unusable, message).into())
            }
        };
    }
    let format = read_setting(live, NAME).await?;
    u32::try_from(format).map(Some).map_err(|_| unknown(schema, format).into())
}

fn unknown(schema: &str, format: u64) -> Fault {
    let message = format!(
        "the store in schema {schema} has format {format}, and this release knows formats up to {FORMAT}: use the newer release that wrote it"
    );
    Fault::new(FaultKind::Unusable, message)
}

/// Brings a schema to this release's format. `shards` counts only for one that is new. Those who come at the same time
/// wait for each other, however long it takes, and find it done.
pub(super) async fn migrate(live: &mut Live, schema: &str, shards: u16) -> Result<(), Trouble> {
    match format(live, schema).await? {
        Some(FORMAT) => return Ok(()),
        Some(newer) if newer > FORMAT => return Err(unknown(schema, u64::from(newer)).into()),
        Some(_) | None => {}
    }
    // Whoever uses a table is not waited for so long: others would wait behind.
    let lock_timeout = live.query_one("SELECT current_setting('lock_timeout')", &[]).await?.try_get::<_, String>(0)?;
    live.transaction("BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0", async |live| {
        live.query_one("SELECT pg_advisory_xact_lock(hashtextextended('abide schema ' || $1, 0))", &[&schema]).await?;
        live.batch(&format!("SET LOCAL lock_timeout = '{lock_timeout}'")).await?;
        let found = format(live, schema).await?.unwrap_or(0);
        let exists = live.query_one("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", &[&schema]).await?;
        if !exists.try_get::<_, bool>(0)? {
            live.batch(&format!("CREATE SCHEMA \"{schema}\"")).await?;
        }
        for (format, step) in (1u32..).zip(MIGRATIONS).skip(found as usize) {
            live.batch(step).await?;
            if format == 1 {
                begin(live, shards).await?;
            }
            write_setting(live, NAME, u64::from(format)).await?;
        }
        Ok(())
    })
    .await
}

/// What a new store begins with.
async fn begin(live: &mut Live, shards: u16) -> Result<(), Trouble> {
    write_setting(live, setting::SHARDS, u64::from(shards)).await?;
    let rows: Vec<ShardRow> = ShardMap::new(shards).all().map(ShardRow::new).collect();
    ShardRow::insert_all(live, &rows).await
}

pub(super) async fn write_setting(live: &mut Live, name: &str, value: u64) -> Result<(), Trouble> {
    let value = value.to_string();
    live.execute(
        "INSERT INTO setting (name, value, checksum) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
        &[&name, &value, &setting::sum(name, &value)],
    )
    .await?;
    Ok(())
}

async fn read_setting(live: &mut Live, name: &str) -> Result<u64, Trouble> {
    let found = live.query_opt("SELECT value, checksum FROM setting WHERE name = $1", &[&name]).await?;
    let Some(row) = found else {
        return Err(Fault::corrupt(None, None, format!("setting {name} is missing")).into());
    };
    Ok(setting::number(name, row.try_get(0)?, row.try_get(1)?)?)
}

/// How many shards the store was made with.
pub(super) async fn shards(live: &mut Live) -> Result<u16, Trouble> {
    Ok(setting::shards(read_setting(live, setting::SHARDS).await?)?)
}
