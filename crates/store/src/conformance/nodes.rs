//! Nodes that share a store: who lives, who owns what, and who may write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_kernel::{Seq, ShardId};

use super::make::{Owner, append, log, run_id};
use super::{SHARDS, Shared};
use crate::{FaultKind, Member, Membership, Store, Verdict};

const LEASE: Duration = Duration::from_secs(600);

fn member(name: &str) -> Member {
    let address = format!("{name}.example:7000").into();
    Member { process: format!("process \\ of {name}").into(), node: name.into(), address, draining: false }
}

fn renew(store: &mut dyn Store, name: &str) -> Membership {
    store.cluster().expect("nodes share it").renew(&member(name), LEASE).expect("the lease is renewed")
}

fn take(store: &mut dyn Store, shard: u16, name: &str) -> Owner {
    Owner::after(shard, &store.open_shard(ShardId(shard), &member(name).process).expect("the shard is free"))
}

fn held(store: &mut dyn Store, shard: u16, name: &str) {
    let fault = store.open_shard(ShardId(shard), &member(name).process).expect_err("it belongs to another");
    assert_eq!(fault.kind, FaultKind::Held);
    assert!(fault.may_retry());
}

/// Writes the first row of one more run; the owner knows only what went in.
fn write(store: &mut dyn Store, owner: &mut Owner) -> Verdict {
    static RUNS: AtomicU64 = AtomicU64::new(100);
    let before = owner.head;
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let rows = owner.starts(run, run + 1);
    let verdicts = store.append(&[owner.batch(rows)]).expect("an answer");
    if verdicts[0] == Verdict::Stale {
        owner.head = before;
    }
    verdicts[0]
}

/// A shard is taken from a node only when its lease has ended by the store's clock, or when it was released.
pub fn a_shard_is_taken_from_the_dead_and_from_those_who_release_it(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    renew(&mut *ada, "ada");
    renew(&mut *bob, "bob");
    let first = take(&mut *ada, 0, "ada");
    take(&mut *ada, 1, "ada");
    held(&mut *bob, 0, "bob");
    let seen = renew(&mut *bob, "bob");
    assert_eq!(&*seen.owner(ShardId(0)).expect("an owner").member.node, "ada");
    assert!(seen.is_free(ShardId(2)));

    let release = |store: &mut dyn Store| {
        store.cluster().expect("nodes share it").release(ShardId(0), first.epoch).expect("it is released");
    };
    release(&mut *ada);
    assert!(renew(&mut *bob, "bob").is_free(ShardId(0)));
    let second = take(&mut *bob, 0, "bob");
    assert!(second.epoch > first.epoch);
    // A release that comes late takes nothing from anybody.
    release(&mut *ada);
    assert!(!renew(&mut *bob, "bob").is_free(ShardId(0)));

    fixture.pass(LEASE - Duration::from_secs(60));
    renew(&mut *bob, "bob");
    held(&mut *bob, 1, "bob");
    fixture.pass(Duration::from_secs(60));
    assert!(renew(&mut *bob, "bob").is_free(ShardId(1)));
    take(&mut *bob, 1, "bob");
}

/// Whoever takes a shard again from itself has a new ownership, and the one before writes nothing.
pub fn a_shard_is_taken_again_by_its_owner(fixture: &mut dyn Shared) {
    let mut ada = fixture.join();
    renew(&mut *ada, "ada");
    let mut first = take(&mut *ada, 0, "ada");
    let mut second = take(&mut *ada, 0, "ada");
    assert!(second.epoch > first.epoch);
    assert_eq!(write(&mut *ada, &mut first), Verdict::Stale);
    assert_eq!(write(&mut *ada, &mut second), Verdict::Durable);
}

/// A node that leaves is waited for by nobody, and writes nothing any more.
pub fn what_a_node_that_left_had_is_free_at_once(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    renew(&mut *ada, "ada");
    let mut owner = take(&mut *ada, 0, "ada");
    assert_eq!(write(&mut *ada, &mut owner), Verdict::Durable);
    ada.cluster().expect("nodes share it").leave(&member("ada").process).expect("it leaves");
    assert_eq!(write(&mut *ada, &mut owner), Verdict::Stale);
    let seen = renew(&mut *bob, "bob");
    assert!(seen.is_free(ShardId(0)));
    assert_eq!(seen.living.len(), 1);
    assert_eq!(take(&mut *bob, 0, "bob").head, Seq(1));
}

/// A shard that was released is written by nobody until it is taken.
pub fn who_released_a_shard_writes_nothing(fixture: &mut dyn Shared) {
    let mut ada = fixture.join();
    renew(&mut *ada, "ada");
    let mut owner = take(&mut *ada, 3, "ada");
    ada.cluster().expect("nodes share it").release(ShardId(3), owner.epoch).expect("it is released");
    assert_eq!(write(&mut *ada, &mut owner), Verdict::Stale);
    assert!(log(&mut *ada, 3, 10).is_empty());
}

/// A node that was paused past its lease writes nothing, neither rows nor index rows, before it has renewed it; and
/// nothing at all when another took its shard meanwhile.
pub fn a_node_past_its_lease_writes_nothing(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    renew(&mut *ada, "ada");
    let mut one = take(&mut *ada, 0, "ada");
    let mut two = take(&mut *ada, 1, "ada");
    for owner in [&mut one, &mut two] {
        let rows = owner.starts(0, 1);
        append(&mut *ada, owner.batch(rows));
    }
    fixture.pass(LEASE);
    let behind = one.flush(vec![one.record(run_id(ShardId(0), 0))]);
    assert_eq!(ada.flush(&[behind]).expect("an answer"), [Verdict::Stale]);
    for owner in [&mut one, &mut two] {
        assert_eq!(write(&mut *ada, owner), Verdict::Stale);
    }
    renew(&mut *bob, "bob");
    let mut taken = take(&mut *bob, 0, "bob");
    assert_eq!(taken.head, Seq(1));
    renew(&mut *ada, "ada");
    assert_eq!(write(&mut *ada, &mut one), Verdict::Stale, "another has it");
    assert_eq!(write(&mut *ada, &mut two), Verdict::Durable, "nobody took it");
    assert_eq!(write(&mut *bob, &mut taken), Verdict::Durable);
    let lengths = [0, 1].map(|shard| log(&mut *bob, shard, 10).len());
    assert_eq!(lengths, [2, 2]);
    assert!(bob.read_run(run_id(ShardId(0), 0)).expect("a run").is_none());
}

/// In a group of several shards, those that were taken away do not stop the others.
pub fn a_group_goes_in_without_the_shards_that_were_taken(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    renew(&mut *ada, "ada");
    renew(&mut *bob, "bob");
    let mut owners: Vec<Owner> = (0..3).map(|shard| take(&mut *ada, shard, "ada")).collect();
    ada.cluster().expect("nodes share it").release(ShardId(1), owners[1].epoch).expect("it is released");
    take(&mut *bob, 1, "bob");
    let group: Vec<_> = owners
        .iter_mut()
        .map(|owner| {
            let rows = owner.starts(0, 5);
            owner.batch(rows)
        })
        .collect();
    let verdicts = ada.append(&group).expect("an answer");
    assert_eq!(verdicts, [Verdict::Durable, Verdict::Stale, Verdict::Durable]);
    let lengths: Vec<usize> = (0..3).map(|shard| log(&mut *bob, shard, 50).len()).collect();
    assert_eq!(lengths, [5, 0, 5]);
}

/// Whoever is asked to drain is told so by its next renewal, whatever it says itself; those who look see it, and who is
/// gone.
pub fn a_node_is_asked_to_drain(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    renew(&mut *ada, "ada");
    renew(&mut *bob, "bob");
    take(&mut *ada, 1, "ada");
    let drain = |store: &mut dyn Store, name: &str, draining: bool| {
        store.cluster().expect("nodes share it").drain(&member(name).process, draining).expect("an answer")
    };
    let drains = |seen: &Membership| -> Vec<bool> { seen.living.iter().map(|living| living.member.draining).collect() };
    assert!(drain(&mut *bob, "ada", true));
    assert!(!drain(&mut *bob, "eve", true), "nobody has that name");
    assert_eq!(drains(&renew(&mut *ada, "ada")), [true, false]);
    assert_eq!(drains(&renew(&mut *bob, "bob")), [true, false]);
    let look = |store: &dyn Store| {
        let mut reader = store.reader().expect("a reader");
        reader.membership().expect("it is read").expect("nodes share it")
    };
    let seen = look(&*bob);
    assert_eq!((drains(&seen), seen.gone.len()), (vec![true, false], 0));
    assert_eq!(seen.shards[1].owner, Some(member("ada").process));
    assert!(drain(&mut *bob, "ada", false));
    assert_eq!(drains(&renew(&mut *ada, "ada")), [false, false]);
    fixture.pass(LEASE);
    let seen = look(&*bob);
    assert_eq!((seen.living.len(), seen.gone.len()), (0, 2));
}

/// A renewal tells who lives, until when, where, and who owns which shard; who is gone is not told of.
pub fn a_renewal_tells_who_lives_and_who_owns_what(fixture: &mut dyn Shared) {
    let (mut ada, mut bob) = (fixture.join(), fixture.join());
    let first = renew(&mut *ada, "ada");
    assert_eq!(first.living.len(), 1);
    assert_eq!(first.living[0].until, first.now.after(LEASE.as_millis() as u64));
    assert!(first.shards.iter().map(|owned| owned.shard.0).eq(0..SHARDS));
    assert!(first.shards.iter().all(|owned| owned.owner.is_none() && owned.epoch.0 == 0));
    let taken = take(&mut *ada, 2, "ada");
    let mut leaving = member("bob");
    leaving.draining = true;
    let seen = bob.cluster().expect("nodes share it").renew(&leaving, LEASE / 2).expect("the lease is renewed");
    let members: Vec<&Member> = seen.living.iter().map(|living| &living.member).collect();
    assert_eq!(members, [&member("ada"), &leaving]);
    let owned = &seen.shards[2];
    assert_eq!((owned.epoch, owned.owner.as_ref()), (taken.epoch, Some(&member("ada").process)));
    fixture.pass(LEASE / 2);
    let later = renew(&mut *ada, "ada");
    assert!(later.now >= seen.now.after(LEASE.as_millis() as u64 / 2));
    assert_eq!(later.living.len(), 1, "the other's lease has ended");
}
