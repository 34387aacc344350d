//! Where what waits is kept: what can be done now, what is due later, and what was set aside.

use crate::support::act::{awaiting, complete, flow, show, signal, sleeping};
use crate::support::{Hand, World};
use abide_kernel::shard::{Command, Record};
use abide_kernel::{RunId, Status};

/// In which of the three a run stands, by its index row.
fn stands(record: &Record) -> [bool; 3] {
    [record.ready.is_some(), record.due.is_some(), record.status == Status::DeadLettered]
}

fn row(world: &World, run: RunId) -> &Record {
    &world.disks[world.home(run)].index[&run]
}

/// A run whose attempt was lost more often than it may be.
fn set_aside(world: &mut World) -> RunId {
    let mut spec = flow();
    spec.deliveries_max = Some(1);
    let run = world.start(spec);
    world.claim("w1", 1);
    world.tick(2_000);
    assert_eq!(show(world, run).status(), Status::DeadLettered);
    run
}

/// SE-18: what a signal woke stands in its line, what is scheduled stands by its instant, what was set aside stands in
/// neither; each leaves its place for another in one row, and workers are given only what stands in line.
#[test]
fn what_is_ready_what_is_due_and_what_was_set_aside_are_kept_apart() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let dead = set_aside(&mut world);
    let (signalled, scheduled) = (world.start(flow()), world.start(flow()));
    world.claim("w1", 2);
    world.ask(complete(&world, signalled, awaiting("go")));
    world.ask(complete(&world, scheduled, sleeping(60_000)));
    world.flush();
    let waits = [signalled, scheduled, dead].map(|run| stands(row(&world, run)));
    assert_eq!(waits, [[false, false, false], [false, true, false], [false, false, true]]);

    let request = world.request();
    world.ask(signal(signalled, "go", request));
    world.flush();
    let [now, later, aside] = [signalled, scheduled, dead].map(|run| stands(row(&world, run)));
    assert_eq!([now, later, aside], [[true, false, false], [false, true, false], [false, false, true]]);

    assert_eq!(world.claim("w1", 10), 1, "only what stands in line is given out");
    world.tick(60_000);
    world.flush();
    assert_eq!(stands(row(&world, scheduled)), [true, false, false], "at its instant it goes into its line");
    world.ask(Command::Requeue { run: dead });
    world.flush();
    assert_eq!(stands(row(&world, dead)), [true, false, false], "put back, it goes into its line");
}
