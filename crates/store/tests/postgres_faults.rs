//! Lost connections, servers that go and come, and answers that never arrive.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod proxy;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_kernel::shard::{Batch, Flush};
use abide_kernel::{Fact, Rev, Row, RunId, Seq, ShardEpoch, ShardId, Slot, Timestamp};
use abide_pg_testing::{FAST, Server};
use abide_store::postgres::PostgresStore;
use abide_store::{Fault, FaultKind, Store, Verdict};
use proxy::{Cut, Proxy};
use server::{Schema, parse, server};

const SHARD: ShardId = ShardId(0);

/// The row at a position, the first of a run of its own.
fn row(seq: u64) -> Row {
    Row {
        seq: Seq(seq),
        run: RunId::new(Timestamp(seq as i64), Slot(0), u128::from(seq)),
        rev: Rev(1),
        prior: Seq(0),
        at: Timestamp(seq as i64),
        facts: [Fact::ParentPurged].into_iter().collect(),
    }
}

fn batch(epoch: ShardEpoch, from: u64, to: u64) -> Batch {
    Batch { shard: SHARD, epoch, rows: (from..to).map(row).collect(), ..Batch::default() }
}

fn positions(store: &mut dyn Store) -> Vec<u64> {
    let rows = store.scan(SHARD, Seq(0), 1_000_000).unwrap();
    rows.into_iter().map(|row| row.unwrap().seq.0).collect()
}

/// D36, SE-38: an answer that is lost says nothing. Whether the batch is there is found by taking the shard anew, and it
/// is both ways; nothing follows before.
#[test]
fn an_unknown_outcome_is_resolved_by_looking() {
    let schema = Schema::new(1);
    let proxy = Proxy::start(server());
    let url = parse(&proxy.url()).with_schema(&schema.name).unwrap();
    let mut store = PostgresStore::open(&url, 1).unwrap();
    let mut opened = store.open_shard(SHARD, "p").unwrap();
    let mut expected = 0;
    for (cut, written) in [(Cut::Answer, true), (Cut::Question, false), (Cut::Answer, true)] {
        let good = batch(opened.epoch, expected + 1, expected + 4);
        assert_eq!(store.append(&[good]).unwrap(), [Verdict::Durable]);
        expected += 3;
        proxy.cut(cut);
        let doubtful = batch(opened.epoch, expected + 1, expected + 3);
        let fault = store.append(std::slice::from_ref(&doubtful)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unknown, "{fault}");
        assert_eq!(store.append(&[doubtful]).unwrap(), [Verdict::Stale], "nothing follows what is not known");
        opened = store.open_shard(SHARD, "p").unwrap();
        expected += if written { 2 } else { 0 };
        assert_eq!(opened.head, Seq(expected), "{cut:?}");
    }
    assert!(positions(&mut store).into_iter().eq(1..=expected));
    assert_eq!(proxy.cuts(), 3);
}

/// What is the same when it is done twice is done again by itself: reads, index rows, taking a shard, leases.
#[test]
fn what_can_be_repeated_is_repeated() {
    let schema = Schema::new(1);
    let proxy = Proxy::start(server());
    let url = parse(&proxy.url()).with_schema(&schema.name).unwrap();
    let mut store = PostgresStore::open(&url, 1).unwrap();
    let epoch = store.open_shard(SHARD, "p").unwrap().epoch;
    store.append(&[batch(epoch, 1, 5)]).unwrap();
    for cut in [Cut::Answer, Cut::Question] {
        proxy.cut(cut);
        assert_eq!(positions(&mut store), [1, 2, 3, 4]);
        proxy.cut(cut);
        let flush = Flush { epoch, through: Seq(4), ..Flush::default() };
        assert_eq!(store.flush(&[flush]).unwrap(), [Verdict::Durable]);
    }
    proxy.cut(Cut::Question);
    assert_eq!(store.open_shard(SHARD, "p").unwrap().watermark, Seq(4));
    let mut reader = store.reader().unwrap();
    proxy.cut(Cut::Answer);
    assert_eq!(reader.stats().unwrap().journal_rows, 4);
}

/// Appends batches of three, and looks when it does not know. Answers with how often it did not.
fn appends(store: &mut dyn Store, batches: u64) -> u64 {
    let (mut acknowledged, mut unknown) = (0, 0);
    let mut opened = retried(|| store.open_shard(SHARD, "p"));
    while acknowledged < batches * 3 {
        match store.append(&[batch(opened.epoch, acknowledged + 1, acknowledged + 4)]) {
            Ok(verdicts) => {
                assert_eq!(verdicts, [Verdict::Durable]);
                acknowledged += 3;
                continue;
            }
            Err(fault) if fault.kind == FaultKind::Unknown => unknown += 1,
            Err(fault) => assert_eq!(fault.kind, FaultKind::Refused, "{fault}"),
        }
        opened = retried(|| store.open_shard(SHARD, "p"));
        let head = opened.head.0;
        assert!(head == acknowledged || head == acknowledged + 3, "{head} after {acknowledged}");
        acknowledged = head;
    }
    unknown
}

fn retried<T>(mut work: impl FnMut() -> Result<T, Fault>) -> T {
    loop {
        match work() {
            Ok(value) => return value,
            Err(fault) => assert!(fault.may_retry(), "{fault}"),
        }
    }
}

/// SE-38, SQ-12: connections end at any moment; nothing acknowledged is lost, and nothing is there twice.
#[test]
fn appends_go_on_while_connections_are_ended() {
    let schema = Schema::new(1);
    let mut store = schema.open();
    let name = schema.name.clone();
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let killer = std::thread::spawn(move || {
        let mut kills = 0;
        while !ends.load(Ordering::SeqCst) {
            let said = server().psql(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'abide {name}'"
            ));
            kills += said.lines().filter(|line| *line == "t").count();
        }
        kills
    });
    appends(&mut store, 400);
    over.store(true, Ordering::SeqCst);
    assert!(killer.join().unwrap() > 0);
    assert!(positions(&mut store).into_iter().eq(1..=1_200));
}

/// SE-38, SE-39: the server stops, starts, is killed and recovers under one store that stays open.
#[test]
fn a_store_outlives_its_server() {
    let mut server = Server::start_with(FAST);
    let url = parse(&server.url());
    let mut store = PostgresStore::open(&url, 1).unwrap();
    let mut reader = store.reader().unwrap();
    let mut head = 0;
    for crash in [false, true] {
        let epoch = store.open_shard(SHARD, "p").unwrap().epoch;
        assert_eq!(store.append(&[batch(epoch, head + 1, head + 3)]).unwrap(), [Verdict::Durable]);
        head += 2;
        if crash {
            server.kill()
        } else {
            server.stop()
        }
        let fault = store.append(&[batch(epoch, head + 1, head + 2)]).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Unknown | FaultKind::Refused), "{fault}");
        // There is no connection now, and so nothing was sent.
        assert_eq!(store.open_shard(SHARD, "p").unwrap_err().kind, FaultKind::Refused);
        assert_eq!(store.scan(SHARD, Seq(0), 1).unwrap_err().kind, FaultKind::Refused);
        assert_eq!(reader.scan(SHARD, Seq(0), 1).unwrap_err().kind, FaultKind::Refused);
        server.restart();
        assert_eq!(store.open_shard(SHARD, "p").unwrap().head, Seq(head));
        assert_eq!(reader.scan(SHARD, Seq(0), 100).unwrap().len() as u64, head);
    }
}

/// SQ-16, SQ-8: a position that somebody takes while an append is under way makes that shard stale, and no other.
#[test]
fn a_position_that_is_taken_under_way_stops_only_its_shard() {
    let schema = Schema::new(2);
    let mut store = schema.open();
    let epochs = [0, 1].map(|shard| store.open_shard(ShardId(shard), "p").unwrap().epoch);
    let group = |first: u64| {
        let batches = [0u16, 1].map(|shard| {
            let mut batch = batch(epochs[usize::from(shard)], first, first + 2);
            batch.shard = ShardId(shard);
            batch
        });
        batches.to_vec()
    };
    assert_eq!(store.append(&group(1)).unwrap(), [Verdict::Durable; 2]);
    let mut other = server().session();
    let taken = "INSERT INTO journal SELECT run, rev, at, 3, prior, checksum, shard, facts FROM journal";
    other.send(&format!("SET search_path = {}; BEGIN; {taken} WHERE shard = 1 AND seq = 2;", schema.name));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let inside = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE 'INSERT INTO journal SELECT%'";
    while server().psql(inside) == "0" {
        std::thread::yield_now();
    }
    let name = format!("{waits} AND application_name = 'abide {}'", schema.name);
    let waiter = std::thread::spawn(move || {
        while server().psql(&name) == "0" {
            std::thread::yield_now();
        }
        other.send("COMMIT;");
        other
    });
    assert_eq!(store.append(&group(3)).unwrap(), [Verdict::Durable, Verdict::Stale]);
    drop(waiter.join().unwrap());
    assert_eq!(schema.edit("SELECT shard, count(*) FROM journal GROUP BY shard ORDER BY shard"), "0|4\n1|3");
    // Also when it was taken before.
    assert_eq!(store.append(&group(3)).unwrap(), [Verdict::Stale; 2]);
}

/// SE-38: a proxy, or a server that was stopped, takes a connection and says nothing. It is given up in time, and the next host is
/// asked.
#[test]
fn a_host_that_says_nothing_is_given_up() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = |port: u16, more: &str| {
        parse(&format!("postgres://postgres@127.0.0.1:{port}{more}/postgres?sslmode=disable&connect_timeout=1"))
    };
    let port = mute.local_addr().unwrap().port();
    let fault = PostgresStore::open(&at(port, ""), 1).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(fault.to_string().contains("cannot be reached: no answer after 2 s"), "{fault}");

    let schema = Schema::new(1);
    let proxy = Proxy::start(server());
    let url = at(port, &format!(",127.0.0.1:{}", proxy.port())).with_schema(&schema.name).unwrap();
    let mut store = PostgresStore::open(&url, 1).unwrap();
    assert_eq!(store.open_shard(SHARD, "p").unwrap().head, Seq(0));
}

/// Inside of somebody's runtime, where waiting on one's own is not allowed, a store works all the same.
#[test]
fn a_store_is_used_and_dropped_inside_of_a_runtime() {
    let schema = Schema::new(1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut store = schema.open();
        let epoch = store.open_shard(SHARD, "p").unwrap().epoch;
        store.append(&[batch(epoch, 1, 3)]).unwrap();
        let mut reader = store.reader().unwrap();
        assert_eq!(reader.scan(SHARD, Seq(0), 10).unwrap().len(), 2);
        store.close().unwrap();
    });
}
