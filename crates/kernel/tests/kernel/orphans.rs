//! Attempts whose definition no live worker of their queue has: when they are set aside, and when they are not.

use crate::support::act::{complete, flow, limited, next, payload};
use crate::support::{Crash, Hand, World};
use abide_kernel::explain::explain;
use abide_kernel::limits::{DEFINITION_WAIT_MS_DEFAULT as WAIT_MS, ORPHANS_AT_ONCE_MAX};
use abide_kernel::shard::Command;
use abide_kernel::{RunId, StartSpec, Status};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn gone() -> StartSpec {
    StartSpec::new("gone", payload("{}"))
}

fn status(world: &World, run: RunId) -> Status {
    world.folded(run).expect("a run").status()
}

/// D25: the shard asks to be woken for the first orphan of a lane, and for nothing when there is none.
#[test]
fn a_shard_wakes_for_its_first_orphan_and_for_nothing_else() {
    let mut world = world();
    world.start(flow());
    let unserved = StartSpec { queue: "nobody".into(), ..gone() };
    world.start(unserved);
    assert_eq!(world.shards[0].next_wake(), None, "neither served attempts nor unserved queues are of interest");
    let since = world.now;
    let first = world.start(gone());
    world.tick(1_000);
    let second = world.start(StartSpec { priority: -1, ..gone() });
    assert_eq!(world.shards[0].next_wake(), Some(since.after(WAIT_MS)));
    world.tick(WAIT_MS - 1_000);
    assert_eq!(status(&world, first), Status::DeadLettered);
    assert_eq!(status(&world, second), Status::Runnable, "of better priority, and younger");
    assert_eq!(world.shards[0].next_wake(), Some(since.after(WAIT_MS + 1_000)));
    world.tick(1_000);
    assert_eq!(status(&world, second), Status::DeadLettered);
    assert_eq!(world.shards[0].next_wake(), None);
}

/// D25: a run is pinned to its definition, and set aside when it is the definition that is missing. It is kept, with
/// its state, and goes on where it stood when it is put back and a worker has the definition again.
#[test]
fn a_run_whose_definition_changed_is_kept_and_can_go_on() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, next("pay")));
    world.flush();
    world.hands[0].definitions = vec![crate::support::definition("flow@1#8")];
    world.crash(Crash::BeforeAppend);
    world.tick(WAIT_MS);
    let letter = world.folded(run).expect("a run").last_error.expect("a reason");
    assert_eq!(&*letter.code, "definition_missing");
    assert_eq!(&*letter.message, "no live worker of queue default has flow v1 with definition 0000000000000007");
    world.hands[0].definitions = vec![crate::support::definition("flow@1#7")];
    world.crash(Crash::BeforeAppend);
    assert_eq!(world.claim("w1", 1), 0, "a person puts it back");
    world.ask(Command::Requeue { run });
    assert_eq!(world.claim("w1", 1), 1);
    assert_eq!(&*world.dispatches[&run].step, "pay");
}

/// D25: the time counts from the shard's opening at the earliest, so that a deploy has the time that was set.
#[test]
fn patience_begins_anew_when_the_shard_is_opened() {
    let mut world = world();
    let run = world.start(gone());
    world.tick(WAIT_MS - 1);
    world.crash(Crash::BeforeAppend);
    let opened = world.now;
    world.tick(1);
    assert_eq!(status(&world, run), Status::Runnable);
    assert_eq!(world.shards[0].next_wake(), Some(opened.after(WAIT_MS)));
    world.join(Hand::new("w2", &["gone"]));
    assert_eq!(world.shards[0].next_wake(), None, "somebody has the definition now");
    world.tick(WAIT_MS);
    assert_eq!(status(&world, run), Status::Runnable);
    assert_eq!(world.claim("w2", 9), 1);
}

/// D25, GD-37: an orphan at the head of its concurrency key gives way when it is set aside.
#[test]
fn an_orphan_gives_its_key_way() {
    let mut world = world();
    let orphan = world.start(StartSpec { workflow: "gone".into(), ..limited("k") });
    let behind = world.start(limited("k"));
    assert_eq!(world.claim("w1", 9), 0);
    world.tick(WAIT_MS);
    assert_eq!(status(&world, orphan), Status::DeadLettered);
    assert_eq!(world.claim("w1", 9), 1);
    assert_eq!(status(&world, behind), Status::Executing);
}

/// D25, AB-1: until then a run says when it will be set aside, and afterwards why it was.
#[test]
fn an_orphan_says_when_it_is_set_aside() {
    let mut world = world();
    let run = world.start(gone());
    let around = world.shards[0].surroundings(run, &world.throttle);
    assert_eq!(around.dead_letter_at, Some(world.now.after(WAIT_MS)));
    world.tick(WAIT_MS);
    let around = world.shards[0].surroundings(run, &world.throttle);
    let told = explain(&world.folded(run).expect("a run"), &around, world.now);
    assert_eq!(
        told.sentence,
        "step (the first) was set aside as a dead letter 0 ms ago: definition_missing: \
         no live worker of queue default has gone v1"
    );
}

/// D25: very many orphans are set aside in several ticks, each of which asks for the next at once.
#[test]
fn very_many_orphans_are_set_aside_bit_by_bit() {
    let mut world = world();
    for _ in 0..ORPHANS_AT_ONCE_MAX + 1 {
        world.start(gone());
    }
    world.tick(WAIT_MS);
    let dead = world.new_rows.iter().filter(|row| row.facts.iter().any(|fact| fact.kind() == "dead_lettered")).count();
    assert_eq!(dead, ORPHANS_AT_ONCE_MAX);
    assert!(world.shards[0].next_wake().is_some_and(|at| at <= world.now));
    world.tick(0);
    assert_eq!(world.shards[0].next_wake(), None);
}
