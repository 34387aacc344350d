//! Filling a store from elsewhere.

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::{LetterId, Timestamp};

use super::Fixture;
use super::make::{Owner, append, envelope, log};
use crate::{DeadLetterItem, FaultKind};

/// Only a store without rows and dead letters is filled. What was set aside elsewhere is kept with its time and its node,
/// and everything is there afterwards.
pub fn an_empty_store_is_filled(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 1);
    store.import().begin_import().expect("it is empty");
    let rows = owner.starts(0, 3);
    append(&mut *store, owner.batch(rows.clone()));
    let dead = DeadEnvelope { envelope: envelope(1, 1, 0), reason: "it does not decode: ☠".into() };
    let letter = DeadLetterItem { id: LetterId(77), at: Timestamp(5), node: "elsewhere".into(), dead };
    store.import().import_letter(&letter).expect("it is kept");
    store.import().end_import().expect("it ends");
    let mut store = fixture.reopen(store);
    assert_eq!(log(&mut *store, 1, 10), rows);
    let [found] = &store.reader().expect("a reader").dead_letters().expect("dead letters")[..] else {
        panic!("one letter was kept")
    };
    assert_eq!(*found, DeadLetterItem { id: found.id, ..letter });
    Owner::open(&mut *store, 1);
    let fault = store.import().begin_import().expect_err("it holds something");
    assert_eq!(fault.kind, FaultKind::Unusable);
    assert!(fault.message.contains("is not empty"), "{fault}");
    Owner::open(&mut *fixture.reopen(store), 1);
}
