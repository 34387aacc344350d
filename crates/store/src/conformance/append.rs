//! Append: whole or not at all, in order, and only by the owner.

use std::sync::{Arc, Mutex};
use std::thread;

use abide_kernel::{Row, Seq, ShardEpoch, ShardId};

use super::Fixture;
use super::make::{Owner, append, log, run_id, signal, started};
use crate::Verdict;

/// Rows come back as they were written, in order of position, in pages of any size, each shard on its own.
pub fn rows_come_back_in_order(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut written: Vec<Vec<Row>> = Vec::new();
    for shard in 0..super::SHARDS {
        let mut owner = Owner::open(&mut *store, shard);
        let mut all = Vec::new();
        // Sizes around the number of rows that a store may write by one statement.
        for (batch, size) in [1, 15, 16, 17, 33].into_iter().enumerate() {
            let first = batch as u64 * 100;
            let rows = owner.starts(first, first + size + u64::from(shard));
            append(&mut *store, owner.batch(rows.clone()));
            all.extend(rows);
        }
        written.push(all);
    }
    for (shard, rows) in (0u16..).zip(&written) {
        for page in [1, 7, 1_000] {
            assert_eq!(&log(&mut *store, shard, page), rows);
        }
        assert!(rows.iter().map(|row| row.seq.0).eq(1..=rows.len() as u64));
    }
    let beyond = store.scan(ShardId(0), Seq(1_000_000), 10).expect("beyond the end there is nothing");
    assert!(beyond.is_empty());
}

/// A batch under an earlier ownership, or under none, is refused, and nothing of it is written.
pub fn a_stale_owner_writes_nothing(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut unopened = Owner::after(
        1,
        &crate::Opened {
            epoch: ShardEpoch(0),
            head: Seq(0),
            watermark: Seq(0),
            sent: Vec::new(),
            consumed: Vec::new(),
            last_at: abide_kernel::Timestamp(0),
        },
    );
    let rows = unopened.starts(0, 1);
    let verdicts = store.append(&[unopened.batch(rows)]);
    assert_eq!(verdicts.expect("an answer"), [Verdict::Stale]);
    let mut old = Owner::open(&mut *store, 0);
    let rows = old.starts(0, 3);
    append(&mut *store, old.batch(rows));
    let new = Owner::open(&mut *store, 0);
    assert!(new.epoch > old.epoch);
    assert_eq!(new.head, old.head);
    let mut batch = old.starts(3, 5);
    let mut stale = old.batch(std::mem::take(&mut batch));
    stale.consumed.push((ShardId(1), 9));
    stale.envelopes.push(super::make::envelope(0, 1, 1));
    assert_eq!(store.append(&[stale]).expect("an answer"), [Verdict::Stale]);
    let stale = old.flush(vec![old.record(run_id(ShardId(0), 3))]);
    assert_eq!(store.flush(&[stale]).expect("an answer"), [Verdict::Stale]);
    assert_eq!(log(&mut *store, 0, 10).len(), 3);
    assert_eq!(log(&mut *store, 1, 10).len(), 0);
    assert!(store.read_envelopes(ShardId(1), 10).expect("envelopes").is_empty());
    assert!(store.read_run(run_id(ShardId(0), 3)).expect("a run").is_none());
    let opened = super::make::open(&mut *store, 0);
    assert_eq!((opened.consumed[1], opened.watermark), (0, Seq(0)));
}

/// Positions are dense: one that is taken, or that leaves a hole before or inside the batch, is refused whole.
pub fn a_taken_or_skipped_position_is_refused(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 2);
    let rows = owner.starts(0, 4);
    append(&mut *store, owner.batch(rows[..2].to_vec()));
    let taken = owner.batch(rows[1..3].to_vec());
    let skipped = owner.batch(rows[3..].to_vec());
    let first = owner.batch(rows[..1].to_vec());
    let mut hole = owner.starts(4, 6);
    hole.insert(0, rows[2].clone());
    let hole = owner.batch(hole);
    let mut twice = owner.batch(rows[2..].to_vec());
    twice.rows[1].seq = twice.rows[0].seq;
    for wrong in [taken, skipped, first, hole, twice] {
        assert_eq!(store.append(&[wrong]).expect("an answer"), [Verdict::Stale]);
        assert_eq!(log(&mut *store, 2, 10), rows[..2]);
    }
    append(&mut *store, owner.batch(rows[2..].to_vec()));
    assert_eq!(log(&mut *store, 2, 10), rows);
}

/// In a group, each shard's batch goes in or not on its own.
pub fn a_stale_shard_does_not_stop_its_group(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owners: Vec<Owner> = (0..3).map(|shard| Owner::open(&mut *store, shard)).collect();
    Owner::open(&mut *store, 1);
    let group: Vec<_> = owners
        .iter_mut()
        .map(|owner| {
            let rows = owner.starts(0, 20);
            owner.batch(rows)
        })
        .collect();
    let verdicts = store.append(&group).expect("an answer");
    assert_eq!(verdicts, [Verdict::Durable, Verdict::Stale, Verdict::Durable]);
    let lengths: Vec<usize> = (0..3).map(|shard| log(&mut *store, shard, 50).len()).collect();
    assert_eq!(lengths, [20, 0, 20]);
    assert_eq!(log(&mut *store, 2, 50), group[2].rows);
    assert!(store.append(&[]).expect("an answer").is_empty());
}

/// Two batches of one shard in one group are judged one after the other.
pub fn batches_of_one_shard_follow_each_other_in_a_group(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 3);
    let rows = owner.starts(0, 4);
    let first = owner.batch(rows[..2].to_vec());
    let second = owner.batch(rows[2..].to_vec());
    let verdicts = store.append(&[first.clone(), first, second]);
    assert_eq!(verdicts.expect("an answer"), [Verdict::Durable, Verdict::Stale, Verdict::Durable]);
    assert_eq!(log(&mut *store, 3, 10), rows);
}

/// Text passes untouched: none, any script, control characters, quotes, white space inside, and megabytes.
pub fn any_text_of_any_size_comes_back(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let run = run_id(ShardId(0), 1);
    let huge = format!("\"{}\"", "x".repeat(4 * 1024 * 1024));
    let payloads = [
        "null",
        r#""""#,
        r#"{"a" :  [ 1.0, 1e400, -0 ]}"#,
        r#""żółć – 日本語 🦀 \u0000 \" ' ; -- \ud83d\ude00""#,
        "12345678901234567890123456789",
        &huge,
    ];
    let mut rows = vec![owner.row(run, started("ünï 'quoted' ☃"))];
    for (id, payload) in (1..).zip(payloads) {
        rows.push(owner.row(run, signal(id, payload)));
    }
    append(&mut *store, owner.batch(rows.clone()));
    let mut record = owner.record(run);
    record.key = Some("".into());
    record.occupies = Some("名前\0/w/ключ".into());
    record.step = Some("'; DROP TABLE run; --".into());
    super::make::flush(&mut *store, &owner.flush(vec![record]));
    let mut store = fixture.reopen(store);
    assert_eq!(log(&mut *store, 0, 100), rows);
    let stored = store.read_run(run).expect("a run").expect("it is there");
    assert_eq!(&stored.run, owner.folded(run));
    assert_eq!(store.read_key("名前\0/w/ключ").expect("a key"), Some(run));
    assert_eq!(store.read_key("名前").expect("a key"), None);
    let mut reader = store.reader().expect("a reader");
    let listed = reader.list(&crate::Filter::default(), &crate::Page::default()).expect("a listing");
    assert_eq!(listed[0].key.as_deref(), Some(""));
    assert_eq!(listed[0].step.as_deref(), Some("'; DROP TABLE run; --"));
}

/// Threads that each take the next position as they know it: one wins a position, the others are refused and look
/// again, and in the end every row is there once.
pub fn appenders_side_by_side_never_overwrite(fixture: &mut dyn Fixture) {
    const THREADS: u64 = 4;
    const ROWS: u64 = 25;
    let mut store = fixture.make();
    let epoch = Owner::open(&mut *store, 0).epoch;
    let store = Arc::new(Mutex::new(store));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let store = store.clone();
            thread::spawn(move || {
                let mut refused = 0;
                for n in 0..ROWS {
                    let run = run_id(ShardId(0), thread * 1_000 + n);
                    loop {
                        // The position is read and used under different locks, so others come in between.
                        let head = log(&mut **store.lock().expect("lock"), 0, 500).len() as u64;
                        thread::yield_now();
                        let mut owner = Owner::after(0, &opened_at(epoch, head));
                        let row = owner.row(run, started("w"));
                        let batch = owner.batch(vec![row]);
                        let verdicts = store.lock().expect("lock").append(&[batch]);
                        if verdicts.expect("an answer") == [Verdict::Durable] {
                            break;
                        }
                        refused += 1;
                    }
                }
                refused
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    let rows = log(&mut **store.lock().expect("lock"), 0, 500);
    assert!(rows.iter().map(|row| row.seq.0).eq(1..=THREADS * ROWS));
    let mut runs: Vec<_> = rows.iter().map(|row| row.run).collect();
    runs.sort();
    runs.dedup();
    assert_eq!(runs.len() as u64, THREADS * ROWS);
}

fn opened_at(epoch: ShardEpoch, head: u64) -> crate::Opened {
    crate::Opened {
        epoch,
        head: Seq(head),
        watermark: Seq(0),
        sent: Vec::new(),
        consumed: Vec::new(),
        last_at: abide_kernel::Timestamp(0),
    }
}
