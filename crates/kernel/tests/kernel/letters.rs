//! Dead letters: envelopes that were set aside come back, or are given up, once, in one batch with what follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::act::{awaiting, complete, flow, show};
use crate::support::{Crash, Hand, World};
use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::shard::{Answer, Batch, Command, Loaded, Settling};
use abide_kernel::{ErrorInfo, LetterId, Refusal, RunId, ShardId, Status};

/// A run that waits, and a dead letter that would end it: its record could not be read when the envelope came.
fn world_with_letter() -> (World, RunId, LetterId) {
    let mut world = World::new(2);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    world.flush();
    let home = world.home(run);
    assert!(!world.shards[home].is_resident(run), "a run that waits leaves memory");
    let request = world.request();
    let reason = Arc::new(ErrorInfo::terminal("cancelled", "by its parent"));
    let message = Message::Cancel { run, request, cascade: false, reason };
    let envelope = Envelope { from: ShardId(1 - home as u16), to: ShardId(home as u16), number: 1, message };
    world.disks[1 - home].outbox.push(envelope.clone());
    die(&mut world, run, Some(envelope));
    let letter = *letters(&world, run).keys().next().expect("a dead letter");
    (world, run, letter)
}

/// The dead letters of a run's shard.
fn letters(world: &World, run: RunId) -> &BTreeMap<LetterId, DeadEnvelope> {
    &world.disks[world.home(run)].dead
}

/// Seals what was gathered about a run, and writes it. Nobody is told yet.
fn write(world: &mut World, run: RunId) -> Batch {
    let home = world.home(run);
    let batch = world.shards[home].seal().expect("a batch");
    world.append(home, &batch);
    batch
}

/// Tells the shard of the run that a batch is durable, and lets everything happen that follows.
fn tell_durable(world: &mut World, run: RunId, batch: Batch) {
    let home = world.home(run);
    world.shards[home].durable(world.now, batch);
    world.durable();
}

/// The envelope is received, or the one that is under way, and the record of its target is damaged.
fn die(world: &mut World, run: RunId, envelope: Option<Envelope>) {
    let home = world.home(run);
    world.loads_held = true;
    if let Some(envelope) = envelope {
        world.shards[home].receive(world.now, envelope);
    }
    world.settle();
    world.waiting_loads.clear();
    world.shards[home].loaded_run(world.now, run, Loaded::Corrupt("bad checksum".into()));
    world.loads_held = false;
    world.settle();
}

fn settling(world: &World, run: RunId, letter: LetterId, how: Settling) -> Command {
    Command::Settle { letter, envelope: Box::new(letters(world, run)[&letter].envelope.clone()), how }
}

fn refused(letter: LetterId) -> Answer {
    Answer::Refused(Refusal::NoLetter { letter })
}

/// D32: a message that goes back in line is obeyed, and its dead letter is gone in the same batch.
#[test]
fn a_requeued_letter_is_obeyed_in_the_batch_that_removes_it() {
    let (mut world, run, letter) = world_with_letter();
    assert_eq!(show(&mut world, run).status(), Status::AwaitingSignal);
    world.held = true;
    let ticket = world.submit(settling(&world, run, letter, Settling::Requeue));
    assert_eq!(world.answer(ticket), None, "nothing leaves before it is durable");
    let batch = write(&mut world, run);
    assert_eq!((&batch.settled[..], batch.rows.len()), (&[letter][..], 1));
    tell_durable(&mut world, run, batch);
    assert_eq!(world.answer(ticket), Some(Answer::Settled));
    assert!(letters(&world, run).is_empty());
    assert_eq!(show(&mut world, run).status(), Status::Cancelled);
}

/// D32: a target outside memory gets the message by an envelope of that batch.
#[test]
fn a_requeued_letter_is_sent_again_to_a_run_outside_memory() {
    let (mut world, run, letter) = world_with_letter();
    world.held = true;
    world.submit(settling(&world, run, letter, Settling::Requeue));
    let batch = write(&mut world, run);
    assert_eq!((batch.settled.len(), batch.envelopes.len(), batch.rows.len()), (1, 1, 0));
    // The process dies when the batch is durable and nobody was told: the envelope is still there to be received.
    world.held = false;
    world.crash(Crash::BeforeAppend);
    assert!(letters(&world, run).is_empty());
    assert_eq!(show(&mut world, run).status(), Status::Cancelled);
}

/// D5, SE-42: what still cannot be processed is set aside again, whole, under a number of its own.
#[test]
fn a_requeued_letter_may_die_again() {
    let (mut world, run, letter) = world_with_letter();
    let before = letters(&world, run)[&letter].clone();
    world.loads_held = true;
    world.submit(settling(&world, run, letter, Settling::Requeue));
    die(&mut world, run, None);
    let (again, dead) = letters(&world, run).first_key_value().expect("a dead letter");
    assert!(*again > letter, "{again} after {letter}");
    assert_eq!((&dead.envelope.message, &dead.reason), (&before.envelope.message, &before.reason));
}

/// D32: a dead letter that was given up is gone, and nothing follows; the answer waits for that to be durable.
#[test]
fn a_discarded_letter_changes_nothing_else() {
    let (mut world, run, letter) = world_with_letter();
    world.held = true;
    let ticket = world.submit(settling(&world, run, letter, Settling::Discard));
    assert_eq!(world.answer(ticket), None);
    let batch = write(&mut world, run);
    assert!(batch.rows.is_empty() && batch.envelopes.is_empty(), "a batch of a removal alone");
    tell_durable(&mut world, run, batch);
    assert_eq!(world.answer(ticket), Some(Answer::Settled));
    assert!(letters(&world, run).is_empty());
    assert_eq!(show(&mut world, run).status(), Status::AwaitingSignal);
}

/// D32: of two who settle the same letter one is refused, also while the first is under way; a crash takes both back.
#[test]
fn a_letter_is_settled_once() {
    let (mut world, run, letter) = world_with_letter();
    world.held = true;
    let lost = world.submit(settling(&world, run, letter, Settling::Discard));
    world.crash(Crash::BeforeAppend);
    assert_eq!(world.lost, [lost]);
    let first = world.submit(settling(&world, run, letter, Settling::Requeue));
    let second = world.submit(settling(&world, run, letter, Settling::Discard));
    let third = settling(&world, run, letter, Settling::Requeue);
    let batch = write(&mut world, run);
    assert_eq!(batch.settled, [letter]);
    let third = world.submit(third);
    tell_durable(&mut world, run, batch);
    assert_eq!(world.answer(first), Some(Answer::Settled));
    assert_eq!(world.answer(second), Some(refused(letter)));
    assert_eq!(world.answer(third), Some(refused(letter)));
    assert_eq!(show(&mut world, run).status(), Status::Cancelled);
}

/// D32: a dead letter's id has one spelling.
#[test]
fn a_letter_has_one_spelling() {
    let letter: LetterId = "letter_17".parse().expect("an id");
    assert_eq!((letter, letter.to_string().as_str()), (LetterId(17), "letter_17"));
    for wrong in ["17", "letter_", "letter_+1", "letter_01", "letter_1x", "Letter_1", "letter_99999999999999999999"] {
        assert!(wrong.parse::<LetterId>().is_err(), "{wrong}");
    }
}
