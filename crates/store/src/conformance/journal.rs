//! A run's journal, followed from its last row back to its first.

use abide_kernel::{Row, Seq, ShardId};

use super::Fixture;
use super::make::{Owner, append, run_id, signal};
use crate::FaultKind;

/// Rows of many runs lie mixed in one log; each run's journal holds its own, in order, without a gap.
pub fn a_journal_is_followed_back_from_its_head(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    for shard in [0, 3] {
        let mut owner = Owner::open(&mut *store, shard);
        let mut rows = owner.starts(0, 7);
        for id in 1..20 {
            for n in (0..7).filter(|n| (id * n) % 3 != 2) {
                rows.push(owner.row(run_id(ShardId(shard), n), signal(id, "{}")));
            }
        }
        append(&mut *store, owner.batch(rows.clone()));
        let mut reader = store.reader().expect("a reader");
        for n in 0..7 {
            let run = run_id(ShardId(shard), n);
            let own: Vec<Row> = rows.iter().filter(|row| row.run == run).cloned().collect();
            let journal = reader.journal(run, owner.head_of(run), 0).expect("a journal");
            assert_eq!(journal, own);
            assert!(journal.iter().map(|row| row.rev.0).eq(1..=own.len() as u64));
            // An earlier head gives the journal as it was then.
            let earlier = reader.journal(run, own[2].seq, 0).expect("a journal");
            assert_eq!(earlier, own[..3]);
        }
        let run = run_id(ShardId(shard), 1);
        assert!(reader.journal(run, Seq(0), 0).expect("nothing").is_empty());
        // A head that is another run's, or that does not exist, is never answered with someone else's rows.
        for wrong in [Seq(1), Seq(1_000_000)] {
            let fault = reader.journal(run, wrong, 0).expect_err("not a row of this run");
            let position = Some((ShardId(shard), wrong));
            let run = Some(run);
            assert_eq!(fault.kind, FaultKind::Corrupt { run, position });
        }
    }
}

/// Thousands of rows, and only the end of them when that is asked for.
pub fn a_long_journal_is_read_from_any_revision(fixture: &mut dyn Fixture) {
    const LONG: u64 = 3_000;
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let run = run_id(ShardId(0), 0);
    let mut rows = owner.starts(0, 2);
    rows.extend((1..LONG).map(|id| owner.row(run, signal(id, "0"))));
    for chunk in rows.chunks(500) {
        append(&mut *store, owner.batch(chunk.to_vec()));
    }
    let mut reader = store.reader().expect("a reader");
    for from in [0, 1, 2, 1_500, LONG, LONG + 1] {
        let before = store.counters().reads;
        let journal = reader.journal(run, owner.head_of(run), from).expect("a journal");
        let revs = journal.iter().map(|row| row.rev.0);
        assert!(revs.eq(from.max(1)..=LONG), "from {from}");
        assert_eq!(store.counters().reads, before + 1);
    }
}

/// A page of a long journal is found without reading the rows around it, and read until it is large enough.
pub fn a_long_journal_is_read_in_pages(fixture: &mut dyn Fixture) {
    const LONG: u64 = 2_500;
    let mut store = fixture.make();
    let mut owner = Owner::open(&mut *store, 0);
    let (run, other) = (run_id(ShardId(0), 0), run_id(ShardId(0), 1));
    let mut rows = owner.starts(0, 2);
    rows.extend((1..LONG).map(|id| owner.row(run, signal(id, "0"))));
    let own: Vec<Row> = rows.iter().filter(|row| row.run == run).cloned().collect();
    for chunk in rows.chunks(500) {
        append(&mut *store, owner.batch(chunk.to_vec()));
    }
    let mut reader = store.reader().expect("a reader");
    let head = owner.head_of(run);
    for (from, most) in [(0, 10), (1, 1), (1_200, 700), (LONG - 3, 100), (LONG + 1, 5)] {
        let trail = reader.trail(run, head, from, most).expect("a trail");
        let expected: Vec<&Row> = own.iter().filter(|row| row.rev.0 >= from).take(most).collect();
        assert!(trail.iter().eq(expected.iter().map(|row| &row.seq)), "{most} from {from}");
        let read = reader.rows(run, &trail, usize::MAX).expect("rows");
        assert!(read.iter().eq(expected), "{most} from {from}");
    }
    let trail = reader.trail(run, head, 1, 1_000).expect("a trail");
    let size = |row: &Row| serde_json::to_vec(&row.facts).expect("facts have a JSON form").len();
    for most in [0, 1, size(&own[0]) + 1, 10_000] {
        let read = reader.rows(run, &trail, most).expect("rows");
        let all: usize = read.iter().map(size).sum();
        let without_last = all - read.last().map_or(0, size);
        assert!(!read.is_empty() && all >= most && (without_last < most || read.len() == 1), "{most}");
        assert_eq!(read, own[..read.len()]);
    }
    assert!(reader.rows(run, &[], 9).expect("nothing").is_empty());
    for wrong in [reader.trail(other, head, 0, 9).map(drop), reader.rows(other, &trail[..1], 9).map(drop)] {
        assert!(matches!(wrong.expect_err("not its rows").kind, FaultKind::Corrupt { .. }));
    }
}
