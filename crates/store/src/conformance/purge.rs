//! Purge: what a run held is gone, and the log has no gap.

use abide_kernel::{Fact, RunId, Seq, ShardId};

use super::Fixture;
use super::make::{Owner, append, flush, log, open, purged, run_id, signal};
use crate::{Filter, Page};

fn three_runs(owner: &mut Owner) -> (RunId, Vec<abide_kernel::Row>) {
    let mut rows = owner.starts(0, 3);
    for id in 1..4 {
        for n in 0..3 {
            let payload = format!("\"secret {n}\"");
            rows.push(owner.row(run_id(owner.shard, n), signal(id, &payload)));
        }
    }
    (run_id(owner.shard, 1), rows)
}

/// Index row, key and facts of a purged run are gone; that it was purged, its rows' places and other runs stay.
pub fn a_purge_empties_rows_and_leaves_no_gap(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 3);
    let (gone, mut rows) = three_runs(&mut owner);
    append(&mut *store, owner.batch(rows.clone()));
    let mut record = owner.record(gone);
    record.occupies = Some("k".into());
    let kept = owner.record(run_id(ShardId(3), 0));
    flush(&mut *store, &owner.flush(vec![record, kept]));
    rows.push(owner.row(gone, purged()));
    append(&mut *store, owner.batch(rows[12..].to_vec()));
    let mut behind = owner.flush(Vec::new());
    behind.purged = vec![(gone, owner.head)];
    flush(&mut *store, &behind);

    let mut store = fixture.reopen(store);
    assert!(store.read_run(gone).expect("a run").is_none());
    assert_eq!(store.read_key("k").expect("a key"), None);
    let found = log(&mut *store, 3, 5);
    assert_eq!(found.len(), 13);
    for (found, row) in found.iter().zip(&rows) {
        let emptied = row.run == gone && row.seq != Seq(13);
        assert_eq!(found.facts.is_empty(), emptied, "{}", row.seq.0);
        let mut expected = row.clone();
        if emptied {
            expected.facts.clear();
        }
        assert_eq!(*found, expected);
    }
    assert_eq!(found[12].facts[..], [Fact::Purged]);
    let mut reader = store.reader().expect("a reader");
    let listed = reader.list(&Filter::default(), &Page::default()).expect("a listing");
    assert_eq!(listed.len(), 1);
    assert_eq!(reader.journal(gone, Seq(13), 0).expect("a journal").len(), 5);
    let other = run_id(ShardId(3), 2);
    let journal = reader.journal(other, Seq(12), 0).expect("a journal");
    assert!(journal.iter().all(|row| !row.facts.is_empty()));
}

/// After a crash between append and flush the purge comes again from the log; also where a row is damaged.
pub fn a_purge_can_be_repeated(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let (gone, mut rows) = three_runs(&mut owner);
    rows.push(owner.row(gone, purged()));
    append(&mut *store, owner.batch(rows));
    let mut behind = owner.flush(Vec::new());
    behind.purged = vec![(gone, owner.head)];
    flush(&mut *store, &behind);
    flush(&mut *store, &behind);
    let mut store = fixture.corrupt_row(store, ShardId(0), Seq(5));
    owner.epoch = open(&mut *store, 0).epoch;
    behind.epoch = owner.epoch;
    // One that never existed, and one whose last row is not there.
    behind.purged.push((run_id(ShardId(0), 77), Seq(99)));
    flush(&mut *store, &behind);
    let found = store.scan(ShardId(0), Seq(0), 100).expect("the log");
    assert_eq!(found.len(), 13);
    let facts = |seq: usize| found[seq - 1].as_ref().map_or(0, |row| row.facts.len());
    assert_eq!([facts(1), facts(2), facts(3), facts(8), facts(13)], [1, 0, 1, 0, 1]);
}
