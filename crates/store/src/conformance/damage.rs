//! Damage: reported with run and position, never replayed, never skipped, and nobody else suffers.

use abide_kernel::{Seq, ShardId};

use super::Fixture;
use super::make::{Owner, append, flush, open, run_id, signal};
use crate::FaultKind;

/// One row is damaged: the scan says so in its place, its run's journal says so, and other runs are read.
pub fn a_damaged_row_is_reported_and_others_are_read(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 1);
    let (hurt, sound) = (run_id(ShardId(1), 0), run_id(ShardId(1), 1));
    let mut rows = owner.starts(0, 2);
    rows.push(owner.row(hurt, signal(1, r#""secret""#)));
    rows.push(owner.row(sound, signal(1, "2")));
    rows.push(owner.row(hurt, signal(2, "3")));
    append(&mut *store, owner.batch(rows.clone()));

    let mut store = fixture.corrupt_row(store, ShardId(1), Seq(3));
    assert_eq!(open(&mut *store, 1).head, Seq(5), "the shard can be opened all the same");
    let kind = FaultKind::Corrupt { run: Some(hurt), position: Some((ShardId(1), Seq(3))) };
    let mut reader = store.reader().expect("a reader");
    for found in [store.scan(ShardId(1), Seq(0), 10), reader.scan(ShardId(1), Seq(0), 10)] {
        let found = found.expect("the log can be read");
        assert_eq!(found.len(), 5);
        for (item, row) in found.iter().zip(&rows) {
            match item {
                Ok(found) => assert_eq!(found, row),
                Err(fault) => {
                    assert_eq!((fault.kind, row.seq), (kind, Seq(3)));
                    assert_eq!(fault.position(), Some(Seq(3)));
                    let message = fault.to_string();
                    assert!(message.contains(&hurt.to_string()), "{message}");
                    assert!(!message.contains("secret"), "{message}");
                }
            }
        }
        assert_eq!(found.iter().filter(|item| item.is_err()).count(), 1);
    }
    let fault = reader.journal(hurt, Seq(5), 0).expect_err("it is damaged");
    assert_eq!(fault.kind, kind);
    assert!(!fault.may_retry());
    assert_eq!(reader.journal(hurt, Seq(5), 3).expect("its end is sound").len(), 1);
    assert_eq!(reader.journal(sound, Seq(4), 0).expect("a journal").len(), 2);
}

/// A checkpoint is damaged: reading it says so and names the run, and the log still has the run.
pub fn a_damaged_checkpoint_is_reported_and_the_journal_is_read(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let rows = owner.starts(0, 2);
    append(&mut *store, owner.batch(rows.clone()));
    let (hurt, sound) = (run_id(ShardId(0), 0), run_id(ShardId(0), 1));
    flush(&mut *store, &owner.flush(vec![owner.record(hurt), owner.record(sound)]));
    let mut store = fixture.corrupt_checkpoint(store, hurt);
    let mut reader = store.reader().expect("a reader");
    for found in [store.read_run(hurt), reader.read_run(hurt)] {
        let fault = found.expect_err("it is damaged");
        let run = Some(hurt);
        assert_eq!(fault.kind, FaultKind::Corrupt { run, position: None });
    }
    assert!(store.read_run(sound).expect("a run").is_some());
    assert_eq!(reader.journal(hurt, Seq(1), 0).expect("a journal"), rows[..1]);
    // A sound index row of the same revision takes its place.
    owner.epoch = open(&mut *store, 0).epoch;
    flush(&mut *store, &owner.flush(vec![owner.record(hurt)]));
    assert!(store.read_run(hurt).expect("a run").is_some());
}
