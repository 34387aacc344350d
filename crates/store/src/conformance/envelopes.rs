//! Envelopes: seen until they are consumed, consumed once, numbered without a gap.

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::{Seq, ShardId};

use super::Fixture;
use super::make::{Owner, append, envelope, flush, log, open};
use crate::{FaultKind, Store, Verdict};

fn seen(store: &mut dyn Store, to: u16) -> Vec<(u16, u64)> {
    let found = store.read_envelopes(ShardId(to), 100).expect("envelopes");
    found.iter().map(|envelope| (envelope.from.0, envelope.number)).collect()
}

/// A receiver sees an envelope, in order per sender, until its cursor has passed it; then never again.
pub fn an_envelope_is_seen_until_it_is_consumed(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let owners: Vec<Owner> = (0..3).map(|shard| Owner::open(&mut *store, shard)).collect();
    let mut group: Vec<_> = owners.iter().map(|owner| owner.batch(Vec::new())).collect();
    group[0].envelopes = (1..=3).map(|number| envelope(0, 2, number)).collect();
    group[1].envelopes = vec![envelope(1, 2, 1), envelope(1, 0, 1)];
    assert_eq!(store.append(&group).expect("an answer"), [Verdict::Durable; 3]);
    assert_eq!(seen(&mut *store, 2), [(0, 1), (0, 2), (0, 3), (1, 1)]);
    assert_eq!(seen(&mut *store, 0), [(1, 1)]);
    let page = store.read_envelopes(ShardId(2), 2).expect("envelopes");
    assert_eq!(page, [envelope(0, 2, 1), envelope(0, 2, 2)]);

    let consume = |numbers: &[(u16, u64)]| {
        let mut batch = owners[2].batch(Vec::new());
        batch.consumed = numbers.iter().map(|(from, number)| (ShardId(*from), *number)).collect();
        batch
    };
    append(&mut *store, consume(&[(0, 2)]));
    assert_eq!(seen(&mut *store, 2), [(0, 3), (1, 1)]);
    append(&mut *store, consume(&[(0, 1), (1, 1)]));
    assert_eq!(seen(&mut *store, 2), [(0, 3)], "a cursor never goes back");
    let behind = owners[2].flush(Vec::new());
    flush(&mut *store, &behind);
    assert_eq!(seen(&mut *store, 2), [(0, 3)]);
    let mut store = fixture.reopen(store);
    assert_eq!(seen(&mut *store, 2), [(0, 3)]);
    assert_eq!(seen(&mut *store, 0), [(1, 1)]);
}

/// The cursor, the rows and the envelopes that follow are one: when the batch is refused, nothing was consumed.
pub fn a_refused_batch_leaves_its_envelopes_visible(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let sender = Owner::open(&mut *store, 0);
    let mut batch = sender.batch(Vec::new());
    batch.envelopes = vec![envelope(0, 1, 1)];
    append(&mut *store, batch);
    let mut old = Owner::open(&mut *store, 1);
    let new = Owner::open(&mut *store, 1);
    let rows = old.starts(0, 1);
    let mut stale = old.batch(rows.clone());
    stale.consumed = vec![(ShardId(0), 1)];
    stale.envelopes = vec![envelope(1, 0, 1)];
    assert_eq!(store.append(&[stale.clone()]).expect("an answer"), [Verdict::Stale]);
    assert_eq!(seen(&mut *store, 1), [(0, 1)]);
    assert_eq!(seen(&mut *store, 0), []);
    stale.epoch = new.epoch;
    append(&mut *store, stale);
    assert_eq!(seen(&mut *store, 1), []);
    assert_eq!(seen(&mut *store, 0), [(1, 1)]);
    assert_eq!(log(&mut *store, 1, 10), rows);
}

/// After a restart the numbers go on, also when every envelope was consumed and cleared away.
pub fn numbers_go_on_after_the_process_died(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let sender = Owner::open(&mut *store, 0);
    let mut batch = sender.batch(Vec::new());
    batch.envelopes = vec![envelope(0, 1, 1), envelope(0, 1, 2), envelope(0, 3, 1)];
    append(&mut *store, batch);
    let mut store = fixture.reopen(store);
    assert_eq!(open(&mut *store, 0).sent, [0, 2, 0, 1], "they wait while nobody is there");
    assert_eq!(seen(&mut *store, 1), [(0, 1), (0, 2)]);
    let receiver = Owner::open(&mut *store, 1);
    let mut batch = receiver.batch(Vec::new());
    batch.consumed = vec![(ShardId(0), 2)];
    append(&mut *store, batch);
    flush(&mut *store, &receiver.flush(Vec::new()));
    let mut store = fixture.reopen(store);
    assert_eq!(open(&mut *store, 0).sent, [0, 2, 0, 1]);
    assert_eq!(open(&mut *store, 1).consumed, [2, 0, 0, 0]);
    assert_eq!(open(&mut *store, 3).consumed, [0; 4]);
}

/// An envelope's number is a fence as a row's position is: taken, it refuses everything that came with it.
pub fn a_taken_number_refuses_the_whole_group(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owners: Vec<Owner> = (0..2).map(|shard| Owner::open(&mut *store, shard)).collect();
    let mut batch = owners[0].batch(Vec::new());
    batch.envelopes = vec![envelope(0, 1, 1)];
    append(&mut *store, batch.clone());
    let rows = owners[1].starts(0, 3);
    let other = owners[1].batch(rows.clone());
    let fault = store.append(&[other.clone(), batch]).expect_err("the number is taken");
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(log(&mut *store, 1, 10).is_empty());
    assert_eq!(seen(&mut *store, 1), [(0, 1)]);
    append(&mut *store, other);
    assert_eq!(log(&mut *store, 1, 10), rows);
}

/// What could not be processed is kept whole, with why, when and by whom it was set aside.
pub fn dead_letters_keep_what_was_set_aside(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 2);
    let dead = |number, reason: &str| DeadEnvelope { envelope: envelope(0, 2, number), reason: reason.into() };
    let rows = owner.starts(0, 2);
    let last_at = rows[1].at;
    let mut batch = owner.batch(rows);
    batch.consumed = vec![(ShardId(0), 1)];
    batch.dead = vec![dead(1, "it does not decode: ☠")];
    append(&mut *store, batch);
    let mut batch = owner.batch(Vec::new());
    batch.consumed = vec![(ShardId(0), 2)];
    batch.dead = vec![dead(2, "again")];
    append(&mut *store, batch);
    let store = fixture.reopen(store);
    let letters = store.reader().expect("a reader").dead_letters().expect("dead letters");
    assert_eq!(letters.len(), 2);
    for (letter, expected) in letters.iter().zip([dead(1, "it does not decode: ☠"), dead(2, "again")]) {
        assert_eq!(letter.dead, expected);
        assert_eq!(letter.node, "owner of 2");
        assert_eq!(letter.at, last_at, "without a row of its own, the last one's instant");
    }
    assert!(letters[0].id < letters[1].id);
    assert_ne!(owner.head, Seq(0));
}

/// A dead letter goes with the batch that says so, and what follows from it is in that batch. A second batch about it
/// is refused whole, and its number is never given again.
pub fn a_dead_letter_is_settled_once(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 2);
    let letters = |store: &dyn Store| {
        let found = store.reader().expect("a reader").dead_letters().expect("dead letters");
        found.iter().map(|item| item.id).collect::<Vec<_>>()
    };
    let set_aside = |store: &mut dyn Store, owner: &Owner, number| {
        let mut batch = owner.batch(Vec::new());
        batch.consumed = vec![(ShardId(0), number)];
        batch.dead = vec![DeadEnvelope { envelope: envelope(0, 2, number), reason: "it dies".into() }];
        append(store, batch);
    };
    set_aside(&mut *store, &owner, 1);
    set_aside(&mut *store, &owner, 2);
    let [first, second] = letters(&*store)[..] else { panic!("two letters were set aside") };

    let mut settling = owner.batch(Vec::new());
    settling.settled = vec![second];
    settling.envelopes = vec![envelope(2, 2, 1)];
    let mut stale = settling.clone();
    stale.epoch.0 += 1;
    assert_eq!(store.append(&[stale]).expect("an answer"), [Verdict::Stale]);
    assert_eq!(letters(&*store), [first, second], "a stale owner takes nothing out");
    append(&mut *store, settling.clone());
    let mut store = fixture.reopen(store);
    assert_eq!(letters(&*store), [first]);
    assert_eq!(seen(&mut *store, 2), [(2, 1)]);

    owner.epoch = open(&mut *store, 2).epoch;
    let rows = owner.starts(0, 1);
    let mut again = owner.batch(rows);
    again.settled = vec![first, second];
    let fault = store.append(&[again.clone()]).expect_err("the second is gone");
    assert_eq!(fault.kind, FaultKind::Refused);
    assert_eq!(letters(&*store), [first], "nothing of it was written");
    assert!(log(&mut *store, 2, 10).is_empty());
    again.settled = vec![first];
    append(&mut *store, again);
    set_aside(&mut *store, &owner, 3);
    let [third] = letters(&*store)[..] else { panic!("one letter is set aside") };
    assert!(third > second, "a number is not used again: {third} after {second}");
}
