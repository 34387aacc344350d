//! Listings: every filter, in pages, newest first.

use abide_kernel::shard::Record;
use abide_kernel::{Rev, RunId, ShardId, Status, Str, Timestamp};

use super::make::{Dice, Owner, append, flush, run_id};
use super::{Fixture, SHARDS};
use crate::{Filter, Listed, Page, Period, Reader, Store};

const WORDS: [&str; 4] = ["default", "b", "B", "ж'"];

/// Names and values that are alike, and signs that a store could take for its own.
const LABELS: [(&str, &str); 8] =
    [("b", "B"), ("b", "B\n"), ("b=", "B"), ("b", "=B"), ("b", ""), ("%", "ж'\\"), ("b", "\0"), ("B", "B\nb=B")];

/// Runs whose listing fields were drawn by lot, and their index rows in the store.
fn drawn(store: &mut dyn Store, seed: u64) -> Vec<Record> {
    let mut dice = Dice::new(seed);
    let mut all = Vec::new();
    for shard in 0..SHARDS {
        let mut owner = Owner::open(store, shard);
        let rows = owner.starts(0, 60);
        append(store, owner.batch(rows));
        let mut records: Vec<Record> = (0..60).map(|n| owner.record(run_id(ShardId(shard), n))).collect();
        records.iter_mut().for_each(|record| draw(&mut dice, record));
        flush(store, &owner.flush(records.clone()));
        // Some of them change, and their index rows are written again.
        let changing: Vec<usize> = (0..60).filter(|_| dice.roll(4) == 0).collect();
        for index in &changing {
            let record = &mut records[*index];
            let reservation = record.reservation;
            draw(&mut dice, record);
            (record.reservation, record.rev) = (reservation, Rev(record.rev.0 + 1));
        }
        flush(store, &owner.flush(changing.iter().map(|index| records[*index].clone()).collect()));
        all.extend(records);
    }
    all.sort_by_key(|record| std::cmp::Reverse(record.run));
    all
}

fn draw(dice: &mut Dice, record: &mut Record) {
    record.namespace = (*dice.pick(&WORDS)).into();
    record.workflow = (*dice.pick(&WORDS)).into();
    record.queue = (*dice.pick(&WORDS)).into();
    record.status = *dice.pick(&Status::ALL);
    record.version = dice.roll(3) as u32;
    record.step = (dice.roll(2) == 0).then(|| "step".into());
    record.key = (dice.roll(2) == 0).then(|| (*dice.pick(&WORDS)).into());
    record.parent = (dice.roll(3) == 0).then(|| run_id(ShardId(0), dice.roll(3)));
    record.due = (dice.roll(2) == 0).then(|| Timestamp(dice.roll(1_000) as i64));
    record.labels = (0..dice.roll(4)).map(|_| label(dice)).collect();
    (record.created_at, record.updated_at) = (Timestamp(instant(dice)), Timestamp(instant(dice)));
    record.reservation = dice.roll(10) == 0;
}

fn label(dice: &mut Dice) -> (Str, Str) {
    let (name, value) = *dice.pick(&LABELS);
    (name.into(), value.into())
}

/// Few, so that bounds are met exactly; some lie before 1970.
fn instant(dice: &mut Dice) -> i64 {
    dice.roll(8) as i64 - 2
}

/// Looks at every run, and at every field by itself: nothing of what the stores ask is asked here.
fn plain(records: &[Record], filter: &Filter, page: &Page) -> Vec<Listed> {
    let mut found = Vec::new();
    for record in records {
        let Filter { namespace, workflow, statuses, queue, key, parent, labels, created, updated } = filter;
        let wrong = [
            record.reservation,
            page.before.is_some_and(|before| record.run >= before),
            namespace.as_deref().is_some_and(|wanted| wanted != &*record.namespace),
            workflow.as_deref().is_some_and(|wanted| wanted != &*record.workflow),
            queue.as_deref().is_some_and(|wanted| wanted != &*record.queue),
            key.is_some() && *key != record.key,
            parent.is_some() && *parent != record.parent,
            !statuses.is_empty() && !statuses.contains(&record.status),
            labels.iter().any(|wanted| !record.labels.iter().any(|label| label == wanted)),
            created.from.is_some_and(|from| record.created_at < from),
            created.before.is_some_and(|before| record.created_at >= before),
            updated.from.is_some_and(|from| record.updated_at < from),
            updated.before.is_some_and(|before| record.updated_at >= before),
        ];
        if !wrong.contains(&true) && found.len() < page.most {
            found.push(Listed::from(record));
        }
    }
    found
}

/// Whatever is asked for, the store answers as one who looks at every run.
pub fn every_filter_agrees_with_a_plain_one(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let records = drawn(&mut *store, 11);
    let mut reader = store.reader().expect("a reader");
    let mut dice = Dice::new(12);
    let mut hits = 0;
    for _ in 0..1_000 {
        let filter = any_filter(&mut dice);
        let before = (dice.roll(3) == 0).then(|| dice.pick(&records).run);
        let most = *dice.pick(&[0, 1, 10, 1_000]);
        let page = Page { most, before };
        let found = reader.list(&filter, &page).expect("a listing");
        assert_eq!(found, plain(&records, &filter, &page), "{filter:?} {page:?}");
        hits += found.len();
    }
    assert!(hits > 2_500, "the filters must find something: {hits}");
}

fn any_filter(dice: &mut Dice) -> Filter {
    let mut word = |odds| (dice.roll(odds) == 0).then(|| Str::from(*dice.pick(&WORDS)));
    let (namespace, workflow, queue, key) = (word(4), word(4), word(4), word(4));
    let parent = (dice.roll(4) == 0).then(|| run_id(ShardId(0), dice.roll(4)));
    let statuses = (0..dice.roll(4)).map(|_| *dice.pick(&Status::ALL)).collect();
    let labels = (0..dice.roll(8).saturating_sub(5)).map(|_| label(dice)).collect();
    let mut bound = |odds| (dice.roll(odds) == 0).then(|| Timestamp(instant(dice)));
    let created = Period { from: bound(8), before: bound(8) };
    let updated = Period { from: bound(8), before: bound(8) };
    Filter { namespace, workflow, statuses, queue, key, parent, labels, created, updated }
}

/// Each page begins after the last run of the one before; nothing is missed and nothing comes twice, also when
/// newer runs arrive in between.
pub fn pages_have_no_gap_and_no_repeat(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let records = drawn(&mut *store, 5);
    let mut reader = store.reader().expect("a reader");
    let statuses = vec![Status::Runnable, Status::Failed, Status::Sleeping];
    let filter = Filter { statuses, ..Filter::default() };
    let all = Page { most: usize::MAX, before: None };
    let expected = plain(&records, &filter, &all);
    assert_eq!(reader.list(&filter, &all).expect("a listing"), expected);
    let mut owner = Owner::open(&mut *store, 0);
    let mut found: Vec<Listed> = Vec::new();
    for newer in 0.. {
        assert!(newer < 1_000, "the pages must come to an end");
        let before = found.last().map(|listed| listed.run);
        let page = reader.list(&filter, &Page { most: 7, before }).expect("a listing");
        if page.is_empty() {
            break;
        }
        found.extend(page);
        let rows = owner.starts(1_000 + newer, 1_001 + newer);
        let run = rows[0].run;
        append(&mut *store, owner.batch(rows));
        flush(&mut *store, &owner.flush(vec![owner.record(run)]));
    }
    assert_eq!(found, expected);
}

/// The first digits of an id find it; what cannot begin an id finds nothing.
pub fn runs_are_found_by_the_beginning_of_their_id(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    let mut records = drawn(&mut *store, 2);
    records.reverse();
    let mut reader = store.reader().expect("a reader");
    let shown: Vec<RunId> = records.iter().filter(|record| !record.reservation).map(|record| record.run).collect();
    let digits: Vec<String> = shown.iter().map(|run| run.to_string().replace("run_", "")).collect();
    for length in [0, 1, 11, 12, 13, 20, 32] {
        let prefix = &digits[7][..length];
        let expected: Vec<RunId> =
            shown.iter().zip(&digits).filter(|(_, digits)| digits.starts_with(prefix)).map(|(run, _)| *run).collect();
        assert_eq!(reader.find(prefix, 1_000).expect("an answer"), expected);
        assert_eq!(reader.find(prefix, 2).expect("an answer"), expected[..expected.len().min(2)]);
    }
    let long = format!("{}0", digits[7]);
    // One digit too many, and yet the same number.
    let padded = format!("0{}", digits[7]);
    let upper = digits[7].to_uppercase();
    let run = shown[7].to_string();
    for nothing in ["g", "+0", " ", "%", "é", &long, &padded, &upper, &run] {
        assert_eq!(absent(&mut *reader, nothing), [], "{nothing:?}");
    }
}

fn absent(reader: &mut dyn Reader, prefix: &str) -> Vec<RunId> {
    reader.find(prefix, 10).expect("an answer")
}
