//! Nodes that share a store in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_kernel::ShardId;
use abide_store::memory::MemoryStore;
use abide_store::{FaultKind, Member, Membership, Store};

const LEASE: Duration = Duration::from_secs(10);

fn member(name: &str) -> Member {
    Member { process: name.into(), node: name.into(), address: "".into(), draining: false }
}

fn renew(store: &mut MemoryStore, name: &str) -> Membership {
    store.cluster().unwrap().renew(&member(name), LEASE).unwrap()
}

/// SE-35, SE-36: a shard is taken from a node only when its lease has ended by the store's clock, or when it was released.
#[test]
fn a_shard_is_taken_from_the_dead_and_from_those_who_release_it() {
    let clock = Arc::new(AtomicI64::new(1_000));
    let mut ada = MemoryStore::shared(2, clock.clone());
    let mut bob = ada.clone();
    renew(&mut ada, "ada");
    renew(&mut bob, "bob");
    let first = ada.open_shard(ShardId(0), "ada").unwrap();
    ada.open_shard(ShardId(1), "ada").unwrap();

    assert_eq!(bob.open_shard(ShardId(0), "bob").unwrap_err().kind, FaultKind::Held);
    let seen = renew(&mut bob, "bob");
    assert_eq!(&*seen.owner(ShardId(0)).unwrap().member.node, "ada");

    ada.cluster().unwrap().release(ShardId(0), first.epoch).unwrap();
    assert!(renew(&mut bob, "bob").is_free(ShardId(0)));
    let second = bob.open_shard(ShardId(0), "bob").unwrap();
    assert!(second.epoch > first.epoch);
    // A release that comes late takes nothing from anybody.
    ada.cluster().unwrap().release(ShardId(0), first.epoch).unwrap();
    assert!(!renew(&mut bob, "bob").is_free(ShardId(0)));

    clock.fetch_add(9_000, Ordering::AcqRel);
    renew(&mut bob, "bob");
    assert_eq!(bob.open_shard(ShardId(1), "bob").unwrap_err().kind, FaultKind::Held);
    clock.fetch_add(1_000, Ordering::AcqRel);
    bob.open_shard(ShardId(1), "bob").unwrap();
}

/// A node that leaves is waited for by nobody.
#[test]
fn what_a_node_that_left_had_is_free_at_once() {
    let mut ada = MemoryStore::shared(1, Arc::new(AtomicI64::new(1_000)));
    let mut bob = ada.clone();
    renew(&mut ada, "ada");
    ada.open_shard(ShardId(0), "ada").unwrap();
    ada.cluster().unwrap().leave("ada").unwrap();
    renew(&mut bob, "bob");
    bob.open_shard(ShardId(0), "bob").unwrap();
}

/// A store for one owner has no members.
#[test]
fn a_store_for_one_is_not_shared() {
    assert!(MemoryStore::new(1).cluster().is_none());
}
