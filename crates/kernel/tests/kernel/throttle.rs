//! Caps and rates: who may begin, who is passed by, and what is counted after a crash.

use std::collections::BTreeSet;

use crate::support::act::{awaiting, cancel, complete, done, flow, limited, next, signal};
use crate::support::check::check;
use crate::support::{Crash, Hand, World};
use abide_kernel::explain::{Explanation, Service, explain};
use abide_kernel::shard::{Rate, Rule, Scope};
use abide_kernel::{Phase, RunId, StartSpec};

fn cap(scope: Scope, at_most: u32) -> Rule {
    Rule { scope, at_most: Some(at_most), rate: None }
}

fn rate(scope: Scope, count: u32, per_ms: u64) -> Rule {
    Rule { scope, at_most: None, rate: Some(Rate { count, per_ms }) }
}

fn queue(name: &str) -> Scope {
    Scope::Queue(name.into())
}

fn world(shards: u16, rules: Vec<Rule>) -> World {
    let mut world = World::throttled(shards, rules);
    let queues = ["default", "mail"].map(String::from).to_vec();
    world.join(Hand { queues, lease_ms: 5_000, ..Hand::new("w1", &["flow", "other"]) });
    world
}

fn mail() -> StartSpec {
    StartSpec { queue: "mail".into(), ..flow() }
}

fn start_all(world: &mut World, count: usize, spec: &StartSpec) -> Vec<RunId> {
    (0..count).map(|_| world.start(spec.clone())).collect()
}

/// Runs with an attempt that executes.
fn running(world: &World) -> Vec<RunId> {
    let claimed = world.shards.iter().flat_map(|shard| shard.claimed_runs());
    claimed.collect::<BTreeSet<RunId>>().into_iter().collect()
}

fn told(world: &World, run: RunId) -> Explanation {
    let mut around = world.shards[world.home(run)].surroundings(run, &world.throttle);
    around.service = Service::Served;
    explain(&world.folded(run).expect("a run"), &around, world.now)
}

/// D23, GD-37: a cap holds over all shards, a saturated queue blocks no other, and whoever leaves makes room.
#[test]
fn a_full_queue_is_passed_by() {
    for shards in [1, 4] {
        let mut world = world(shards, vec![cap(queue("mail"), 2)]);
        start_all(&mut world, 6, &mail());
        let others = start_all(&mut world, 3, &flow());
        assert_eq!(world.claim("w1", 99), 5, "two of the queue, and all others");
        assert!(others.iter().all(|run| running(&world).contains(run)));
        let first = *running(&world).iter().find(|run| !others.contains(run)).expect("one of the queue");
        world.ask(complete(&world, first, next("more")));
        assert_eq!(world.claim("w1", 99), 1, "one left, so one begins");
        assert_eq!(world.claim("w1", 99), 0);
    }
}

/// D23: the rules of queue, workflow and namespace hold together; the tightest decides.
#[test]
fn every_rule_that_applies_is_kept() {
    let rules = vec![
        cap(queue("default"), 5),
        cap(Scope::Workflow("flow".into()), 2),
        cap(Scope::Namespace("tenant".into()), 1),
    ];
    let mut world = world(1, rules);
    let tenant = |spec: StartSpec| StartSpec { namespace: "tenant".into(), ..spec };
    let other = || StartSpec { workflow: "other".into(), ..flow() };
    start_all(&mut world, 4, &tenant(flow()));
    assert_eq!(world.claim("w1", 99), 1, "the namespace is full");
    start_all(&mut world, 4, &flow());
    assert_eq!(world.claim("w1", 99), 1, "the workflow is full");
    start_all(&mut world, 9, &other());
    assert_eq!(world.claim("w1", 99), 3, "the queue is full");
}

/// D23: a place is given back by whatever ends an attempt: a wait, a cancellation, the end of a lease.
#[test]
fn whatever_ends_an_attempt_makes_room() {
    let mut world = world(1, vec![cap(queue("default"), 1)]);
    let runs = start_all(&mut world, 4, &flow());
    assert_eq!(world.claim("w1", 99), 1);
    world.ask(complete(&world, runs[0], awaiting("go")));
    assert_eq!(world.claim("w1", 99), 1, "a wait holds no place");
    let request = world.request();
    world.ask(cancel(runs[1], request, false));
    assert_eq!(world.claim("w1", 99), 1, "nor does a cancelled run");
    world.tick(5_001);
    assert_eq!(world.claim("w1", 99), 1, "nor one whose lease is over");
    assert_eq!(running(&world).len(), 1);
}

/// D23: a process that opens the shards anew counts the claims it finds, so a cap is as full after a crash as before.
#[test]
fn a_cap_is_as_full_after_a_crash_as_before() {
    let mut world = world(4, vec![cap(Scope::Workflow("flow".into()), 3)]);
    start_all(&mut world, 8, &flow());
    assert_eq!(world.claim("w1", 99), 3);
    world.flush();
    world.crash(Crash::AfterAppend);
    assert_eq!(world.claim("w1", 99), 0, "remote claims outlive the process");
    let held = running(&world)[0];
    world.ask(complete(&world, held, done()));
    assert_eq!(world.claim("w1", 99), 1);
}

/// D23: a rate lets attempts begin evenly; the throttle knows when the next one may, and asks for no wake otherwise.
#[test]
fn a_rate_says_when_the_next_may_begin() {
    let mut world = world(2, vec![rate(queue("mail"), 2, 1_000)]);
    start_all(&mut world, 4, &mail());
    let free = world.start(flow());
    assert_eq!(world.claim("w1", 99), 3);
    assert!(running(&world).contains(&free), "others go on");
    let began = world.now;
    assert_eq!(world.throttle.next_wake(), Some(began.after(500)));
    world.tick(499);
    assert_eq!(world.claim("w1", 99), 0);
    world.tick(1);
    assert_eq!(world.claim("w1", 99), 1);
    assert_eq!(world.throttle.next_wake(), Some(began.after(1_000)), "one more is held up");
    world.tick(500);
    assert_eq!(world.claim("w1", 99), 1);
    assert_eq!(world.throttle.next_wake(), None, "nobody is held up, so nobody wakes");
}

/// D23, AB-1: a run that is held up says by which rule, how many execute, and when the next may begin.
#[test]
fn a_held_up_run_names_the_rule() {
    let mut world = world(1, vec![cap(queue("mail"), 1), rate(Scope::Workflow("other".into()), 1, 60_000)]);
    let other = || StartSpec { workflow: "other".into(), ..flow() };
    let (_, second) = (world.start(mail()), world.start(mail()));
    let (_, fourth) = (world.start(other()), world.start(other()));
    assert_eq!(world.claim("w1", 99), 2);
    world.now = world.now.after(900);
    let capped = told(&world, second);
    assert_eq!(capped.reason.code(), "cap_reached");
    assert_eq!(
        capped.sentence,
        "step (the first) is ready since 900 ms, but queue mail executes 1 attempts, and 1 at most"
    );
    let rated = told(&world, fourth);
    assert_eq!(rated.reason.code(), "rate_reached");
    assert!(
        rated.sentence.ends_with("workflow other begins 1 attempts in 1 min at most: the next may begin in 59 s"),
        "{}",
        rated.sentence
    );
    let evidence = |name: &str| rated.evidence.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    assert_eq!(evidence("limit_running"), Some("1"));
    assert_eq!(evidence("limit_rate"), Some("1 per 60000 ms"));
}

/// D23: whatever happens in whatever order, a cap is never passed, and no place is lost: in the end all runs end.
#[test]
fn no_place_is_lost_and_none_is_given_twice() {
    for seed in 1..=12u64 {
        let mut world = world(2, vec![cap(queue("mail"), 3), cap(Scope::Workflow("flow".into()), 4)]);
        let mut runs = Vec::new();
        let mut random = seed;
        for _ in 0..150 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (random >> 33) as usize;
            disturb(&mut world, &mut runs, pick);
            let of_queue = |run: &&RunId| &*world.folded(**run).expect("a run").started.spec.queue == "mail";
            assert!(running(&world).len() <= 4, "seed {seed}");
            assert!(running(&world).iter().filter(of_queue).count() <= 3, "seed {seed}");
        }
        for _ in 0..200 {
            world.claim("w1", 99);
            for run in running(&world) {
                world.submit(complete(&world, run, done()));
            }
            for run in &runs {
                let request = world.request();
                world.submit(signal(*run, "go", request));
            }
        }
        assert!(runs.iter().all(|run| world.folded(*run).expect("a run").end.is_some()), "seed {seed}");
        check(&world);
    }
}

/// One thing of many that may happen.
fn disturb(world: &mut World, runs: &mut Vec<RunId>, pick: usize) {
    let held = running(world);
    let one = (!held.is_empty()).then(|| held[pick / 16 % held.len()]);
    match (pick % 16, one) {
        (0..=2, _) => runs.push(world.start(mail())),
        (3, _) => runs.push(world.start(StartSpec { queue: "mail".into(), ..limited("k") })),
        (4, _) => runs.push(world.start(flow())),
        (5..=8, _) => {
            world.claim("w1", pick / 16 % 4 + 1);
        }
        (9, Some(run)) => {
            world.submit(complete(world, run, awaiting("go")));
        }
        (10, Some(run)) => {
            world.submit(complete(world, run, next("more")));
        }
        (11, Some(run)) => {
            world.submit(complete(world, run, done()));
        }
        (12, Some(run)) => {
            let request = world.request();
            world.submit(cancel(run, request, false));
        }
        (13, _) => world.tick(2_000),
        (14, _) => world.flush(),
        (15, _) if (pick / 16).is_multiple_of(4) => world.crash(Crash::AfterAppend),
        _ => {}
    }
    let executing = |run: &RunId| {
        let folded = world.folded(*run).expect("a run");
        folded.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_)))
    };
    assert!(running(world).iter().all(executing), "memory and log agree on who executes");
}

/// AB-18: a queue of one namespace can be paused and resumed at any time; what executes goes on, and is still counted.
#[test]
fn rules_change_while_attempts_execute() {
    let scope = Scope::QueueOf { namespace: flow().namespace, queue: "mail".into() };
    for shards in [1, 4] {
        let mut world = world(shards, vec![cap(queue("mail"), 3)]);
        let runs = start_all(&mut world, 6, &mail());
        world.go_by(vec![cap(scope.clone(), 0)]);
        assert_eq!(world.claim("w1", 3), 0, "also when nothing of it ever began");
        world.go_by(vec![cap(queue("mail"), 3)]);
        assert_eq!(world.claim("w1", 3), 3);
        start_all(&mut world, 2, &flow());
        let elsewhere = Scope::QueueOf { namespace: "elsewhere".into(), queue: "mail".into() };
        world.go_by(vec![cap(queue("mail"), 4), cap(scope.clone(), 0), cap(elsewhere, 0)]);
        assert_eq!(world.claim("w1", 99), 2, "only what is in another queue");
        let waiting = runs.iter().find(|run| !running(&world).contains(run)).expect("one that waits");
        assert_eq!(told(&world, *waiting).reason.code(), "queue_paused");
        world.go_by(vec![cap(queue("mail"), 4)]);
        world.claim("w1", 99);
        assert_eq!(running_of(&world, &runs), 4, "those that executed all along count");
        check(&world);
    }
}

fn running_of(world: &World, runs: &[RunId]) -> usize {
    running(world).iter().filter(|run| runs.contains(run)).count()
}
