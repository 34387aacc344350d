//! Compaction: a journal begins anew, what was before is gone, and the log has no gap.

use abide_kernel::{Run, RunId, Seq, ShardId};

use super::Fixture;
use super::make::{Owner, append, compacted, flush, log, open, purged, run_id, signal};
use crate::Store;

/// Two runs, one of which is compacted at position 9 and goes on.
fn compacted_run(store: &mut dyn Store) -> (Owner, RunId) {
    let mut owner = Owner::open(store, 2);
    let mut rows = owner.starts(0, 2);
    let run = run_id(owner.shard, 1);
    for id in 1..4 {
        for n in 0..2 {
            rows.push(owner.row(run_id(owner.shard, n), signal(id, "\"secret\"")));
        }
    }
    rows.push(owner.row(run, compacted(&owner, run)));
    rows.push(owner.row(run, signal(4, "1")));
    append(store, owner.batch(rows));
    (owner, run)
}

/// The positions of rows that say nothing.
fn emptied(store: &mut dyn Store) -> Vec<u64> {
    let rows = log(store, 2, 4);
    rows.iter().filter(|row| row.facts.is_empty()).map(|row| row.seq.0).collect()
}

/// D1: rows before the compacted one are emptied with the flush that says so; the journal begins with it already before.
pub fn a_compaction_empties_what_was_before_it(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let (owner, run) = compacted_run(&mut *store);
    let other = run_id(owner.shard, 0);
    let journal = |store: &dyn Store, run| {
        let mut reader = store.reader().expect("a reader");
        let rows = reader.journal(run, owner.head_of(run), 0).expect("a journal");
        rows.into_iter().map(|row| row.seq.0).collect::<Vec<_>>()
    };
    assert_eq!(emptied(&mut *store), [0; 0]);
    assert_eq!(journal(&*store, run), [9, 10], "it begins with the compacted row");
    let mut behind = owner.flush(vec![owner.record(run), owner.record(other)]);
    behind.compacted = vec![(run, Seq(9))];
    flush(&mut *store, &behind);

    let mut store = fixture.reopen(store);
    assert_eq!(emptied(&mut *store), [2, 4, 6, 8]);
    assert_eq!(journal(&*store, run), [9, 10]);
    assert_eq!(journal(&*store, other), [1, 3, 5, 7]);
    let mut reader = store.reader().expect("a reader");
    let rows = reader.journal(run, Seq(10), 6).expect("a journal");
    assert!(rows.iter().map(|row| row.rev.0).eq([6]));
    for run in [run, other] {
        let found = reader.read_run(run).expect("it is sound").expect("it is there");
        assert_eq!(&found.run, owner.folded(run));
    }
    // From a head that was compacted away, nothing is told that is not there.
    let gone = reader.journal(run, Seq(8), 0).expect("a journal");
    assert!(gone.iter().all(|row| row.facts.is_empty()));
}

/// D1, I4: with every index row and checkpoint gone, the compacted row begins the run.
pub fn a_compacted_run_is_rebuilt_from_the_log_alone(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let (owner, run) = compacted_run(&mut *store);
    let mut record = owner.record(run);
    // Without a checkpoint it is folded from its journal.
    record.checkpoint = Vec::new();
    let mut behind = owner.flush(vec![record]);
    behind.compacted = vec![(run, Seq(9))];
    flush(&mut *store, &behind);
    let found = store.read_run(run).expect("it is sound").expect("it is there");
    assert_eq!(&found.run, owner.folded(run));

    let mut store = fixture.lose_index(store);
    assert!(store.read_run(run).expect("no index row").is_none());
    let mut rows = log(&mut *store, 2, 100).into_iter().filter(|row| row.run == run && !row.facts.is_empty());
    let mut folded = Run::begin(&rows.next().expect("a first row")).expect("it begins");
    rows.for_each(|row| folded.apply_row(&row));
    assert_eq!(&folded, owner.folded(run));
}

/// After a crash between append and flush the compaction comes again from the log. A second one empties the first, and
/// a purge empties them all.
pub fn a_compaction_can_be_repeated_and_followed_by_a_purge(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let (mut owner, run) = compacted_run(&mut *store);
    let mut behind = owner.flush(vec![owner.record(run)]);
    // One whose row is not there changes nothing.
    behind.compacted = vec![(run, Seq(9)), (run_id(ShardId(2), 77), Seq(99))];
    flush(&mut *store, &behind);
    let mut store = fixture.reopen(store);
    owner.epoch = open(&mut *store, 2).epoch;
    behind.epoch = owner.epoch;
    flush(&mut *store, &behind);
    assert_eq!(emptied(&mut *store), [2, 4, 6, 8]);

    let again = owner.row(run, compacted(&owner, run));
    append(&mut *store, owner.batch(vec![again]));
    let gone = owner.row(run, purged());
    let mut behind = owner.flush(vec![owner.record(run)]);
    (behind.through, behind.compacted) = (Seq(11), vec![(run, Seq(11))]);
    flush(&mut *store, &behind);
    assert_eq!(emptied(&mut *store), [2, 4, 6, 8, 9, 10]);
    append(&mut *store, owner.batch(vec![gone]));
    let mut behind = owner.flush(Vec::new());
    behind.purged = vec![(run, Seq(12))];
    flush(&mut *store, &behind);
    assert_eq!(emptied(&mut *store), [2, 4, 6, 8, 9, 10, 11]);
    assert!(store.read_run(run).expect("a run").is_none());
}
