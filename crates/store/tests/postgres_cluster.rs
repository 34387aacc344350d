//! Nodes that share a PostgreSQL store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod server;

use std::time::Duration;

use abide_kernel::ShardId;
use abide_store::conformance::{self, SHARDS, Shared, nodes};
use abide_store::{FaultKind, Member, Store};
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
    let empty = abide_kernel::shard::Batch { epoch, ..Default::default() };
    for verdict in [abide_store::Verdict::Durable, abide_store::Verdict::Stale] {
        assert_eq!(writes.append(std::slice::from_ref(&empty)).unwrap(), [verdict]);
        moved.pass(lease);
    }
    // Who was away for so long takes nothing before it is back.
    assert_eq!(writes.open_shard(ShardId(1), "p").unwrap_err().kind, FaultKind::Refused);
    renews.cluster().unwrap().renew(&member, lease).unwrap();
    assert_eq!(writes.append(&[empty]).unwrap(), [abide_store::Verdict::Durable]);
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
        store.append(&[abide_kernel::shard::Batch { epoch, ..Default::default() }]).unwrap();
        store.flush(&[abide_kernel::shard::Flush { epoch, ..Default::default() }]).unwrap();
    }
    assert_eq!(versions(), before);
    store.open_shard(ShardId(0), "p").unwrap();
    assert_ne!(versions(), before);
}
