//! Index rows and checkpoints: written behind, found again, never the truth.

use std::collections::BTreeMap;

use abide_kernel::shard::{Flush, LinePlace};
use abide_kernel::{Run, RunId, Seq, ShardId, Status, Timestamp};

use super::Fixture;
use super::make::{Dice, Owner, append, flush, log, open, run_id, signal};
use crate::Verdict;

/// An index row of an earlier revision never replaces a later one, whatever else it says.
pub fn a_checkpoint_only_moves_forward(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let run = run_id(ShardId(0), 0);
    let mut rows = owner.starts(0, 1);
    let mut early = owner.record(run);
    rows.extend((1..4).map(|id| owner.row(run, signal(id, "1"))));
    append(&mut *store, owner.batch(rows));
    let mut late = owner.record(run);
    (early.status, early.due) = (Status::Sleeping, Some(Timestamp(9)));
    (late.status, late.occupies) = (Status::Executing, Some("k".into()));
    flush(&mut *store, &owner.flush(vec![early.clone()]));
    let stored = store.read_run(run).expect("a run").expect("it is there");
    assert_eq!((stored.run.rev.0, stored.head), (1, Seq(1)));
    for records in [vec![late], vec![early]] {
        flush(&mut *store, &owner.flush(records));
        let stored = store.read_run(run).expect("a run").expect("it is there");
        assert_eq!((stored.run.rev.0, stored.head), (4, Seq(4)));
        assert_eq!(&stored.run, owner.folded(run));
        assert_eq!(store.read_claimed(ShardId(0)).expect("claimed"), [run]);
        assert_eq!(store.read_key("k").expect("a key"), Some(run));
        let due = store.read_due(ShardId(0), Timestamp(0), 9).expect("deadlines");
        assert!(due.entries.is_empty());
    }
}

/// Index rows of several shards go in together; those of a shard that was taken stay out, and purged runs of others with
/// them.
pub fn index_rows_of_a_group_go_in_without_a_stale_shard(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owners: Vec<Owner> = (0..3).map(|shard| Owner::open(&mut *store, shard)).collect();
    for owner in &mut owners {
        let rows = owner.starts(0, 2);
        append(&mut *store, owner.batch(rows));
    }
    let all: Vec<_> = owners.iter().map(|owner| owner.flush(vec![owner.record(run_id(owner.shard, 0))])).collect();
    assert_eq!(store.flush(&all).expect("an answer"), [Verdict::Durable; 3]);
    let taken = open(&mut *store, 1);
    let again: Vec<_> = owners
        .iter()
        .map(|owner| Flush {
            purged: vec![(run_id(owner.shard, 0), Seq(2))],
            ..owner.flush(vec![owner.record(run_id(owner.shard, 1))])
        })
        .collect();
    let verdicts = store.flush(&again).expect("an answer");
    assert_eq!(verdicts, [Verdict::Durable, Verdict::Stale, Verdict::Durable]);
    for shard in 0..3 {
        let [first, second] = [0, 1].map(|n| store.read_run(run_id(ShardId(shard), n)).expect("an answer").is_some());
        assert_eq!((first, second), if shard == 1 { (true, false) } else { (false, true) }, "shard {shard}");
    }
    assert_eq!(taken.watermark, Seq(2));
    assert_eq!(store.flush(&[]).expect("an answer"), []);
}

/// With every index row gone, the log gives the same runs, and index rows written from it are the same again.
pub fn without_index_rows_every_answer_can_be_rebuilt(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let runs: Vec<RunId> = (0..5).map(|n| run_id(ShardId(0), n)).collect();
    let mut rows = owner.starts(0, 5);
    for id in 1..4 {
        rows.extend(runs.iter().map(|run| owner.row(*run, signal(id, "[]"))));
    }
    append(&mut *store, owner.batch(rows.clone()));
    let records: Vec<_> = runs.iter().map(|run| owner.record(*run)).collect();
    flush(&mut *store, &owner.flush(records.clone()));
    let before: Vec<_> = runs.iter().map(|run| store.read_run(*run)).collect();

    let mut store = fixture.lose_index(store);
    let opened = open(&mut *store, 0);
    assert_eq!((opened.head, opened.watermark), (Seq(20), Seq(0)));
    assert!(store.read_run(runs[0]).expect("a run").is_none());
    assert_eq!(log(&mut *store, 0, 6), rows);
    let mut reader = store.reader().expect("a reader");
    for (run, before) in runs.iter().zip(before) {
        let before = before.expect("a run").expect("it was there").run;
        let journal = reader.journal(*run, owner.head_of(*run), 0).expect("the journal stands");
        let mut rebuilt = Run::begin(&journal[0]).expect("it begins");
        for row in &journal[1..] {
            rebuilt.apply_row(row);
        }
        assert_eq!(rebuilt, before);
    }
    owner.epoch = opened.epoch;
    flush(&mut *store, &owner.flush(records));
    assert_eq!(open(&mut *store, 0).watermark, Seq(20));
    let stored = store.read_run(runs[4]).expect("a run").expect("it is there");
    assert_eq!(&stored.run, owner.folded(runs[4]));
}

/// A business key leads to the run that occupies it now, also when it changes hands within one flush.
pub fn a_key_is_found_by_the_run_that_occupies_it(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let rows = owner.starts(0, 2);
    append(&mut *store, owner.batch(rows));
    let (first, second) = (run_id(ShardId(0), 0), run_id(ShardId(0), 1));
    let with = |run, key: Option<&str>| {
        let mut record = owner.record(run);
        record.occupies = key.map(Into::into);
        record
    };
    assert_eq!(store.read_key("a").expect("a key"), None);
    flush(&mut *store, &owner.flush(vec![with(first, Some("a"))]));
    assert_eq!(store.read_key("a").expect("a key"), Some(first));
    assert_eq!(store.read_key("A").expect("a key"), None);
    assert_eq!(store.read_key("").expect("a key"), None);
    flush(&mut *store, &owner.flush(vec![with(second, Some("a")), with(first, None)]));
    assert_eq!(store.read_key("a").expect("a key"), Some(second));
    flush(&mut *store, &owner.flush(vec![with(second, Some("b"))]));
    assert_eq!(store.read_key("a").expect("a key"), None);
    assert_eq!(store.read_key("b").expect("a key"), Some(second));
}

/// Pages of deadlines never split an instant, so that "from here on" misses nothing and repeats nothing.
pub fn deadlines_come_in_pages_that_end_between_instants(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut dice = Dice::new(7);
    let mut expected = Vec::new();
    for shard in 0..2 {
        let mut owner = Owner::open(&mut *store, shard);
        let rows = owner.starts(0, 120);
        append(&mut *store, owner.batch(rows));
        let mut records = Vec::new();
        for n in 0..120 {
            let mut record = owner.record(run_id(ShardId(shard), n));
            // Many at one instant, one far away, one in the past, some without.
            record.due = match n {
                0 => Some(Timestamp(i64::MAX)),
                1 => Some(Timestamp(-5)),
                2..50 => Some(Timestamp(40)),
                100.. => None,
                _ => Some(Timestamp(dice.roll(60) as i64)),
            };
            if let (0, Some(due)) = (shard, record.due) {
                expected.push((due, record.run));
            }
            records.push(record);
        }
        flush(&mut *store, &owner.flush(records));
    }
    expected.sort();
    for page in [1, 2, 10, 48, 99, 100, 101, 1_000] {
        let mut found = Vec::new();
        let mut from = Some(Timestamp(i64::MIN));
        while let Some(at) = from {
            let due = store.read_due(ShardId(0), at, page).expect("deadlines");
            assert!(!due.entries.is_empty(), "a page that begins somewhere holds something");
            assert!(due.more_from.is_none() || due.entries.len() >= page);
            assert!(due.more_from.is_none_or(|next| next > at), "it must come to an end");
            found.extend(due.entries);
            from = due.more_from;
        }
        assert_eq!(found, expected, "in pages of {page}");
    }
    let late = store.read_due(ShardId(0), Timestamp(61), 10).expect("deadlines");
    assert_eq!(late.entries.len(), 1);
    let none = store.read_due(ShardId(3), Timestamp(0), 10).expect("deadlines");
    assert!(none.entries.is_empty() && none.more_from.is_none());
}

/// GD-32: waiting runs come line by line, by priority, then by how long they can be claimed, then by arrival; later
/// ones stay hidden, and pages begin where the one before ended.
pub fn ready_runs_come_in_claim_order(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let mut other = Owner::open(&mut *store, 1);
    for owner in [&mut owner, &mut other] {
        let rows = owner.starts(0, 60);
        append(&mut *store, owner.batch(rows));
    }
    let mut dice = Dice::new(3);
    let lines = ["lane [\"n\",\"q\",\"w\",1]", "lane [\"n\",\"q\",\"w\",10]", "key [\"n\",\"\u{fc}\"]"];
    let mut expected: BTreeMap<&str, Vec<LinePlace>> = BTreeMap::new();
    let mut records = Vec::new();
    for n in 0..60 {
        let mut record = owner.record(run_id(ShardId(0), n));
        let priority = *dice.pick(&[i32::MIN, -1, 0, 0, 5]);
        let (eligible_at, arrival) = (Timestamp(dice.roll(20) as i64), Seq(dice.roll(30)));
        let place = LinePlace { priority, eligible_at, arrival, run: record.run };
        if n % 10 != 0 {
            let line = *dice.pick(&lines);
            record.ready = Some((line.into(), place));
            if eligible_at <= Timestamp(15) {
                expected.entry(line).or_default().push(place);
            }
        }
        records.push(record);
    }
    flush(&mut *store, &owner.flush(records));
    let mut elsewhere = other.record(run_id(ShardId(1), 0));
    let place = LinePlace { priority: i32::MIN, eligible_at: Timestamp(0), arrival: Seq(0), run: elsewhere.run };
    elsewhere.ready = Some((lines[0].into(), place));
    flush(&mut *store, &other.flush(vec![elsewhere]));
    assert_eq!(store.read_lines(ShardId(0)).expect("lines"), expected.keys().copied().collect::<Vec<_>>());
    assert_eq!(store.read_lines(ShardId(1)).expect("lines"), [lines[0]]);
    for (line, mut expected) in expected {
        expected.sort();
        for most in [1, 5, expected.len(), 1_000] {
            let mut found: Vec<LinePlace> = Vec::new();
            loop {
                let after = found.last().copied();
                let page = store.read_ready(ShardId(0), line, after, Timestamp(15), most).expect("a page");
                assert!(page.places.len() <= most);
                found.extend(page.places);
                assert_eq!(page.more, found.len() < expected.len());
                if !page.more {
                    break;
                }
            }
            assert_eq!(found, expected, "in pages of {most}");
        }
    }
    let none = store.read_ready(ShardId(0), "lane of nobody", None, Timestamp(15), 5).expect("a page");
    assert!(none.places.is_empty() && !none.more);
}

/// Runs held by a worker are found when a shard is opened.
pub fn claimed_runs_are_found_by_shard(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut held = Vec::new();
    for shard in 0..2 {
        let mut owner = Owner::open(&mut *store, shard);
        let rows = owner.starts(0, Status::ALL.len() as u64);
        append(&mut *store, owner.batch(rows));
        let mut records = Vec::new();
        for (n, status) in (0..).zip(Status::ALL) {
            let mut record = owner.record(run_id(ShardId(shard), n));
            record.status = status;
            if (shard, status) == (1, Status::Executing) {
                held.push(record.run);
            }
            records.push(record);
        }
        flush(&mut *store, &owner.flush(records));
    }
    assert_eq!(store.read_claimed(ShardId(1)).expect("claimed"), held);
    assert!(store.read_claimed(ShardId(2)).expect("claimed").is_empty());
}
