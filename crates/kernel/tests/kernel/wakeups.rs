//! No wake-up is ever lost: every order of signal, park, commit and crash ends with the run awake.

use crate::support::act::{awaiting, complete, done, flow, limited, payload, show, signal};
use crate::support::{Crash, Hand, World, check};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{Outcome, Phase, RequestId, RunId, Status};

/// Every order of the given letters.
fn orders(letters: &[char]) -> Vec<Vec<char>> {
    if letters.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (index, letter) in letters.iter().enumerate() {
        let mut rest = letters.to_vec();
        rest.remove(index);
        for mut order in orders(&rest) {
            order.insert(0, *letter);
            found.push(order);
        }
    }
    found
}

/// Sends the signal, as a client does that was not answered: again, with the same request.
fn ensure_signal(world: &mut World, run: RunId, request: RequestId) {
    let answer = world.ask(signal(run, "go", request));
    assert!(matches!(answer, Answer::Signalled(_)), "{answer:?}");
}

/// GD-28, GD-29, SE-24: for every order of {signal, park, commit, crash} the run ends up awake and sees the signal once.
#[test]
fn every_interleaving_of_deliver_and_park_wakes_the_run() {
    for how in [Crash::BeforeAppend, Crash::AfterAppend] {
        // d: everything so far becomes durable; c: the process dies; f: index rows are written, the run may leave.
        for order in orders(&['s', 'p', 'd', 'c', 'f']) {
            for shards in [1, 4] {
                interleave(&order, how, shards);
            }
        }
    }
}

fn interleave(order: &[char], how: Crash, shards: u16) {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    let request = world.request();
    let park = complete(&world, run, awaiting("go"));
    world.held = true;
    for letter in order {
        match letter {
            's' => {
                world.submit(signal(run, "go", request));
            }
            'p' => {
                world.submit(park.clone());
            }
            'd' => world.durable(),
            'f' => {
                world.durable();
                world.flush();
            }
            _ => {
                world.held = false;
                world.crash(how);
                world.held = true;
            }
        }
    }
    world.held = false;
    world.durable();
    // Whoever was not answered asks again: both are answered as if it were the first time.
    let answer = world.ask(park);
    assert!(matches!(answer, Answer::Recorded { .. }), "{order:?} {how:?}: {answer:?}");
    ensure_signal(&mut world, run, request);
    check::check(&world);
    let shown = show(&mut world, run);
    assert_eq!(shown.status(), Status::Runnable, "{order:?} {how:?}");
    assert_eq!(shown.inbox.len(), 1, "{order:?} {how:?}");
    assert_eq!(world.claim("w1", 9), 1, "{order:?} {how:?}");
    world.ask(complete(&world, run, done()));
    assert_eq!(show(&mut world, run).inbox.len(), 0, "used up once");
}

/// GD-22, GD-6: the signal is recorded in the row of its wake-up and before it; waking twice changes nothing.
#[test]
fn the_signal_is_recorded_before_the_wake_up() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    let request = world.request();
    ensure_signal(&mut world, run, request);
    let row = world.disks[0].rows.last().expect("a row");
    let kinds: Vec<&str> = row.facts.iter().map(|fact| fact.kind()).collect();
    assert_eq!(kinds, ["signal_received", "woken", "scheduled"], "one commit");
    let mut twice = world.folded(run).expect("a run");
    let before = check::json(&twice);
    let meta = abide_kernel::Meta { seq: row.seq, at: row.at };
    twice.apply(&row.facts[1], meta);
    assert_eq!(check::json(&twice), before, "a second wake-up is stale and changes nothing");
}

/// GD-37, GD-38: a wait holds neither a claim nor a slot of its concurrency key, and the death of a worker frees it.
#[test]
fn a_wait_holds_no_slot() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let first = world.start(limited("c"));
    let second = world.start(limited("c"));
    let third = world.start(limited("c"));
    assert_eq!(world.claim("w1", 9), 1);
    world.ask(complete(&world, first, awaiting("go")));
    assert_eq!(world.claim("w1", 9), 1, "the slot is free");
    assert!(world.dispatches.contains_key(&second));
    let request = world.request();
    ensure_signal(&mut world, first, request);
    assert_eq!(world.claim("w1", 9), 0, "awake, and behind the one that executes");
    // Its worker dies: the next in line has it, and the order of attempts stays.
    world.tick(1_000);
    assert_eq!(world.claim("w1", 1), 1);
    assert!(world.dispatches.contains_key(&third));
    world.ask(complete(&world, third, done()));
    assert_eq!(world.claim("w1", 9), 1);
    assert_eq!(world.dispatches[&first].claim.number, 2);
}

/// GD-37: the key's slots and order are the same after a crash.
#[test]
fn a_key_is_as_full_after_a_crash_as_before() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    for _ in 0..3 {
        world.start(limited("c"));
    }
    world.claim("w1", 9);
    for flush in [false, true] {
        if flush {
            world.flush();
        }
        world.crash(Crash::BeforeAppend);
        assert_eq!(world.claim("w1", 9), 0);
    }
}

/// SE-31, SE-32: a fenced signal counts only for the wait whose token it carries, and never early.
#[test]
fn a_fenced_signal_is_stale_when_its_wait_is_over() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    let wait = |ms| Outcome::Sleep { until: abide_kernel::Moment::In(ms), then: None, state: payload("{}") };
    world.ask(complete(&world, run, wait(1_000)));
    let Phase::Waiting(first) = show(&mut world, run).cursors[0].phase.clone() else {
        panic!("it waits");
    };
    let rows = world.disks[0].rows.len();
    let early = Command::Wake { run, token: first.token };
    world.ask(early.clone());
    assert_eq!(world.disks[0].rows.len(), rows, "a timer never fires early");
    world.tick(1_000);
    world.claim("w1", 1);
    world.ask(complete(&world, run, wait(1_000)));
    let rows = world.disks[0].rows.len();
    assert!(matches!(world.ask(early), Answer::Refused(refusal) if refusal.code() == "stale_token"));
    assert_eq!(world.disks[0].rows.len(), rows, "stale, so ignored");
    assert_eq!(show(&mut world, run).status(), Status::Sleeping);
}

/// GD-29: a step that waits for what it has seen and not used does not spin; what came while it executed wakes it at once.
#[test]
fn a_signal_that_comes_while_the_step_executes_is_not_missed() {
    for during in [false, true] {
        let mut world = World::new(1);
        world.join(Hand::new("w1", &["flow"]));
        let run = world.start(flow());
        world.claim("w1", 1);
        world.ask(complete(&world, run, awaiting("go")));
        let request = world.request();
        ensure_signal(&mut world, run, request);
        assert_eq!(world.claim("w1", 1), 1);
        if during {
            let request = world.request();
            ensure_signal(&mut world, run, request);
        }
        world.ask(complete(&world, run, awaiting("go")));
        assert_eq!(world.claim("w1", 1), usize::from(during));
        check::check(&world);
    }
}
