//! Rows into PostgreSQL, without an engine and without a fence: one statement of arrays is one commit.

use std::error::Error;

use abide_store::PostgresUrl;
use abide_store::postgres::raw_client;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::{Client, Statement};

use super::Raw;

/// The table of the store, once more and empty.
const TABLE: &str = "DROP TABLE IF EXISTS raw_journal; CREATE TABLE raw_journal (LIKE journal INCLUDING ALL)";
const INSERT: &str = "
INSERT INTO raw_journal (run, rev, at, seq, prior, checksum, shard, facts)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[],
    $8::text[])";

pub(super) struct Rows {
    runtime: Runtime,
    client: Client,
    insert: Statement,
    next: i64,
    shards: i64,
    facts: String,
}

impl Rows {
    pub(super) fn open(url: &PostgresUrl, row_bytes: usize) -> anyhow::Result<Self> {
        // On the thread that waits, as the store does it.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, insert, shards) = runtime.block_on(async {
            let client = raw_client(url).await?;
            client.batch_execute(TABLE).await?;
            let shards: i64 = client.query_one("SELECT count(*) FROM shard", &[]).await?.try_get(0)?;
            let insert = client.prepare(INSERT).await?;
            anyhow::Ok((client, insert, shards))
        })?;
        Ok(Self { runtime, client, insert, next: 0, shards, facts: "x".repeat(row_bytes) })
    }
}

impl Raw for Rows {
    fn commit(&mut self, rows: usize) -> anyhow::Result<()> {
        let numbers: Vec<i64> = (self.next..self.next + rows as i64).collect();
        self.next += rows as i64;
        // Spread over the shards, as the rows of an engine are.
        let shards: Vec<i16> = numbers.iter().map(|number| (number % self.shards) as i16).collect();
        let seqs: Vec<i64> = numbers.iter().map(|number| number / self.shards + 1).collect();
        let runs: Vec<Id> = numbers.iter().map(|number| Id(*number as u128)).collect();
        let revs = vec![3i64; rows];
        let sums: Vec<i64> =
            numbers.iter().map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
        let ats = vec![1_700_000_000_000i64; rows];
        let facts = vec![self.facts.as_str(); rows];
        let with: [&(dyn ToSql + Sync); 8] = [&runs, &revs, &ats, &seqs, &seqs, &sums, &shards, &facts];
        let written = self.runtime.block_on(self.client.execute(&self.insert, &with))?;
        anyhow::ensure!(written == rows as u64, "expected {rows} raw rows, found {written}");
        Ok(())
    }
}

#[derive(Debug)]
struct Id(u128);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}
