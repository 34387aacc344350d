//! Long lines of waiting attempts: their front is in memory, the rest comes back in order.

use crate::support::act::{cancel, complete, done, flow, limited};
use crate::support::{Crash, Hand, World};
use abide_kernel::shard::{Command, Output};
use abide_kernel::{Concurrency, Outcome, Payload, PlannedStep, RunId, StartSpec, Timestamp};

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
    drain_by(world, "w1")
}

fn drain_by(world: &mut World, worker: &str) -> Vec<RunId> {
    world.outputs.clear();
    while world.claim(worker, 50) > 0 {}
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

fn finish(world: &mut World, run: RunId, outcome: Outcome) {
    let command = complete(world, run, outcome);
    world.ask(command);
}

/// D25, D23: runs that are pinned to a definition nobody has stand in a line of their own, however many they are: a new
/// run of the same workflow and version does not wait behind them.
#[test]
fn orphans_do_not_stand_in_the_way_of_new_runs() {
    let mut world = world();
    let old: Vec<RunId> = (0..6).map(|_| world.start(flow())).collect();
    drain(&mut world);
    for run in &old {
        finish(&mut world, *run, Outcome::Next { step: "next".into(), state: Payload::null() });
    }
    world.flush();
    world.hands[0].definitions = vec![crate::support::definition("flow@1#8")];
    world.crash(Crash::BeforeAppend);
    let new = backlog(&mut world, [flow()]);
    assert_eq!(drain(&mut world), new);
}

/// D37: what is ready by the shard's time is found, though the clock is behind the log.
#[test]
fn a_clock_that_was_set_back_hides_nobody() {
    for spec in [flow(), limited("k")] {
        let mut world = world();
        let first = backlog(&mut world, [flow()])[0];
        assert_eq!(drain(&mut world), [first]);
        finish(&mut world, first, done());
        world.now = Timestamp(world.now.0 - 60_000);
        world.crash(Crash::BeforeAppend);
        let runs = backlog(&mut world, (0..12).map(|_| spec.clone()));
        let mut found = Vec::new();
        while found.len() < runs.len() {
            let claimed = drain(&mut world);
            assert!(!claimed.is_empty(), "{} of {} were found", found.len(), runs.len());
            for run in &claimed {
                finish(&mut world, *run, done());
            }
            found.extend(claimed);
        }
        assert_eq!(found, runs);
    }
}

/// A page that is on its way is counted from the edge it was asked for: a line is not cut meanwhile.
#[test]
fn a_line_is_not_cut_while_its_page_is_on_the_way() {
    let mut world = world();
    let runs = backlog(&mut world, (0..12).map(|_| flow()));
    world.loads_held = true;
    assert_eq!(drain(&mut world), runs[..2]);
    world.tick(2);
    let mut expected = backlog(&mut world, (0..8).map(|_| StartSpec { priority: -1, ..flow() }));
    world.loads_held = false;
    world.settle();
    expected.extend(&runs[2..]);
    assert_eq!(drain(&mut world), expected);
}

/// GD-32, D22: while a page is on its way, nobody with a worse place is taken from another line.
#[test]
fn nobody_is_passed_across_lines() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow", "other"]));
    let mut expected = backlog(&mut world, (0..12).map(|_| flow()));
    let late = StartSpec { workflow: "other".into(), priority: 5, ..flow() };
    expected.extend(backlog(&mut world, [late.clone(), late]));
    assert_eq!(drain(&mut world), expected);
}

/// AB-1: a run that waits outside memory does not claim to know how many are before it.
#[test]
fn explain_says_that_there_are_more() {
    let mut world = world();
    let runs = backlog(&mut world, (0..20).map(|_| flow()));
    world.ask(Command::Show { run: runs[19] });
    let around = world.shards[0].surroundings(runs[19], &world.throttle);
    assert!(around.more_ahead && around.ahead < 19, "{around:?}");
}

/// What can be claimed already has no deadline: opening a long backlog reads its front, and no more.
#[test]
fn a_backlog_is_not_read_by_its_deadlines() {
    let mut world = world();
    backlog(&mut world, (0..20).map(|_| flow()));
    assert!(world.disks[0].index.values().all(|record| record.due.is_none()));
    world.crash(Crash::BeforeAppend);
    world.tick(1);
    assert!(world.resident_runs() <= 4, "{} runs are in memory", world.resident_runs());
}

/// A run with several attempts in a long line is cut from it as a whole, and all of them come back.
#[test]
fn a_line_is_cut_between_runs() {
    let mut world = world();
    let plan = |step: &str| PlannedStep { step: step.into(), needs: Vec::new() };
    let graph = || StartSpec { steps: vec![plan("a"), plan("b"), plan("c")], ..flow() };
    for _ in 0..9 {
        world.start(graph());
    }
    world.flush();
    world.crash(Crash::BeforeAppend);
    let mut claimed = 0;
    loop {
        match world.claim("w1", 1) {
            0 => break,
            more => claimed += more,
        }
    }
    assert_eq!(claimed, 27);
}

/// GD-37: whoever overtakes in the line of a key takes the place of the one before, and both never execute at once.
#[test]
fn a_better_priority_takes_the_place_of_its_key() {
    let mut world = world();
    let later = world.start(StartSpec { priority: 5, ..limited("k") });
    let first = world.start(StartSpec { priority: 0, ..limited("k") });
    assert_eq!(world.claim("w1", 9), 1);
    assert!(world.dispatches.contains_key(&first) && !world.dispatches.contains_key(&later));
    finish(&mut world, first, done());
    assert_eq!(world.claim("w1", 9), 1);
}

/// The lines of attempts without a key and of those with one, and how much of each is kept in memory.
fn lines() -> [(StartSpec, usize); 2] {
    [(flow(), 2), (limited("k"), 1)]
}

/// Up to two windows of a line stay in memory, and of a longer one the first. A line that is short again is left whole.
#[test]
fn a_line_is_cut_where_it_is_longer_than_two_windows() {
    for (spec, window) in lines() {
        let waiting = |count: usize| {
            let mut world = world();
            for _ in 0..count {
                world.start(spec.clone());
            }
            world
        };
        for (count, kept) in [(2 * window, 2 * window), (2 * window + 1, window)] {
            let mut world = waiting(count);
            world.flush();
            assert_eq!(world.resident_runs(), kept, "of {count}");
        }
        let mut world = waiting(2 * window + 1);
        assert_eq!(world.claim("w1", 1), 1);
        world.flush();
        assert_eq!(world.resident_runs(), 2 * window + 1, "one executes, and two windows wait");
    }
}

/// A backlog that grows slowly, over many flushes, leaves memory like one that comes at once.
#[test]
fn a_line_that_grows_over_several_flushes_is_cut() {
    for (spec, window) in lines() {
        let mut world = world();
        let mut runs = backlog(&mut world, (0..2 * window).map(|_| spec.clone()));
        for _ in 0..5 {
            runs.extend(backlog(&mut world, (0..3).map(|_| spec.clone())));
            let (resident, waiting) = (world.resident_runs(), runs.len());
            assert!(resident <= 2 * window, "{resident} of {waiting} runs are in memory");
        }
        let mut found = Vec::new();
        while found.len() < runs.len() {
            let claimed = drain(&mut world);
            assert!(!claimed.is_empty(), "{} of {} were found", found.len(), runs.len());
            claimed.iter().for_each(|run| finish(&mut world, *run, done()));
            found.extend(claimed);
        }
        assert_eq!(found, runs);
    }
}

/// GD-37: a key may have room for more than a page holds. Pages are then read until it is full, and no further: as many
/// attempts execute at once as may, and none is left behind.
#[test]
fn a_key_with_more_room_than_a_page_holds_is_filled() {
    let mut world = world();
    let wide = StartSpec { concurrency: Some(Concurrency { key: "k".into(), limit: 5 }), ..flow() };
    let runs = backlog(&mut world, (0..20).map(|_| wide.clone()));
    assert_eq!(world.resident_runs(), 5, "as many as may execute at once");
    world.crash(Crash::BeforeAppend);
    assert_eq!(world.resident_runs(), 6, "three pages of two");
    let mut found = drain(&mut world);
    assert_eq!(found, runs[..5]);
    for ended in &runs {
        finish(&mut world, *ended, done());
        found.extend(drain(&mut world));
    }
    assert_eq!(found, runs);
}

/// A line is cut behind all attempts of a run, because the store knows a run by its first: the page behind the edge begins
/// with the next run. One that was cut within left memory while the page was on its way, and its last attempt was passed over.
#[test]
fn no_attempt_is_left_behind_where_a_line_is_cut() {
    let mut world = world();
    let plan = |step: &str, needs: &[&str]| PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| (*need).into()).collect(),
    };
    let steps = vec![plan("first", &[]), plan("a", &["first"]), plan("b", &["first"]), plan("c", &["first"])];
    let runs: Vec<RunId> = (0..3).map(|_| world.start(StartSpec { steps: steps.clone(), ..flow() })).collect();
    // From its first claim on a run waits in the line of its definition: the nine attempts that follow stand in one.
    assert_eq!(drain(&mut world), runs);
    runs.iter().for_each(|run| finish(&mut world, *run, done()));
    world.flush();
    world.loads_held = true;
    for step in ["a", "b"] {
        assert_eq!(world.claim("w1", 1), 1);
        assert_eq!(&*world.dispatches[&runs[0]].step, step);
        finish(&mut world, runs[0], done());
    }
    world.flush();
    world.loads_held = false;
    world.settle();
    let [first, second, third] = runs[..] else { panic!("three runs") };
    assert_eq!(drain(&mut world), [first, second, second, second, third, third, third]);
}
