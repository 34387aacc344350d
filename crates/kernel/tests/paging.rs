//! Long lines of waiting attempts: their front is in memory, the rest comes back in order.

mod support;

use abide_kernel::shard::Output;
use abide_kernel::{RunId, StartSpec};
use support::act::{cancel, complete, done, flow, limited};
use support::{Crash, Hand, World};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// Starts runs and lets them leave memory as far as they may.
fn backlog(world: &mut World, specs: impl IntoIterator<Item = StartSpec>) -> Vec<RunId> {
    let runs = specs.into_iter().map(|spec| world.start(spec)).collect();
    world.flush();
    runs
}

/// Claims as many as there are, many at a time, and gives them in the order they were handed out.
fn drain(world: &mut World) -> Vec<RunId> {
    world.outputs.clear();
    while world.claim("w1", 50) > 0 {}
    let dispatched = |output: &Output| match output {
        Output::Dispatch(dispatch) => Some(dispatch.claim.run),
        _ => None,
    };
    world.outputs.iter().filter_map(dispatched).collect()
}

/// GD-32: a run that came later and is in memory does not pass those that wait in the store.
#[test]
fn the_picker_never_passes_those_who_wait_outside_memory() {
    let mut world = world();
    let mut expected = backlog(&mut world, (0..20).map(|_| flow()));
    assert!(world.resident_runs() <= 4, "{} runs are in memory", world.resident_runs());
    expected.push(world.start(flow()));
    assert_eq!(drain(&mut world), expected);
}

/// GD-32, D22: one with a better place goes first, wherever the others are kept.
#[test]
fn a_better_priority_goes_first() {
    let mut world = world();
    let mut expected = backlog(&mut world, (0..20).map(|_| flow()));
    expected.insert(0, world.start(StartSpec { priority: -1, ..flow() }));
    let late = backlog(&mut world, [StartSpec { priority: 7, ..flow() }, StartSpec { priority: -2, ..flow() }]);
    expected.insert(0, late[1]);
    expected.push(late[0]);
    assert_eq!(drain(&mut world), expected);
}

/// GD-37: a key keeps its order though most of its attempts wait in the store, and blocks no other.
#[test]
fn a_key_keeps_its_order_and_blocks_no_other() {
    let mut world = world();
    let keyed = backlog(&mut world, (0..12).map(|_| limited("k")));
    let free = backlog(&mut world, (0..12).map(|_| flow()));
    assert!(world.resident_runs() <= 4 + 2, "{} runs are in memory", world.resident_runs());
    let mut expected = vec![keyed[0]];
    expected.extend(&free);
    assert_eq!(drain(&mut world), expected);
    for (ended, next) in keyed.iter().zip(&keyed[1..]) {
        let ending = complete(&world, *ended, done());
        world.ask(ending);
        assert_eq!(drain(&mut world), [*next], "the next of the key");
    }
}

/// SQ-64, GD-32: the same after the process is gone, with index rows and without.
#[test]
fn a_long_line_survives_the_process() {
    for forget in [false, true] {
        let mut world = world();
        let mut expected =
            backlog(&mut world, (0..15).map(|n| if n % 3 == 0 { limited(&format!("k{n}")) } else { flow() }));
        if forget {
            world.forget_index();
        }
        world.crash(Crash::BeforeAppend);
        expected.push(world.start(flow()));
        assert_eq!(drain(&mut world), expected);
    }
}

/// GD-32: a run that waits in the store can be cancelled, and is not handed out later.
#[test]
fn what_waits_outside_memory_can_be_cancelled() {
    let mut world = world();
    let mut expected = backlog(&mut world, (0..12).map(|_| flow()));
    let cancelled = expected.remove(7);
    let request = world.request();
    world.ask(cancel(cancelled, request, false));
    world.flush();
    assert_eq!(drain(&mut world), expected);
}
