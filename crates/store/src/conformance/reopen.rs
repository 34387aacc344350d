//! What is left when the process is gone.

use abide_kernel::shard::LinePlace;
use abide_kernel::{Seq, ShardId, Timestamp};

use super::make::{Owner, append, envelope, flush, log, open, run_id, signal};
use super::{Fixture, SHARDS};
use crate::FaultKind;

/// Rows, index rows, checkpoints, watermarks, envelopes and cursors survive the process.
pub fn everything_is_there_after_the_process_died(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 1);
    let run = run_id(ShardId(1), 0);
    let mut rows = owner.starts(0, 30);
    append(&mut *store, owner.batch(rows.clone()));
    let mut record = owner.record(run);
    record.due = Some(Timestamp(77));
    let place = LinePlace { priority: 3, eligible_at: Timestamp(5), arrival: Seq(1), run };
    record.ready = Some(("line".into(), place));
    record.occupies = Some("default/w/k".into());
    flush(&mut *store, &owner.flush(vec![record]));
    // After the flush, so that it is only in the log.
    let late = owner.row(run, signal(1, "17"));
    let mut batch = owner.batch(vec![late.clone()]);
    batch.envelopes = vec![envelope(1, 2, 1), envelope(1, 2, 2)];
    batch.consumed = vec![(ShardId(3), 8)];
    append(&mut *store, batch);
    rows.push(late.clone());

    let mut store = fixture.reopen(store);
    assert_eq!(store.map().count(), SHARDS);
    let opened = open(&mut *store, 1);
    assert_eq!((opened.head, opened.watermark), (Seq(31), Seq(30)));
    assert_eq!(opened.last_at, late.at);
    assert_eq!((opened.sent[2], opened.consumed[3]), (2, 8));
    assert_eq!(log(&mut *store, 1, 100), rows);
    let stored = store.read_run(run).expect("a run").expect("it is there");
    assert_eq!((stored.head, stored.run.rev.0), (Seq(1), 1));
    let mut folded = stored.run;
    folded.apply_row(&late);
    assert_eq!(&folded, owner.folded(run));
    let due = store.read_due(ShardId(1), Timestamp(0), 10).expect("deadlines");
    assert_eq!(due.entries, [(Timestamp(77), run)]);
    let ready = store.read_ready(ShardId(1), "line", None, Timestamp(100), 10).expect("ready runs");
    assert_eq!(ready.places, [place]);
    assert_eq!(store.read_key("default/w/k").expect("a key"), Some(run));
    let envelopes = store.read_envelopes(ShardId(2), 10).expect("envelopes");
    assert_eq!(envelopes, [envelope(1, 2, 1), envelope(1, 2, 2)]);
}

/// Whoever opens a shard has a higher epoch than everyone before, also after a restart; shards are apart.
pub fn each_opening_is_a_new_ownership(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let first = open(&mut *store, 0);
    assert_eq!((first.head, first.watermark, first.last_at), (Seq(0), Seq(0), Timestamp(0)));
    assert_eq!(first.sent, vec![0; usize::from(SHARDS)]);
    assert_eq!(first.consumed, first.sent);
    let second = open(&mut *store, 0);
    let other = open(&mut *store, 1);
    assert!(second.epoch > first.epoch);
    let mut store = fixture.reopen(store);
    assert!(open(&mut *store, 0).epoch > second.epoch);
    assert!(open(&mut *store, 1).epoch > other.epoch);
    let mut late = Owner::after(0, &second);
    let rows = late.starts(0, 1);
    let verdicts = store.append(&[late.batch(rows)]).expect("an answer");
    assert_eq!(verdicts, [crate::Verdict::Stale]);
}

/// How far index rows are complete is told to owners and readers, and never moves back.
pub fn the_watermark_only_moves_forward(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 2);
    let rows = owner.starts(0, 9);
    append(&mut *store, owner.batch(rows));
    for (through, expected) in [(5, 5), (3, 5), (9, 9), (0, 9)] {
        let mut behind = owner.flush(Vec::new());
        behind.through = Seq(through);
        flush(&mut *store, &behind);
        let mut reader = store.reader().expect("a reader");
        let found = reader.watermarks().expect("watermarks");
        assert!(found.contains(&(ShardId(2), Seq(expected))), "{found:?}");
    }
    let mut store = fixture.reopen(store);
    assert_eq!(open(&mut *store, 2).watermark, Seq(9));
    assert_eq!(open(&mut *store, 1).watermark, Seq(0));
}

/// A shard beyond the store's number is refused and does not come into being.
pub fn a_shard_that_does_not_exist_is_refused(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    for shard in [SHARDS, 4_095, u16::MAX] {
        let fault = store.open_shard(ShardId(shard), "nobody").expect_err("no such shard");
        assert_eq!(fault.kind, FaultKind::Unusable);
        let found = store.scan(ShardId(shard), Seq(0), 10);
        assert!(found.expect("an answer").is_empty());
    }
    open(&mut *store, SHARDS - 1);
    let watermarks = store.reader().expect("a reader").watermarks().expect("watermarks");
    assert!(watermarks.iter().all(|(shard, _)| shard.0 < SHARDS));
}
