//! Readers beside the owner, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use abide_kernel::{Seq, ShardId, Status, Timestamp};

use super::Fixture;
use super::make::{Owner, append, envelope, flush, run_id};
use crate::{Filter, Page, Verdict};

/// While the owner writes groups of several rows over two shards, a reader sees each group whole or not at all.
pub fn readers_see_only_whole_batches(fixture: &mut dyn Fixture) {
    const GROUPS: u64 = 60;
    const ROWS: u64 = 20;
    let mut store = fixture.make();
    let mut owners: Vec<Owner> = (0..2).map(|shard| Owner::open(&mut *store, shard)).collect();
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = store.reader().expect("a reader");
            let over = over.clone();
            thread::spawn(move || {
                let mut most = 0;
                loop {
                    let last = over.load(Ordering::SeqCst);
                    // The second shard is read first: what it has, the first must have by then.
                    let second = reader.scan(ShardId(1), Seq(0), 10_000).expect("the log");
                    let first = reader.scan(ShardId(0), Seq(0), 10_000).expect("the log");
                    let [first, second] = [first, second].map(|rows| {
                        assert!(rows.iter().all(Result::is_ok));
                        rows.len() as u64
                    });
                    assert_eq!((first % ROWS, second % ROWS), (0, 0));
                    assert!(first >= second && second >= most);
                    most = second;
                    let stats = reader.stats().expect("counts");
                    assert_eq!(stats.journal_rows % (2 * ROWS), 0);
                    if last {
                        return most;
                    }
                }
            })
        })
        .collect();
    for group in 0..GROUPS {
        let batches: Vec<_> = owners
            .iter_mut()
            .map(|owner| {
                let rows = owner.starts(group * ROWS, (group + 1) * ROWS);
                owner.batch(rows)
            })
            .collect();
        assert_eq!(store.append(&batches).expect("an answer"), [Verdict::Durable; 2]);
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        assert_eq!(reader.join().expect("no reader panics"), GROUPS * ROWS);
    }
}

/// Every read and write is counted, and nothing else: a store that is left alone is not touched.
pub fn reads_and_writes_are_counted(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let mut reader = store.reader().expect("a reader");
    let start = store.counters();
    assert_eq!(store.counters(), start, "asking is no read");
    let rows = owner.starts(0, 3);
    let bytes: usize =
        rows.iter().map(|row| serde_json::to_vec(&row.facts).expect("facts have a JSON form").len()).sum();
    append(&mut *store, owner.batch(rows));
    let stale = owner.batch(Vec::new());
    let appended = store.counters();
    assert_eq!(appended.writes, start.writes + 1);
    assert_eq!((appended.commits, appended.rows), (start.commits + 1, start.rows + 3));
    assert_eq!(appended.fact_bytes, start.fact_bytes + bytes as u64);
    assert_eq!(appended.reads, start.reads);
    let mut stale = stale;
    stale.epoch.0 += 1;
    assert_eq!(store.append(&[stale]).expect("an answer"), [Verdict::Stale]);
    assert_eq!(store.counters(), appended, "what is refused from memory touches nothing");
    flush(&mut *store, &owner.flush(Vec::new()));
    assert_eq!(store.counters().writes, appended.writes + 1);
    assert_eq!(store.counters().commits, appended.commits);
    let run = run_id(ShardId(0), 0);
    store.read_run(run).expect("an answer");
    store.read_key("k").expect("an answer");
    store.scan(ShardId(0), Seq(0), 1).expect("an answer");
    store.read_due(ShardId(0), Timestamp(0), 1).expect("an answer");
    store.read_lines(ShardId(0)).expect("an answer");
    store.read_ready(ShardId(0), "line", None, Timestamp(0), 1).expect("an answer");
    store.read_claimed(ShardId(0)).expect("an answer");
    store.read_envelopes(ShardId(0), 1).expect("an answer");
    reader.read_run(run).expect("an answer");
    reader.list(&Filter::default(), &Page::default()).expect("an answer");
    reader.find("0", 1).expect("an answer");
    reader.stats().expect("an answer");
    reader.watermarks().expect("an answer");
    reader.dead_letters().expect("an answer");
    assert_eq!(store.counters().reads, appended.reads + 14);
}

/// Sizes and counts are of what is there: runs by status without reservations, envelopes that wait.
pub fn sizes_are_counted(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let rows = owner.starts(0, 5);
    let mut batch = owner.batch(rows);
    batch.envelopes = vec![envelope(0, 1, 1), envelope(0, 1, 2), envelope(0, 2, 1)];
    append(&mut *store, batch);
    let statuses = [Status::Done, Status::Failed, Status::Done, Status::Sleeping, Status::Done];
    let record = |(n, status)| {
        let mut record = owner.record(run_id(ShardId(0), n));
        record.status = status;
        record.reservation = n == 4;
        record
    };
    let records = (0..).zip(statuses).map(record).collect();
    flush(&mut *store, &owner.flush(records));
    let receiver = Owner::open(&mut *store, 1);
    let mut batch = receiver.batch(Vec::new());
    batch.consumed = vec![(ShardId(0), 1)];
    append(&mut *store, batch);
    let stats = store.reader().expect("a reader").stats().expect("counts");
    assert_eq!(stats.journal_rows, 5);
    let runs: Vec<(&str, u64)> = stats.runs.iter().map(|(name, count)| (&**name, *count)).collect();
    assert_eq!(runs, [("done", 2), ("failed", 1), ("sleeping", 1)]);
    assert_eq!(stats.envelopes, 2, "the one that was consumed does not wait");
    assert!(stats.bytes > 0);
}
