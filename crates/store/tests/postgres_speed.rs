//! How much of what the server can do is left: the same rows through the store and raw by arrays, in turn. It measures
//! and judges nothing; on a machine that does other work only the ratio means something:
//! `cargo test --release -p abide-store --test postgres_speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "what it measures is what it is for")]

mod server;

use std::error::Error;
use std::time::{Duration, Instant};

use abide_kernel::shard::{Batch, Flush};
use abide_kernel::{Facts, Rev, Row, RunId, Seq, ShardId, Slot, Timestamp};
use abide_pg_testing::Server;
use abide_store::postgres::PostgresStore;
use abide_store::{Member, Store, Verdict};
use server::parse;
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const SHARDS: u16 = 8;

/// Facts of about 184 bytes.
fn facts() -> Facts {
    let request = "req_00000000000000000000000000000001";
    let payload = "x".repeat(184 - 103);
    let text = format!(r#"[{{"signal_received":{{"id":1,"name":"n","payload":"{payload}","request":"{request}"}}}}]"#);
    assert!((180..=188).contains(&text.len()), "{}", text.len());
    serde_json::from_str(&text).unwrap()
}

fn row(seq: u64, facts: &Facts) -> Row {
    let run = RunId::new(Timestamp(1_700_000_000_000 + seq as i64), Slot(0), u128::from(seq));
    let at = Timestamp(1_700_000_000_000 + seq as i64);
    Row { seq: Seq(seq), run, rev: Rev(1), prior: Seq(0), at, facts: facts.clone() }
}

/// The store: groups that are spread over its shards.
struct Through {
    store: PostgresStore,
    ends: Vec<(abide_kernel::ShardEpoch, u64)>,
    facts: Facts,
}

impl Through {
    fn new(url: &str) -> Self {
        let mut store = PostgresStore::open(&parse(url), SHARDS).unwrap();
        let member = Member { process: "p".into(), node: "n".into(), address: "".into(), draining: false };
        store.cluster().unwrap().renew(&member, Duration::from_secs(3_600)).unwrap();
        let ends = (0..SHARDS).map(|shard| (store.open_shard(ShardId(shard), "p").unwrap().epoch, 0)).collect();
        Self { store, ends, facts: facts() }
    }

    /// Index rows as they are written behind: every shard in turn.
    fn flush(&mut self, turn: usize) {
        let shard = turn % self.ends.len();
        let (epoch, end) = self.ends[shard];
        let flush = Flush { shard: ShardId(shard as u16), epoch, through: Seq(end), ..Flush::default() };
        assert_eq!(self.store.flush(&flush).unwrap(), Verdict::Durable);
    }

    fn group(&mut self, rows: usize) {
        let each = (rows / self.ends.len()).max(1);
        let mut group = Vec::new();
        for ((epoch, end), shard) in self.ends.iter_mut().zip(0u16..).take(rows) {
            let rows = (1..=each as u64).map(|n| row(*end + n, &self.facts)).collect();
            group.push(Batch { shard: ShardId(shard), epoch: *epoch, rows, ..Batch::default() });
            *end += each as u64;
        }
        let verdicts = self.store.append(&group).unwrap();
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Durable));
    }
}

#[derive(Debug)]
struct Id(u128);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

/// The same rows into a table of the same shape, without any fence.
struct Raw {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
    insert: tokio_postgres::Statement,
    end: i64,
    text: String,
}

impl Raw {
    fn new(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (client, insert) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("CREATE TABLE raw (LIKE abide.journal INCLUDING ALL)").await.unwrap();
            let sql = "INSERT INTO raw (run, rev, at, seq, prior, checksum, shard, facts)
                SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                    $6::bigint[], $7::smallint[], $8::text[])";
            let insert = client.prepare(sql).await.unwrap();
            (client, insert)
        });
        let text = serde_json::to_string(&facts()).unwrap();
        Self { runtime, client, insert, end: 0, text }
    }

    fn group(&mut self, rows: usize) {
        let seqs: Vec<i64> = (self.end + 1..=self.end + rows as i64).collect();
        self.end += rows as i64;
        let runs: Vec<Id> = seqs.iter().map(|seq| Id(*seq as u128)).collect();
        let (ones, shards) = (vec![1i64; rows], vec![0i16; rows]);
        let texts = vec![self.text.as_str(); rows];
        let with: [&(dyn ToSql + Sync); 8] = [&runs, &ones, &seqs, &seqs, &ones, &seqs, &shards, &texts];
        let written = self.runtime.block_on(self.client.execute(&self.insert, &with)).unwrap();
        assert_eq!(written, rows as u64);
    }
}

fn rate(rows: usize, mut group: impl FnMut(usize)) -> f64 {
    let (since, mut count) = (Instant::now(), 0);
    while since.elapsed() < ROUND {
        group(rows);
        count += rows;
    }
    count as f64 / since.elapsed().as_secs_f64()
}

/// AB-10: a transaction that pins the horizon keeps dead rows from being cleared away.
#[test]
#[ignore = "it measures, for half a minute and more"]
fn the_store_while_the_horizon_is_pinned() {
    let server = Server::start();
    let mut through = Through::new(&server.url());
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut turn = 0;
    for _ in 0..ROUNDS {
        for (pinned, rates) in [false, true].into_iter().zip(&mut rates) {
            let mut session = server.session();
            if pinned {
                session.send("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current();");
            }
            rates.push(rate(128, |rows| {
                turn += 1;
                through.group(rows);
                if turn % 8 == 0 {
                    through.flush(turn / 8);
                }
            }));
        }
    }
    let [free, pinned] = rates.map(median);
    println!("groups of 128 with index rows: {free:.0} rows/s, pinned {pinned:.0} rows/s, ratio {:.2}", pinned / free);
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
#[ignore = "it measures, for half a minute and more"]
fn the_store_against_raw_rows() {
    let server = Server::start();
    let mut through = Through::new(&server.url());
    let mut raw = Raw::new(&server.url());
    for rows in [8, 128, 1_024] {
        let (mut store_rates, mut raw_rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            store_rates.push(rate(rows, |rows| through.group(rows)));
            raw_rates.push(rate(rows, |rows| raw.group(rows)));
        }
        let (store_rate, raw_rate) = (median(store_rates), median(raw_rates));
        let ratio = store_rate / raw_rate;
        println!("groups of {rows}: store {store_rate:.0} rows/s, raw {raw_rate:.0} rows/s, ratio {ratio:.2}");
    }
}
