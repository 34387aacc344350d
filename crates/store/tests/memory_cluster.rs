//! Nodes that share a store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_store::Store;
use abide_store::conformance::{self, SHARDS, Shared, nodes};
use abide_store::memory::MemoryStore;

struct InMemory {
    store: MemoryStore,
    clock: Arc<AtomicI64>,
}

fn fixture() -> InMemory {
    let clock = Arc::new(AtomicI64::new(1_000));
    InMemory { store: MemoryStore::shared(SHARDS, clock.clone()), clock }
}

impl Shared for InMemory {
    fn join(&mut self) -> Box<dyn Store> {
        Box::new(self.store.clone())
    }

    fn pass(&mut self, time: Duration) {
        self.clock.fetch_add(time.as_millis() as i64, Ordering::AcqRel);
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
    let source = include_str!("memory_cluster.rs");
    for (name, _) in conformance::SHARED_CASES {
        assert!(source.contains(&format!("::{name}(&mut fixture());")), "{name} is not called");
    }
}

/// A store for one owner has no members.
#[test]
fn a_store_for_one_is_not_shared() {
    assert!(MemoryStore::new(1).cluster().is_none());
}
