//! The journal read by thread: which facts belong where, and projections rebuilt from those facts alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::act::{awaiting, cancel, complete, done, flow, keyed, next, payload, signal, spawn};
use crate::support::{BASE, Hand, World, token};
use abide_kernel::shard::Command;
use abide_kernel::thread::{Catalog, Dispatch, Entry, Standing, Thread, threads};
use abide_kernel::transition::fail::Failing;
use abide_kernel::{ErrorInfo, Fact, Row, RunId, Started, Str};

/// Every thread of the world's logs, with its entries in order.
fn by_thread(rows: &[Row]) -> BTreeMap<Thread, Vec<Entry<'_>>> {
    let mut begun: BTreeMap<RunId, &Started> = BTreeMap::new();
    let mut found: BTreeMap<Thread, Vec<Entry<'_>>> = BTreeMap::new();
    for row in rows {
        for fact in &row.facts {
            if let Fact::Started(started) = fact {
                begun.insert(row.run, started);
            }
            let entry = Entry { run: row.run, seq: row.seq, at: row.at, fact };
            for thread in threads(row.run, begun[&row.run], fact) {
                found.entry(thread).or_default().push(entry);
            }
        }
    }
    found
}

fn kinds(entries: &[Entry<'_>]) -> Vec<&'static str> {
    entries.iter().map(|entry| entry.fact.kind()).collect()
}

/// A parent with a key and a secret input, one child, one signal, one heartbeat and one lost worker.
fn story() -> (World, RunId, RunId) {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow", "kid"]));
    let mut spec = keyed("order-17");
    spec.input = payload(r#"{"card":"4111"}"#);
    let run = world.start(spec);
    world.claim("w1", 1);
    let mut kid = flow();
    kid.workflow = "kid".into();
    kid.queue = "kids".into();
    world.ask(complete(&world, run, spawn(vec![kid])));
    let child = world.folded(run).expect("a run").children[0].id;
    let request = world.request();
    world.ask(signal(run, "note", request));
    (world, run, child)
}

/// SQ-5: a thread's id is derived from what it is about, and reads back.
#[test]
fn thread_ids_are_derived() {
    let (_, run, _) = story();
    let names = [
        (Thread::Run(run), format!("run:{run}")),
        (Thread::Dispatch("default".into()), "dispatch:default".into()),
        (Thread::RunIndex("flow".into()), "run_index:flow".into()),
        (Thread::Catalog, "run_catalog".into()),
    ];
    for (thread, name) in names {
        assert_eq!(thread.to_string(), name);
        assert_eq!(name.parse::<Thread>(), Ok(thread));
    }
    for bad in ["", "run:", "run:7", "dispatch:", "queue:default", "run_index"] {
        assert!(bad.parse::<Thread>().is_err(), "{bad:?}");
    }
}

/// SQ-1, SQ-2: the run's thread holds its life, the queue's thread the attempts.
#[test]
fn facts_belong_to_the_thread_of_their_subject() {
    let (world, run, _) = story();
    let all = by_thread(&world.disks[0].rows);
    assert_eq!(
        kinds(&all[&Thread::Run(run)]),
        ["started", "pinned", "completed", "child_started", "applied", "signal_received"]
    );
    assert_eq!(kinds(&all[&Thread::Dispatch("default".into())]), ["scheduled", "claimed", "completed"]);
    assert_eq!(kinds(&all[&Thread::Dispatch("kids".into())]), ["scheduled"]);
}

/// SQ-3, SQ-4: runs are found by workflow and by business key, and listed redacted, with the queue that explains them.
#[test]
fn the_index_and_the_catalog_find_runs_and_show_no_payload() {
    let (mut world, run, child) = story();
    let request = world.request();
    world.ask(cancel(child, request, false));
    let all = by_thread(&world.disks[0].rows);
    let index = Catalog::fold(all[&Thread::RunIndex("flow".into())].iter().copied());
    assert_eq!(index.by_key("order-17"), [run]);
    assert_eq!(index.list().count(), 1);
    let catalog = Catalog::fold(all[&Thread::Catalog].iter().copied());
    let listed: Vec<(RunId, Str, Str, bool)> =
        catalog.list().map(|s| (s.run, s.workflow.clone(), s.queue.clone(), s.ended.is_some())).collect();
    assert_eq!(listed, [(run, "flow".into(), "default".into(), false), (child, "kid".into(), "kids".into(), true)]);
    let shown = format!("{:?}", catalog.list().collect::<Vec<_>>());
    assert!(!shown.contains("4111") && !shown.contains("order-17"), "{shown}");
}

/// SQ-6, SQ-7, SQ-35: a queue's projection is rebuilt from its thread alone: what is visible, and which claims expired.
#[test]
fn a_queue_is_rebuilt_from_its_thread_alone() {
    let (mut world, run, _) = story();
    let second = world.start(flow());
    world.claim("w1", 1);
    let third = world.start(flow());
    let all = by_thread(&world.disks[0].rows);
    let queue = Dispatch::fold(all[&Thread::Dispatch("default".into())].iter().copied());
    assert_eq!(queue.visible(world.now), [(third, 0)]);
    assert_eq!(queue.expired(world.now), []);
    assert_eq!(queue.expired(world.now.after(1_000)), [(second, 0)]);
    assert_eq!(queue.attempt(run, 0).expect("an attempt").standing, Standing::Over);
    // The engine finds the same.
    world.tick(1_000);
    let all = by_thread(&world.disks[0].rows);
    let queue = Dispatch::fold(all[&Thread::Dispatch("default".into())].iter().copied());
    let mut visible = queue.visible(world.now);
    visible.sort();
    let mut expected = [(second, 0), (third, 0)];
    expected.sort();
    assert_eq!(visible, expected);
    assert_eq!(world.claim("w1", 9), 2);
}

/// SQ-33, SQ-34: a heartbeat moves the lease of its own claim; a stale one changes nothing in the projection.
#[test]
fn a_heartbeat_moves_only_its_own_claim() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    let entries: Vec<Row> = world.disks[0].rows.clone();
    let beat =
        |claim| Fact::Heartbeat(abide_kernel::Heartbeat { cursor: 0, claim, lease_until: world.now.after(5_000) });
    for (claim, expired) in [(1, 0), (9, 1)] {
        let fact = beat(claim);
        let all =
            entries.iter().flat_map(|row| row.facts.iter().map(|fact| Entry { run, seq: row.seq, at: row.at, fact }));
        let last = Entry { run, seq: abide_kernel::Seq(99), at: world.now, fact: &fact };
        let queue = Dispatch::fold(all.chain([last]));
        assert_eq!(queue.expired(world.now.after(1_000)).len(), expired);
    }
}

/// SQ-60, SQ-63: the end is the run's thread to tell; its attempts are hidden, and the queue still explains them.
#[test]
fn the_end_of_a_run_hides_its_attempts() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let visible = world.start(flow());
    let claimed = world.start(flow());
    world.claim("w1", 1);
    for run in [visible, claimed] {
        let request = world.request();
        world.ask(cancel(run, request, false));
    }
    let all = by_thread(&world.disks[0].rows);
    let thread = &all[&Thread::Dispatch("default".into())];
    assert!(!kinds(thread).contains(&"ended"));
    let mut queue = Dispatch::fold(thread.iter().copied());
    let later = world.now.after(10_000);
    assert_eq!((queue.visible(later).len(), queue.expired(later).len()), (1, 1));
    for entry in &all[&Thread::Catalog] {
        if matches!(entry.fact, Fact::Ended(_)) {
            queue.end(entry.run);
        }
    }
    assert_eq!((queue.visible(later).len(), queue.expired(later).len()), (0, 0));
    assert!(matches!(queue.attempt(visible, 0).expect("an attempt").standing, Standing::Claimed { claim: 1, .. }));
    assert_eq!(world.claim("w1", 9), 0);
}

/// SQ-2, SQ-46: an attempt's whole life on its queue: given back it keeps its place, failed it is visible later.
#[test]
fn the_dispatch_thread_follows_every_turn() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, next("pay")));
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    let queue = |world: &World| {
        let rows = world.disks[0].rows.clone();
        let all = by_thread(&rows);
        Dispatch::fold(all[&Thread::Dispatch("default".into())].iter().copied())
    };
    assert_eq!(queue(&world).visible(world.now), []);
    assert_eq!(queue(&world).attempt(run, 0).expect("an attempt").turn, 2);
    let request = world.request();
    world.ask(signal(run, "go", request));
    assert_eq!(queue(&world).visible(world.now), [(run, 0)]);
    world.claim("w1", 1);
    let Standing::Claimed { by, .. } = queue(&world).attempt(run, 0).expect("an attempt").standing.clone() else {
        panic!("it is claimed");
    };
    assert_eq!(&*by.expect("a claimant").owner, "w1", "although the fact does not repeat it");
    world.ask(complete(&world, run, done()));
    assert_eq!(queue(&world).visible(world.now), []);
}

/// The facts of a run that was given back, lost, failed and set aside, one after the other, with what its queue says then.
#[test]
fn a_queue_follows_an_attempt_to_its_end() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    let standing = |world: &World| {
        let all = by_thread(&world.disks[0].rows);
        let queue = Dispatch::fold(all[&Thread::Dispatch("default".into())].iter().copied());
        queue.attempt(run, 0).expect("an attempt").standing.clone()
    };
    let fails = |world: &World, set_aside: bool| {
        let failing = Failing {
            claim: world.dispatches[&run].claim.number,
            token: token("w1"),
            error: Arc::new(ErrorInfo::retryable("down", "x")),
            retry: None,
            seed: 1,
            entries: Vec::new(),
            reopen: Vec::new(),
            set_aside,
        };
        Command::Fail { run, failing: Box::new(failing) }
    };
    let scheduled = standing(&world);
    world.tick(10);
    world.claim("w1", 1);
    let Standing::Claimed { visible_at, lease_until, .. } = standing(&world) else { panic!("it is claimed") };
    assert_eq!((visible_at, lease_until), (BASE, BASE.after(1_010)), "it could be claimed since it was scheduled");
    world.ask(Command::GiveBack { claim: world.dispatches[&run].claim, token: token("w1") });
    assert_eq!(standing(&world), scheduled, "it stands where it stood");
    world.claim("w1", 1);
    let command = fails(&world, true);
    world.ask(command);
    assert_eq!(standing(&world), Standing::DeadLettered);
    world.ask(Command::Requeue { run });
    world.claim("w1", 1);
    // A worker that is lost, and one that fails: the attempt is over until the next is scheduled.
    let over = |world: &World, kind: &str| {
        let rows = &world.disks[0].rows;
        let mut cut: Vec<Row> = rows.clone();
        let last = cut.last_mut().expect("a row");
        let end = last.facts.iter().position(|fact| fact.kind() == kind).expect("its fact");
        last.facts.truncate(end + 1);
        let all = by_thread(&cut);
        let queue = Dispatch::fold(all[&Thread::Dispatch("default".into())].iter().copied());
        queue.attempt(run, 0).expect("an attempt").standing == Standing::Over
    };
    world.tick(1_000);
    assert!(over(&world, "expired"));
    world.claim("w1", 1);
    let command = fails(&world, false);
    world.ask(command);
    assert!(over(&world, "failed"));
}

/// The catalog lists runs that were compacted as they were, and forgets those that were purged; a record that only
/// holds a key is none.
#[test]
fn the_catalog_knows_what_was_compacted_and_purged() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let runs = [world.start(keyed("a")), world.start(keyed("b"))];
    for run in runs {
        let request = world.request();
        world.tick(10);
        world.ask(cancel(run, request, false));
    }
    let whole = world.folded(runs[0]).expect("a run");
    let entry = |run: RunId, fact| Entry { run, seq: abide_kernel::Seq(99), at: world.now.after(99), fact };
    let (compacted, purged) = (Fact::Compacted(Box::new(whole.clone())), Fact::Purged);
    let mut held = (*whole.started).clone();
    held.reserves = Some(runs[1]);
    let holder = Fact::Started(Box::new(held));
    let all: Vec<Entry<'_>> = world.disks[0]
        .rows
        .iter()
        .flat_map(|row| row.facts.iter().map(|fact| Entry { run: row.run, seq: row.seq, at: row.at, fact }))
        .collect();
    let catalog = |more: Vec<Entry<'_>>| Catalog::fold(all.iter().copied().chain(more));
    let listed = |catalog: &Catalog| catalog.list().map(|summary| summary.run).collect::<Vec<_>>();
    let fresh = Catalog::fold([entry(runs[0], &compacted)]);
    let summary = fresh.list().next().expect("a run");
    assert_eq!(summary.created_at, BASE, "and not when it was compacted");
    assert_eq!(summary.ended, whole.end.as_ref().map(|end| (end.status, end.at)));
    let purged = catalog(vec![entry(runs[0], &purged)]);
    assert_eq!((listed(&purged), purged.by_key("a").len(), purged.by_key("b").len()), (vec![runs[1]], 0, 1));
    assert_eq!(listed(&catalog(vec![entry(RunId(1), &holder)])), runs);
}
