//! Children and joins: every child counts once, however often word of it comes, wherever it and its parent are.

use crate::support::act::{awaiting, cancel, complete, completing, done, flow, keyed, limited, payload, show, spawn};
use crate::support::{Crash, Hand, World, check};
use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::limits::CHILDREN_MAX;
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::{child, complete};
use abide_kernel::{
    ChildAnswer, ChildAnswered, ChildEnd, ChildEnded, Concurrency, ErrorInfo, Fact, Meta, Outcome, Phase, RunId, Seq,
    StartSpec, Status, TraceContext, WaitKind,
};

fn world(shards: u16) -> World {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// A spec whose run lives in another shard than `run`.
fn elsewhere(world: &World, run: RunId) -> StartSpec {
    (0..99)
        .map(|n| limited(&format!("c{n}")))
        .find(|spec| {
            let slot = spec.home_slot(abide_kernel::RequestId::new(world.now, 1));
            usize::from(world.map.home(slot).0) != world.home(run)
        })
        .expect("a key that lives elsewhere")
}

fn children(world: &World, run: RunId) -> Vec<RunId> {
    let run = world.folded(run).expect("a run");
    run.children.iter().map(|child| child.id).collect()
}

fn pending(world: &mut World, run: RunId) -> u32 {
    match &show(world, run).cursors[0].phase {
        Phase::Waiting(wait) => match &wait.kind {
            WaitKind::Children(barrier) => barrier.pending,
            other => panic!("it waits for {other:?}"),
        },
        other => panic!("it does not wait: {other:?}"),
    }
}

/// GD-59, GD-61: word of a child's end that comes twice, by the same envelope or by another one, counts once.
#[test]
fn a_child_counts_once_however_often_word_comes() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    let spec = elsewhere(&world, parent);
    world.ask(complete(&world, parent, spawn(vec![spec, flow()])));
    let [far, near] = children(&world, parent)[..] else { panic!("two children") };
    world.claim("w1", 9);
    world.wire_held = true;
    world.ask(complete(&world, far, done()));
    let sent: Vec<Envelope> = world.wire.iter().cloned().collect();
    assert!(sent.iter().any(|e| matches!(e.message, Message::ChildEnded { .. })));
    for envelope in sent.iter().chain(&sent) {
        world.shards[usize::from(envelope.to.0)].receive(world.now, envelope.clone());
    }
    // A second envelope with the same word: the cursor cannot tell, the run can.
    let home = world.home(parent);
    let from = world.home(far);
    let number = world.disks[from].outbox.iter().filter(|e| usize::from(e.to.0) == home).count() as u64;
    let again = Envelope {
        number: number + 1,
        ..sent.iter().find(|e| matches!(e.message, Message::ChildEnded { .. })).expect("word of the end").clone()
    };
    world.shards[home].receive(world.now, again);
    world.settle();
    assert_eq!(pending(&mut world, parent), 1, "the other child is still waited for");
    world.ask(complete(&world, near, done()));
    assert_eq!(show(&mut world, parent).status(), Status::Runnable);
    check::check(&world);
}

/// GD-59: the count-down rides the child's terminal commit: with that batch lost, neither happened; kept, both did.
#[test]
fn the_count_down_rides_the_childs_end() {
    for how in [Crash::BeforeAppend, Crash::AfterAppend] {
        for shards in [1, 4] {
            let mut world = world(shards);
            let parent = world.start(flow());
            world.claim("w1", 1);
            let spec = match shards {
                1 => flow(),
                _ => elsewhere(&world, parent),
            };
            world.ask(complete(&world, parent, spawn(vec![spec])));
            let child = children(&world, parent)[0];
            world.claim("w1", 1);
            let end = complete(&world, child, done());
            world.held = true;
            world.submit(end.clone());
            world.held = false;
            world.crash(how);
            let ended = show(&mut world, child).end.is_some();
            assert_eq!(ended, how == Crash::AfterAppend);
            let woken = show(&mut world, parent).status() == Status::Runnable;
            assert_eq!(woken, ended, "over {shards} shards");
            world.ask(end);
            assert_eq!(show(&mut world, parent).status(), Status::Runnable);
            check::check(&world);
        }
    }
}

/// GD-61, SQ-29: a parent that has left memory comes back for each of its children, and is released by the last.
#[test]
fn a_cold_parent_is_joined() {
    for shards in [1, 4] {
        let mut world = world(shards);
        let parent = world.start(flow());
        world.claim("w1", 1);
        let spec = match shards {
            1 => flow(),
            _ => elsewhere(&world, parent),
        };
        world.ask(complete(&world, parent, spawn(vec![spec, flow(), flow()])));
        for child in children(&world, parent) {
            world.claim("w1", 9);
            world.flush();
            let home = world.home(parent);
            assert!(world.shards[home].run(parent).is_none(), "the parent is cold");
            world.ask(complete(&world, child, done()));
        }
        let shown = show(&mut world, parent);
        assert_eq!(shown.status(), Status::Runnable);
        assert_eq!(shown.cursors[0].step.as_deref(), Some("joined"));
        check::check(&world);
    }
}

/// GD-56, SE-22: the children begin in the commit of the park, so no child can end before its barrier exists.
#[test]
fn children_begin_with_the_park() {
    let mut world = world(1);
    // An id from the very instant of the opening is looked up first, which takes another batch.
    world.tick(1);
    let parent = world.start(flow());
    world.claim("w1", 1);
    let spawned = complete(&world, parent, spawn(vec![flow(), flow()]));
    world.held = true;
    world.submit(spawned);
    assert_eq!(world.claim("w1", 9), 2, "decided, and not dispatched");
    assert!(!world.dispatches.keys().any(|run| *run != parent));
    world.held = false;
    world.crash(Crash::BeforeAppend);
    assert_eq!(children(&world, parent), [], "none of it happened");
    world.claim("w1", 9);
    let before = world.disks[0].rows.len();
    world.tick(1_000);
    world.claim("w1", 9);
    world.ask(complete(&world, parent, spawn(vec![flow(), flow()])));
    let batch: Vec<Fact> = world.disks[0].rows[before..].iter().flat_map(|row| row.facts.iter().cloned()).collect();
    assert_eq!(batch.iter().filter(|f| f.kind() == "started").count(), 2);
    assert_eq!(world.claim("w1", 9), 2);
}

/// GD-63, SQ-51, SQ-52: the joined step sees every child with its state and result, and sees them again when it is
/// run again; parent and child each hold the link.
#[test]
fn the_joined_step_sees_its_children_every_time() {
    let mut world = world(1);
    let parent = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, parent, spawn(vec![flow()])));
    let child = children(&world, parent)[0];
    world.claim("w1", 1);
    world.ask(complete(&world, child, Outcome::Done { result: payload(r#"{"n":7}"#) }));
    for attempt in 0..2 {
        world.claim("w1", 1);
        let seen = world.dispatches[&parent].clone();
        assert_eq!(seen.reclaims, attempt);
        let Some(ChildEnd::Ended { status, state, result, error }) = &seen.children[0].end else {
            panic!("it ended");
        };
        assert_eq!((*status, state.text()), (Status::Done, "{}"));
        assert_eq!(result.as_ref().map(|result| result.text()), Some(r#"{"n":7}"#));
        assert!(error.is_none());
        world.tick(1_000);
    }
    let link = show(&mut world, child).started.parent.clone().expect("a parent");
    assert_eq!((link.run, &*link.step, link.attempt), (parent, "begin", 0));
    let known = &show(&mut world, parent).children[0];
    assert_eq!((&*known.workflow, &*known.step), ("flow", "begin"));
    let row = world.disks[0].rows.iter().find_map(|row| {
        row.facts.iter().find_map(|fact| match fact {
            Fact::ChildStarted(started) => Some(started.clone()),
            _ => None,
        })
    });
    let started = row.expect("the lineage is a fact of the parent");
    assert_eq!((started.child, started.turn, started.version), (child, 1, 1));
}

/// D12: word to a child that is still on its way by its key's home does not overtake it. It used to find nobody, and
/// the child began after its parent had been cancelled.
#[test]
fn a_cancel_does_not_overtake_the_child_it_is_for() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    // Key, concurrency key and parent in three different shards.
    let spec = (0..999)
        .map(|n| StartSpec {
            key: keyed(&format!("k{}", n % 30)).key,
            concurrency: Some(Concurrency { key: format!("c{}", n / 30).into(), limit: 1 }),
            ..flow()
        })
        .find(|spec| {
            let request = abide_kernel::RequestId::new(world.now, 1);
            let home = usize::from(world.map.home(spec.home_slot(request)).0);
            let admission = usize::from(world.map.home(spec.admission_slot(request)).0);
            home != admission && home != world.home(parent) && admission != world.home(parent)
        })
        .expect("such keys");
    world.wire_held = true;
    world.ask(complete(&world, parent, spawn(vec![spec])));
    let child = children(&world, parent)[0];
    let request = world.request();
    world.ask(cancel(parent, request, true));
    // The envelopes arrive sender by sender in every order that keeps each sender's own.
    while let Some(envelope) = world.wire.pop_back() {
        let behind = world.wire.iter().position(|e| (e.from, e.to) == (envelope.from, envelope.to));
        let envelope = match behind {
            Some(first) => {
                let earlier = world.wire.remove(first).expect("an envelope");
                world.wire.push_back(envelope);
                earlier
            }
            None => envelope,
        };
        world.shards[usize::from(envelope.to.0)].receive(world.now, envelope);
        world.settle();
    }
    world.wire_held = false;
    world.settle();
    assert_eq!(show(&mut world, child).status(), Status::Cancelled);
    assert_eq!(world.claim("w1", 9), 0);
    check::check(&world);
}

/// SQ-54: word from a child that the parent never asked for changes nothing; word to runs that are gone is dropped.
#[test]
fn words_that_fit_nothing_change_nothing() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, parent, awaiting("go")));
    let ended = ChildEnded { child: RunId(1), status: Status::Done, state: payload("{}"), result: None, error: None };
    let home = world.home(parent);
    let sender = (home + 1) % 4;
    let gone = RunId::new(world.now, parent.slot(), 999);
    let messages = [
        Message::ChildEnded { parent, ended: Box::new(ended.clone()) },
        Message::ChildEnded { parent: gone, ended: Box::new(ended) },
        Message::Begun { reservation: gone },
        Message::KeyFreed { reservation: gone },
        Message::ParentPurged { run: parent, parent: gone },
        Message::ParentPurged { run: gone, parent },
    ];
    let rows = world.disks[home].rows.len();
    for (index, message) in messages.into_iter().enumerate() {
        let envelope = Envelope {
            from: abide_kernel::ShardId(sender as u16),
            to: abide_kernel::ShardId(home as u16),
            number: index as u64 + 1,
            message,
        };
        world.shards[home].receive(world.now, envelope);
        world.settle();
    }
    assert_eq!(world.disks[home].rows.len(), rows, "nothing happened");
    assert_eq!(world.disks[home].consumed[sender], 6, "and all of it is consumed");
    assert!(!show(&mut world, parent).orphaned);
    assert!(matches!(world.ask(Command::Show { run: gone }), Answer::Refused(_)));
}

/// GD-62, GD-66: each level has its own barrier, and no step that spawned is run again.
#[test]
fn barriers_nest_and_spawning_steps_are_not_repeated() {
    let mut world = world(4);
    let mut path = vec![world.start(flow())];
    for _ in 0..4 {
        let parent = *path.last().expect("a run");
        world.claim("w1", 1);
        let spec = elsewhere(&world, parent);
        world.ask(complete(&world, parent, spawn(vec![spec])));
        path.push(children(&world, parent)[0]);
    }
    for run in path.iter().rev() {
        world.claim("w1", 9);
        world.ask(complete(&world, *run, done()));
    }
    for run in &path[..4] {
        let shown = show(&mut world, *run);
        assert_eq!((shown.status(), shown.children.len()), (Status::Done, 1));
        assert_eq!(shown.cursors[0].step.as_deref(), Some("joined"));
    }
}

/// SE-20, SE-33: envelopes are consumed in order and once: one that comes early waits to be sent again, one that comes
/// twice moves nothing.
#[test]
fn envelopes_are_consumed_in_order_and_once() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, parent, awaiting("go")));
    let home = world.home(parent);
    let sender = (home + 1) % 4;
    let envelope = |number| Envelope {
        from: abide_kernel::ShardId(sender as u16),
        to: abide_kernel::ShardId(home as u16),
        number,
        message: Message::ParentPurged { run: parent, parent: RunId(1) },
    };
    let consumed = |world: &mut World, number| {
        world.shards[home].receive(world.now, envelope(number));
        let moved = world.shards[home].wants_append();
        world.settle();
        (moved, world.disks[home].consumed[sender])
    };
    assert_eq!(consumed(&mut world, 2), (false, 0), "the first is missing");
    assert_eq!(consumed(&mut world, 1), (true, 1));
    assert_eq!(consumed(&mut world, 1), (false, 1), "again");
    assert_eq!(consumed(&mut world, 2), (true, 2));
    world.crash(Crash::BeforeAppend);
    assert_eq!(consumed(&mut world, 2), (false, 2), "the cursor is durable");
    assert_eq!(consumed(&mut world, 3), (true, 3));
}

/// A child belongs to its parent's tenant and trace, whatever its spec says, knows which attempt began it, and is admitted
/// by its own shard unless it has a key that lives elsewhere. Its end brings its error along.
#[test]
fn a_child_knows_where_it_comes_from() {
    let mut world = world(4);
    let parent = world.start(StartSpec { namespace: "acme".into(), ..flow() });
    assert_eq!(world.claim("w1", 1), 1);
    world.tick(1_000);
    assert_eq!(world.claim("w1", 1), 1, "the worker was lost once");
    let command = complete(&world, parent, spawn(vec![flow(), elsewhere(&world, parent)]));
    world.ask(command);
    let links = world.folded(parent).expect("a run").children;
    assert!(links.iter().all(|child| child.admission.is_none()), "none of them has a key");
    for link in &links {
        let child = world.folded(link.id).expect("a child").started.clone();
        assert_eq!(&*child.spec.namespace, "acme");
        let started = &world.folded(parent).expect("a run").started;
        assert_eq!(child.spec.trace, Some(TraceContext::of_run(parent, started)));
        let from = child.parent.as_ref().expect("a parent");
        assert_eq!((from.run, &*from.step, from.attempt), (parent, "begin", 1));
    }
    while world.claim("w1", 1) > 0 {}
    let command = complete(&world, links[0].id, Outcome::Stop { error: ErrorInfo::terminal("broken", "x") });
    world.ask(command);
    let end = show(&mut world, parent).children[0].end.clone();
    let Some(ChildEnd::Ended { error: Some(error), .. }) = end else { panic!("expected its error, found {end:?}") };
    assert_eq!(&*error.code, "broken");
}

/// SQ-54: word that a child was not inserted counts once, and only for a child that was asked for.
#[test]
fn an_answer_counts_for_the_child_it_is_about() {
    let mut world = world(1);
    let parent = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, parent, spawn(vec![flow()])));
    let mut run = world.folded(parent).expect("a run");
    let answered = |child: RunId| ChildAnswered { child, answer: ChildAnswer::Rejected("no".into()) };
    assert!(child::decide_answered(&run, answered(RunId(1))).is_empty(), "nobody asked for that one");
    let only = run.children[0].id;
    let transition = child::decide_answered(&run, answered(only));
    assert_eq!(transition.facts.iter().map(Fact::kind).collect::<Vec<_>>(), ["child_answered", "woken", "scheduled"]);
    for fact in &transition.facts {
        run.apply(fact, Meta { seq: Seq(9), at: world.now });
    }
    assert!(child::decide_answered(&run, answered(only)).is_empty(), "that was known");
}

/// A run may have so many children, over all its steps.
#[test]
fn children_are_bounded() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, spawn(vec![flow()])));
    while world.claim("w1", 1) > 0 {}
    let child = children(&world, run)[0];
    world.ask(complete(&world, child, done()));
    assert_eq!(world.claim("w1", 1), 1);
    let state = world.folded(run).expect("a run");
    let spawning = |count: usize| completing(&world, run, spawn(vec![flow(); count]));
    assert!(complete::decide(&state, &spawning(CHILDREN_MAX - 1), world.now).is_ok());
    let found = complete::decide(&state, &spawning(CHILDREN_MAX), world.now).expect_err("one too many");
    assert_eq!(found.code(), "too_large");
}
