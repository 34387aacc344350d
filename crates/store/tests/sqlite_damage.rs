//! Damage in a SQLite file: found, named, and confined.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod crashed;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::shard::{Batch, Flush, LinePlace, Record};
use abide_kernel::{Row, RunId, Seq, ShardId, Status, Timestamp};
use abide_store::sqlite::open_read_only;
use abide_store::{Fault, FaultKind, Filter, Page, Reader, Store};
use crashed::{File, edit};

const ROWS: u64 = 40;

fn record(row: &Row) -> Record {
    let place = LinePlace { priority: 0, eligible_at: Timestamp(5), arrival: row.seq, run: row.run };
    Record {
        run: row.run,
        head: row.seq,
        rev: row.rev,
        namespace: "default".into(),
        workflow: "w".into(),
        version: 1,
        queue: "default".into(),
        status: Status::Sleeping,
        step: None,
        key: None,
        occupies: Some(format!("key {}", row.seq.0)),
        parent: None,
        labels: vec![("team".into(), "ops".into())],
        created_at: row.at,
        updated_at: row.at,
        due: Some(Timestamp(5)),
        ready: Some(("line".into(), place)),
        reservation: false,
        checkpoint: b"{}".to_vec(),
    }
}

/// A closed store with rows and index rows of one shard, and an envelope.
fn written() -> (File, Vec<Row>) {
    let file = File::new(2);
    let mut store = file.open();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    let rows: Vec<Row> = (1..=ROWS).map(|seq| crashed::row(0, seq)).collect();
    let envelope =
        Envelope { from: ShardId(0), to: ShardId(1), number: 1, message: Message::Begun { reservation: rows[0].run } };
    let batch = Batch { epoch, rows: rows.clone(), envelopes: vec![envelope], ..Batch::default() };
    store.append(&[batch]).unwrap();
    let flush = Flush { epoch, through: Seq(ROWS), records: rows.iter().map(record).collect(), ..Flush::default() };
    store.flush(&[flush]).unwrap();
    store.close().unwrap();
    (file, rows)
}

fn damaged(sql: &str) -> (File, Vec<Row>) {
    let (file, rows) = written();
    edit(&file.path(), sql);
    (file, rows)
}

fn faults(file: &File) -> Vec<Fault> {
    let mut reader = open_read_only(&file.path()).unwrap();
    let rows = reader.scan(ShardId(0), Seq(0), 1_000).unwrap();
    rows.into_iter().filter_map(Result::err).collect()
}

fn corrupt(run: Option<RunId>, seq: u64) -> FaultKind {
    let position = Some((ShardId(0), Seq(seq)));
    FaultKind::Corrupt { run, position }
}

/// SQ-15: whichever column of a journal row is changed, the row is reported with run and position, and only it.
#[test]
fn a_change_to_any_column_of_a_row_is_noticed() {
    let changes = [
        "facts = replace(facts, 'parent', 'Parent')",
        "facts = '[]'",
        "facts = ''",
        "rev = rev + 1",
        "prior = 1",
        "at = at - 1",
        "checksum = checksum + 1",
        "checksum = 0, facts = '[]'",
        "run = zeroblob(16)",
    ];
    for change in changes {
        let (file, rows) = damaged(&format!("UPDATE journal SET {change} WHERE position = 7"));
        let found = faults(&file);
        assert_eq!(found.len(), 1, "{change}");
        let run = (!change.starts_with("run")).then_some(rows[6].run);
        let run = run.or(Some(RunId(0)));
        assert_eq!(found[0].kind, corrupt(run, 7), "{change}");
    }
    let (file, _) = damaged("UPDATE journal SET run = x'01' WHERE position = 7");
    assert_eq!(faults(&file)[0].kind, corrupt(None, 7));
}

/// SQ-15: a row that was moved to another place does not pass for the one that was there.
#[test]
fn rows_that_changed_places_are_noticed() {
    let swap = "UPDATE journal SET position = 1000 WHERE position = 3;
                UPDATE journal SET position = 3 WHERE position = 4;
                UPDATE journal SET position = 4 WHERE position = 1000";
    let (file, _) = damaged(swap);
    let found: Vec<_> = faults(&file).iter().map(Fault::position).collect();
    assert_eq!(found, [Some(Seq(3)), Some(Seq(4))]);
}

/// SQ-15: rows that are missing between others are a gap; rows missing at the end keep the shard from being opened,
/// because what was acknowledged is lost.
#[test]
fn missing_rows_are_noticed() {
    let (file, _) = damaged("DELETE FROM journal WHERE position IN (5, 6, 20)");
    let found = faults(&file);
    let positions: Vec<_> = found.iter().map(Fault::position).collect();
    assert_eq!(positions, [Some(Seq(5)), Some(Seq(20))]);
    assert!(found[0].to_string().contains("expected position 5, found 7"), "{}", found[0]);
    let (file, _) = damaged("DELETE FROM journal WHERE position > 38");
    let mut store = file.open();
    let fault = store.open_shard(ShardId(0), "a").unwrap_err();
    assert_eq!(fault.kind, corrupt(None, 39));
    assert!(fault.to_string().contains("restore"), "{fault}");
    assert!(store.open_shard(ShardId(1), "a").is_ok(), "other shards are opened");
}

/// SQ-15: what is decided by an index row is under its checksum, and a listing never guesses.
#[test]
fn a_change_to_an_index_row_is_noticed() {
    let changes = [
        "checkpoint = '[]'",
        "status = 'executing'",
        "due = due + 1",
        "due = NULL",
        "occupies = 'other'",
        "occupies = NULL",
        "priority = 1",
        "line = 'other'",
        "eligible_at = NULL",
        "arrival = 1",
        "head = 1",
        "rev = 9",
        "namespace = 'other'",
        "workflow = 'other'",
        "version = 2",
        "queue = 'other'",
        "step = 'other'",
        "key = 'other'",
        "parent = zeroblob(16)",
        "created_at = 1",
        "updated_at = 1",
        "reservation = 1",
        "shard = 1",
    ];
    for change in changes {
        let (file, rows) = damaged(&format!("UPDATE run SET {change} WHERE head = 9"));
        let mut reader = open_read_only(&file.path()).unwrap();
        let run = rows[8].run;
        let fault = reader.read_run(run).expect_err(change);
        let kind = FaultKind::Corrupt { run: Some(run), position: None };
        assert_eq!(fault.kind, kind, "{change}");
        assert!(fault.to_string().contains("checksum"), "{change}: {fault}");
    }
    let (file, rows) = damaged("UPDATE run SET status = 'runing' WHERE head = 9");
    let mut reader = open_read_only(&file.path()).unwrap();
    let fault = reader.list(&Filter::default(), &Page::default()).unwrap_err();
    assert!(fault.to_string().contains(&rows[8].run.to_string()), "{fault}");
}

/// SQ-15: so is what is kept of a shard, and of the messages between shards. Nought as a watermark is not damage: it says
/// that index rows are not to be believed.
#[test]
fn a_change_to_what_is_kept_of_a_shard_is_noticed() {
    for change in ["epoch = 9", "owner = 'other'", "head = 3", "last = 1", "checksum = 1", "watermark = 3"] {
        let (file, _) = damaged(&format!("UPDATE shard SET {change} WHERE id = 0"));
        let mut store = file.open();
        let fault = store.open_shard(ShardId(0), "a").expect_err(change);
        assert!(matches!(fault.kind, FaultKind::Corrupt { .. }), "{change}: {fault}");
        assert!(store.open_shard(ShardId(1), "a").is_ok(), "{change}: other shards are opened");
        assert!(!open_read_only(&file.path()).unwrap().integrity().unwrap().is_empty(), "{change}");
    }
    let (file, _) = damaged("DELETE FROM shard WHERE id = 1");
    let fault = file.open().open_shard(ShardId(1), "a").unwrap_err();
    assert!(fault.to_string().contains("missing"), "{fault}");
    let (file, _) = damaged("UPDATE shard SET watermark = 0");
    assert_eq!(file.open().open_shard(ShardId(0), "a").unwrap().watermark, Seq(0));
}

/// SQ-15: rows that vanish from the end are missed also where no index row was written of them: closing notes the end.
#[test]
fn the_end_of_a_log_is_known_outside_of_it() {
    let file = File::new(2);
    let mut store = file.open();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    let rows = (1..=5).map(|seq| crashed::row(0, seq)).collect();
    store.append(&[Batch { epoch, rows, ..Batch::default() }]).unwrap();
    store.close().unwrap();
    drop(store);
    edit(&file.path(), "DELETE FROM journal WHERE position = 5");
    let fault = file.open().open_shard(ShardId(0), "a").unwrap_err();
    assert_eq!(fault.kind, corrupt(None, 5), "{fault}");
}

/// SQ-15: a damaged envelope is reported, never obeyed.
#[test]
fn a_change_to_an_envelope_is_noticed() {
    for change in ["body = replace(body, 'begun', 'key_freed')", "number = 2", "sender = 1"] {
        let (file, _) = damaged(&format!("UPDATE envelope SET {change}"));
        let fault = file.open().read_envelopes(ShardId(1), 10).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Corrupt { .. }), "{change}");
        assert!(fault.to_string().contains("to shard 1"), "{fault}");
    }
}

/// SQ-15: one bit flipped in the closed file, all over it: every row that is read is as it was written, a row that is
/// not is reported, rows that are gone are missed, and nothing panics.
#[test]
fn a_flipped_bit_never_becomes_an_answer() {
    let (file, rows) = written();
    let path = file.path();
    let sound = fs::read(&path).unwrap();
    let (mut noticed, mut read) = (0, 0);
    for place in (0..sound.len()).step_by(127) {
        let mut bytes = sound.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, &bytes).unwrap();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let mut reader = open_read_only(&path)?;
            let found = reader.scan(ShardId(0), Seq(0), 1_000)?;
            let watermarks = reader.watermarks()?;
            let _ = reader.stats();
            let _ = reader.list(&Filter::default(), &Page::default());
            Ok::<_, Fault>((found, watermarks))
        }));
        let Ok((found, watermarks)) = answer.unwrap_or_else(|_| panic!("byte {place} makes it panic")) else {
            noticed += 1;
            continue;
        };
        let whole: Vec<&Row> = found.iter().filter_map(|row| row.as_ref().ok()).collect();
        assert!(whole.iter().all(|row| rows.contains(row)), "byte {place}");
        let missing = whole.len() < rows.len();
        let told =
            found.iter().any(Result::is_err) || watermarks.first() != Some(&(ShardId(0), Seq(whole.len() as u64)));
        assert!(!missing || told, "byte {place}: rows are gone and nobody says so");
        (noticed, read) = (noticed + u64::from(missing), read + u64::from(!missing));
    }
    assert!(noticed > 10 && read > 100, "{noticed} noticed, {read} read");
}
