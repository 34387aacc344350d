//! Records that cannot be read: what needs them is refused or set aside, and nothing is guessed.

use crate::support::act::{complete, done, flow, keyed, start};
use crate::support::{Hand, World, token};
use abide_kernel::shard::{Answer, Command, Load, Loaded, Ticket};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::{Refusal, RunId, Seq};

fn world(shards: u16) -> World {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// The load of a key that is waiting, after those that come before it, and the shard it waits in.
fn key_load(world: &mut World) -> (usize, String) {
    loop {
        if let Some((shard, Load::Key(identity))) = world.waiting_loads.front().cloned() {
            world.waiting_loads.pop_front();
            return (shard, identity);
        }
        assert!(world.load_one(), "the key is looked for");
        world.settle();
    }
}

/// SQ-15: a start under a key whose holder cannot be read is refused, and names the damaged run.
#[test]
fn a_key_whose_holder_is_damaged_is_not_given_away() {
    let mut world = world(1);
    world.loads_held = true;
    let request = world.request();
    let ticket = world.submit(start(request, keyed("k")));
    let (shard, identity) = key_load(&mut world);
    let holder = (RunId(7), Loaded::Corrupt("bad row".into()));
    world.shards[shard].loaded_key(world.now, &identity, Some(holder));
    world.settle();
    match world.answer(ticket) {
        Some(Answer::Refused(Refusal::Corrupt { run: RunId(7), found })) => assert_eq!(found, "bad row"),
        other => panic!("expected a refusal that names the damaged run, found {other:?}"),
    }
    assert!(world.disks[0].rows.is_empty(), "nothing is written");
}

/// SQ-15, SE-41: a child under such a key is neither begun nor forgotten: its message is a dead letter.
#[test]
fn a_child_under_a_damaged_key_becomes_a_dead_letter() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    world.loads_held = true;
    let claim = world.dispatches[&parent].claim.number;
    let spec = keyed("k");
    let starting = StartingChild { claim, token: token("w1"), key: "c".into(), spec, metadata: None };
    world.submit(Command::StartChild { run: parent, starting: Box::new(starting) });
    let (shard, identity) = key_load(&mut world);
    let holder = (RunId(7), Loaded::Corrupt("bad row".into()));
    world.shards[shard].loaded_key(world.now, &identity, Some(holder));
    world.settle();
    let dead: Vec<&str> = world.disks[shard].dead.values().map(|dead| &*dead.reason).collect();
    assert_eq!(dead, ["bad row"]);
}

/// SQ-15: index rows never count as complete beyond a damaged row, so that no later opening forgets the damage.
#[test]
fn the_watermark_stays_before_a_damaged_row() {
    let mut world = world(1);
    for _ in 0..4 {
        world.start(flow());
    }
    world.shards[0].hold_watermark(Seq(3));
    world.shards[0].hold_watermark(Seq(4));
    let flush = world.shards[0].flush().expect("index rows");
    assert_eq!((flush.through, flush.records.len()), (Seq(2), 4));
}

/// D36: what a listing adds from memory counts runs whose index rows are being written, and knows who is gone.
#[test]
fn a_listing_sees_what_is_being_written() {
    let mut world = world(1);
    let runs = [world.start(flow()), world.start(flow())];
    let unflushed = |world: &mut World| match world.ask(Command::Unflushed) {
        Answer::Unflushed(unflushed) => (unflushed.records.iter().map(|r| r.run).collect::<Vec<_>>(), unflushed.gone),
        other => panic!("expected what is not written yet, found {other:?}"),
    };
    assert_eq!(unflushed(&mut world), (runs.to_vec(), vec![]));
    let flush = world.shards[0].flush().expect("index rows");
    assert_eq!(unflushed(&mut world), (runs.to_vec(), vec![]), "it is not written yet");
    drop(flush);
    world.claim("w1", 1);
    let ending = complete(&world, runs[0], done());
    world.ask(ending);
    world.ask(Command::Purge { run: runs[0] });
    assert_eq!(unflushed(&mut world), (vec![runs[1]], vec![runs[0]]));
    world.held = true;
    world.start(flow());
    let ticket = world.submit(Command::Unflushed);
    assert_eq!(world.answer(ticket), None, "the new run is not durable yet");
    world.durable();
    assert!(world.answer(ticket).is_some());
}

/// Whoever no longer wants to know of a run's end is forgotten.
#[test]
fn a_watcher_who_leaves_is_forgotten() {
    let mut world = world(1);
    let run = world.start(flow());
    let watching: Vec<Ticket> = (0..2).map(|_| world.submit(Command::Watch { run })).collect();
    world.shards[0].unwatch(run, watching[0]);
    world.claim("w1", 1);
    let ending = complete(&world, run, done());
    world.ask(ending);
    assert_eq!(world.answer(watching[0]), None);
    assert!(matches!(world.answer(watching[1]), Some(Answer::Ended(_))));
}
