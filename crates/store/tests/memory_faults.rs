//! The reference store's faults: each does what it says, so that tests of the engine can build on it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;

use abide_kernel::shard::Batch;
use abide_kernel::{Row, RunId, Seq, ShardEpoch, ShardId, Timestamp};
use abide_store::memory::{Attendant, MemoryStore, Rot, Stage, Word, WriteFault};
use abide_store::{FaultKind, Store, Verdict};

fn batch(epoch: ShardEpoch, seq: u64) -> Batch {
    let row = Row {
        seq: Seq(seq),
        run: RunId(7),
        rev: abide_kernel::Rev(seq),
        prior: Seq(seq - 1),
        at: Timestamp(seq as i64),
        facts: [abide_kernel::Fact::ParentPurged].into_iter().collect(),
    };
    Batch { epoch, rows: vec![row], ..Batch::default() }
}

fn head(store: &MemoryStore) -> u64 {
    let mut other = store.clone();
    let rows = other.scan(ShardId(0), Seq(0), 100).unwrap();
    rows.len() as u64
}

/// The ground of D36: an append that failed is known to be gone, or it is not known, and both ways happen.
#[test]
fn an_append_fails_in_every_way() {
    for fault in WriteFault::ALL {
        let mut store = MemoryStore::new(1);
        let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
        store.faults().fail_append_after(1, fault);
        assert_eq!(store.append(&[batch(epoch, 1)]).unwrap(), [Verdict::Durable]);
        let error = store.append(&[batch(epoch, 2)]).unwrap_err();
        assert_eq!(error.kind, fault.kind());
        assert_eq!(head(&store), if fault.writes() { 2 } else { 1 }, "{fault:?}");
        let stopped = error.kind == FaultKind::Fatal;
        assert_eq!(error.may_retry(), !stopped);
        let next = store.append(&[batch(epoch, head(&store) + 1)]);
        if stopped {
            assert_eq!(next.unwrap_err().kind, FaultKind::Fatal, "a failed sync is for good");
            assert_eq!(store.open_shard(ShardId(0), "a").unwrap_err().kind, FaultKind::Fatal);
            let mut reopened = store.clone();
            let opened = reopened.open_shard(ShardId(0), "b").unwrap();
            assert_eq!(opened.head.0, head(&store));
        } else {
            assert_eq!(next.unwrap(), [Verdict::Durable]);
        }
    }
}

/// A refused group is refused as a whole, and a stale one does not use up a fault.
#[test]
fn a_fault_waits_for_a_write() {
    let mut store = MemoryStore::new(1);
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    store.faults().fail_append(WriteFault::Refused);
    let stale = batch(ShardEpoch(99), 1);
    assert_eq!(store.append(&[stale]).unwrap(), [Verdict::Stale]);
    assert!(store.append(&[batch(epoch, 1), batch(epoch, 2)]).is_err());
    assert_eq!(head(&store), 0);
    assert_eq!(store.append(&[batch(epoch, 1), batch(epoch, 2)]).unwrap(), [Verdict::Durable; 2]);
}

/// What has rotted is noticed, and is as it was once it is mended, unless it was written anew meanwhile.
#[test]
fn what_has_rotted_can_be_mended() {
    let mut store = MemoryStore::new(1);
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    store.append(&[batch(epoch, 1), batch(epoch, 2)]).unwrap();
    let sound = |store: &mut MemoryStore| {
        let scanned = store.scan(ShardId(0), Seq(0), 9).unwrap();
        scanned.iter().map(Result::is_ok).collect::<Vec<bool>>()
    };
    assert!(store.faults().rot(Rot::Row(ShardId(0), Seq(2)), 3), "there is such a row");
    assert!(!store.faults().rot(Rot::Row(ShardId(0), Seq(3)), 3), "there is no such row");
    assert_eq!(sound(&mut store), [true, false]);
    store.faults().heal();
    assert_eq!(sound(&mut store), [true, false], "that no write fails any more mends nothing");
    assert!(store.faults().rot(Rot::Row(ShardId(0), Seq(2)), 70), "twice, in another place");
    store.faults().mend();
    assert_eq!(sound(&mut store), [true, true]);
    assert!(store.faults().rot(Rot::Shard(ShardId(0)), 0));
    assert!(store.open_shard(ShardId(0), "b").is_err());
    store.faults().mend();
    assert!(store.open_shard(ShardId(0), "b").is_ok());
}

/// Reads fail as often as they are told to, and a failed flush leaves the log alone.
#[test]
fn reads_and_flushes_fail_on_demand() {
    let mut store = MemoryStore::new(1);
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    store.append(&[batch(epoch, 1)]).unwrap();
    store.faults().fail_reads(2);
    assert_eq!(store.read_key("k").unwrap_err().kind, FaultKind::Refused);
    assert!(store.read_run(RunId(7)).is_err());
    assert!(store.read_run(RunId(7)).unwrap().is_none());
    let flush = abide_kernel::shard::Flush { epoch, through: Seq(1), ..Default::default() };
    store.faults().fail_flush(WriteFault::UnknownLost);
    assert_eq!(store.flush(&[flush]).unwrap_err().kind, FaultKind::Unknown);
    assert_eq!(store.open_shard(ShardId(0), "b").unwrap().watermark, Seq(0));
}

/// Handles are processes: the one that opened the shard last owns it.
#[test]
fn a_second_handle_takes_the_shard_over() {
    let mut first = MemoryStore::new(1);
    let mut second = first.clone();
    let old = first.open_shard(ShardId(0), "a").unwrap().epoch;
    let new = second.open_shard(ShardId(0), "b").unwrap().epoch;
    assert_eq!(first.append(&[batch(old, 1)]).unwrap(), [Verdict::Stale]);
    assert_eq!(second.append(&[batch(new, 1)]).unwrap(), [Verdict::Durable]);
    assert_eq!(first.append(&[batch(new, 1)]).unwrap(), [Verdict::Stale]);
}

/// Dies when a write has come so far.
#[derive(Debug)]
struct DiesAt(Stage);

impl Attendant for DiesAt {
    fn attend(&self, stage: Stage) -> Word {
        if stage == self.0 { Word::Die } else { Word::GoOn }
    }
}

/// A process that dies while it writes leaves all of it or nothing, knows neither, and writes nothing more; others go on.
#[test]
fn a_process_dies_before_its_write_or_after_it() {
    for (stage, written) in [(Stage::Begun, 0), (Stage::Written, 1)] {
        let mut store = MemoryStore::new(1);
        let mut dying = store.attended(Arc::new(DiesAt(stage)));
        let epoch = dying.open_shard(ShardId(0), "a").unwrap().epoch;
        assert_eq!(dying.append(&[batch(epoch, 1)]).unwrap_err().kind, FaultKind::Fatal);
        assert_eq!(head(&store), written, "{stage:?}");
        assert_eq!(dying.append(&[batch(epoch, written + 1)]).unwrap_err().kind, FaultKind::Fatal);
        assert_eq!(head(&store), written, "{stage:?}");
        let epoch = store.open_shard(ShardId(0), "b").unwrap().epoch;
        assert_eq!(store.append(&[batch(epoch, written + 1)]).unwrap(), [Verdict::Durable]);
    }
}

/// Takes the shard over while somebody else's write is on its way.
#[derive(Debug)]
struct Overtakes(MemoryStore);

impl Attendant for Overtakes {
    fn attend(&self, stage: Stage) -> Word {
        if stage == Stage::Begun {
            self.0.clone().open_shard(ShardId(0), "b").unwrap();
        }
        Word::GoOn
    }
}

/// The ground of G6: a write that arrives after another process took the shard is stale, however early it set out.
#[test]
fn a_write_that_arrives_late_is_stale() {
    let store = MemoryStore::new(1);
    let mut late = store.attended(Arc::new(Overtakes(store.clone())));
    let epoch = late.open_shard(ShardId(0), "a").unwrap().epoch;
    assert_eq!(late.append(&[batch(epoch, 1)]).unwrap(), [Verdict::Stale]);
    assert_eq!(head(&store), 0);
}
