//! Nodes that share a PostgreSQL store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod server;

use std::time::Duration;

use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::shard::Batch;
use abide_kernel::{Rev, Row, RunId, Seq, ShardEpoch, ShardId, ShardMap, Timestamp};
use abide_store::conformance::{self, SHARDS, Shared, nodes};
use abide_store::intake::HOST;
use abide_store::{FaultKind, Member, Store, Verdict};
use server::Schema;

/// A store, and how far its database's clock was moved.
struct Moved {
    schema: Schema,
    by: Duration,
}

fn fixture() -> Moved {
    Moved { schema: Schema::new(SHARDS), by: Duration::ZERO }
}

impl Shared for Moved {
    fn join(&mut self) -> Box<dyn Store> {
        Box::new(self.schema.open())
    }

    fn pass(&mut self, time: Duration) {
        self.by += time;
        self.schema.edit(&format!(
            "CREATE OR REPLACE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE
             AS 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {}'",
            self.by.as_millis()
        ));
    }
}

/// SE-35, SE-36: no node owns a shard for good; the others go on when one is gone.
#[test]
fn a_shard_is_taken_from_the_dead_and_from_those_who_release_it() {
    nodes::a_shard_is_taken_from_the_dead_and_from_those_who_release_it(&mut fixture());
}

/// SQ-13 (D2): each ownership has an epoch of its own.
#[test]
fn a_shard_is_taken_again_by_its_owner() {
    nodes::a_shard_is_taken_again_by_its_owner(&mut fixture());
}

/// SE-36: a node that leaves is waited for by nobody.
#[test]
fn what_a_node_that_left_had_is_free_at_once() {
    nodes::what_a_node_that_left_had_is_free_at_once(&mut fixture());
}

/// SQ-8 (D2): what is given up is not written to.
#[test]
fn who_released_a_shard_writes_nothing() {
    nodes::who_released_a_shard_writes_nothing(&mut fixture());
}

/// SE-34, SQ-8: the fence holds for a node that was paused past its lease.
#[test]
fn a_node_past_its_lease_writes_nothing() {
    nodes::a_node_past_its_lease_writes_nothing(&mut fixture());
}

/// GD-46, SE-34: what is stale is left out, the rest goes in.
#[test]
fn a_group_goes_in_without_the_shards_that_were_taken() {
    nodes::a_group_goes_in_without_the_shards_that_were_taken(&mut fixture());
}

/// D37: leases are by the store's clock, and a renewal tells what it is.
#[test]
fn a_renewal_tells_who_lives_and_who_owns_what() {
    nodes::a_renewal_tells_who_lives_and_who_owns_what(&mut fixture());
}

/// SE-35: whoever is asked to hand over is told so, and it is seen by those who look.
#[test]
fn a_node_is_asked_to_drain() {
    nodes::a_node_is_asked_to_drain(&mut fixture());
}

/// A case that this file forgets would be a promise nobody checks here.
#[test]
fn every_case_for_nodes_is_called() {
    let source = include_str!("postgres_cluster.rs");
    for (name, _) in conformance::SHARED_CASES {
        assert!(source.contains(&format!("::{name}(&mut fixture());")), "{name} is not called");
    }
}

/// SE-34: a node may renew its lease through another connection than the one it writes by.
#[test]
fn a_lease_counts_whoever_renews_it() {
    let mut moved = fixture();
    let (mut writes, mut renews) = (moved.schema.open(), moved.schema.open());
    let member = Member { process: "p".into(), node: "n".into(), address: "".into(), draining: false };
    let lease = Duration::from_secs(600);
    renews.cluster().unwrap().renew(&member, lease).unwrap();
    let epoch = writes.open_shard(ShardId(0), "p").unwrap().epoch;
    let empty = Batch { epoch, ..Default::default() };
    for verdict in [Verdict::Durable, Verdict::Stale] {
        assert_eq!(writes.append(std::slice::from_ref(&empty)).unwrap(), [verdict]);
        moved.pass(lease);
    }
    // Who was away for so long takes nothing before it is back.
    assert_eq!(writes.open_shard(ShardId(1), "p").unwrap_err().kind, FaultKind::Refused);
    renews.cluster().unwrap().renew(&member, lease).unwrap();
    assert_eq!(writes.append(&[empty]).unwrap(), [Verdict::Durable]);
    writes.open_shard(ShardId(1), "p").unwrap();
}

/// AB-10: neither appending nor renewing changes a shard's row; only its owner does.
#[test]
fn the_row_of_a_shard_changes_only_with_its_owner() {
    let moved = fixture();
    let mut store = moved.schema.open();
    let member = Member { process: "p".into(), node: "n".into(), address: "".into(), draining: false };
    let versions = || moved.schema.edit("SELECT count(DISTINCT ctid), min(ctid) FROM shard WHERE id = 0");
    store.cluster().unwrap().renew(&member, Duration::from_secs(600)).unwrap();
    let epoch = store.open_shard(ShardId(0), "p").unwrap().epoch;
    let before = versions();
    for _ in 0..10 {
        store.cluster().unwrap().renew(&member, Duration::from_secs(600)).unwrap();
        store.append(&[Batch { epoch, ..Default::default() }]).unwrap();
        store.flush(&[abide_kernel::shard::Flush { epoch, ..Default::default() }]).unwrap();
    }
    assert_eq!(versions(), before);
    store.open_shard(ShardId(0), "p").unwrap();
    assert_ne!(versions(), before);
}

/// A row that begins the `n`-th run of a shard.
fn start(shard: u16, n: u64) -> Row {
    let slot = ShardMap::new(SHARDS).first_slot(ShardId(shard));
    let request = "req_0123456789abcdef0123456789abcdef";
    let spec = r#"{"workflow":"w","version":1,"input":null}"#;
    Row {
        seq: Seq(n),
        run: RunId::new(Timestamp(1_700_000_000_000 + n as i64), slot, u128::from(n)),
        rev: Rev(1),
        prior: Seq(0),
        at: Timestamp(1_700_000_000_000 + n as i64),
        facts: serde_json::from_str(&format!(r#"[{{"started":{{"spec":{spec},"request":"{request}"}}}}]"#)).unwrap(),
    }
}

/// AB-10: appending only ever inserts, whatever a batch has in it: facts, envelopes, and how far others' were consumed. Only
/// taking a shard changes a row.
#[test]
fn appending_updates_and_deletes_nothing() {
    let schema = Schema::new(SHARDS);
    let mut store = schema.open();
    let epochs = [0, 1].map(|shard| store.open_shard(ShardId(shard), "p").unwrap().epoch);
    for n in 1..=10u64 {
        let batch = |shard: u16| {
            let (row, from, to) = (start(shard, n), ShardId(shard), ShardId(1 - shard));
            let envelope = Envelope { from, to, number: n, message: Message::Begun { reservation: row.run } };
            Batch {
                shard: from,
                epoch: epochs[usize::from(shard)],
                rows: vec![row],
                envelopes: vec![envelope],
                consumed: (n > 1).then_some((to, n - 1)).into_iter().collect(),
                ..Batch::default()
            }
        };
        assert_eq!(store.append(&[batch(0), batch(1)]).unwrap(), [Verdict::Durable; 2]);
    }
    drop(store);
    let count = |what: &str, tables: &str| {
        let sql = format!(
            "SELECT coalesce(string_agg(relname || ' ' || {what}, ', ' ORDER BY relname), '') FROM pg_stat_user_tables
             WHERE schemaname = current_schema() AND {tables}"
        );
        schema.edit(&sql).trim().to_owned()
    };
    // The server counts what a connection did when that has ended, which the store does not wait for.
    let inserted = || {
        let sql = "SELECT sum(n_tup_ins) FROM pg_stat_user_tables
            WHERE schemaname = current_schema() AND relname ~ '^(journal|envelope)'";
        schema.edit(sql).trim().to_owned()
    };
    assert!((0..1_000).any(|_| inserted() == "58"), "20 rows, 20 envelopes, 18 cursors; found {}", inserted());
    let changed = count("n_tup_upd || '/' || n_tup_del", "n_tup_upd + n_tup_del > 0");
    assert_eq!(changed, "shard 2/0", "two shards were taken");
}

/// SE-6: one node at a time looks after the tables. While another takes the shard that says who does, the one before waits,
/// and then does nothing.
#[test]
fn two_never_look_after_the_tables_at_once() {
    let mut moved = fixture();
    let mut store = moved.schema.open();
    let epoch = store.open_shard(HOST, "p").unwrap().epoch;
    let mut intake = store.intake().unwrap().unwrap();
    moved.pass(Duration::from_secs(100 * 86_400));
    let schema = &moved.schema;
    let days = || {
        let sql = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
            AND relname ~ '^request_[0-9]+$'";
        schema.edit(sql)
    };
    let before = days();
    let others = "pid <> pg_backend_pid() AND query ~ 'make_days' AND wait_event_type = 'Lock'";
    let name = &schema.name;
    let taking = format!(
        "BEGIN; UPDATE shard SET epoch = epoch + 1 WHERE id = 0;
         SET LOCAL application_name = 'taking {name}';
         DO $$ BEGIN FOR turn IN 1..300 LOOP
             PERFORM pg_sleep(0.01);
             PERFORM pg_stat_clear_snapshot();
             EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE {others});
         END LOOP; END $$;
         COMMIT"
    );
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| schema.edit(&taking));
        let begun = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'taking {name}'");
        assert!((0..1_000).any(|_| schema.edit(&begun) == "1"), "nobody takes the shard");
        intake.upkeep(epoch).unwrap();
        taker.join().unwrap();
    });
    assert_eq!(days(), before, "the one before looked after the tables while another took over");
    let next = ShardEpoch(epoch.0 + 1);
    intake.upkeep(next).unwrap();
    assert_ne!(days(), before);
}

/// G10: a shard whose row is missing has its place among the others, whose rows are found by their number; who takes it or
/// releases it is told that it is damaged.
#[test]
fn a_missing_row_of_a_shard_moves_no_other() {
    let schema = Schema::new(SHARDS);
    let mut store = schema.open();
    let member = Member { process: "p".into(), node: "n".into(), address: "".into(), draining: false };
    let lease = Duration::from_secs(600);
    store.cluster().unwrap().renew(&member, lease).unwrap();
    let epoch = store.open_shard(ShardId(2), "p").unwrap().epoch;
    schema.edit("DELETE FROM shard WHERE id IN (1, 3)");
    let seen = store.cluster().unwrap().renew(&member, lease).unwrap();
    let looked = store.reader().unwrap().membership().unwrap().unwrap();
    for shards in [seen.shards, looked.shards] {
        let places: Vec<(u16, bool)> = shards.iter().map(|owned| (owned.shard.0, owned.owner.is_some())).collect();
        assert_eq!(places, [(0, false), (1, false), (2, true), (3, false)]);
    }
    let corrupt = FaultKind::Corrupt { run: None, position: None };
    assert_eq!(store.open_shard(ShardId(1), "p").unwrap_err().kind, corrupt);
    assert_eq!(store.cluster().unwrap().release(ShardId(3), epoch).unwrap_err().kind, corrupt);
    store.cluster().unwrap().release(ShardId(2), epoch).unwrap();
}
