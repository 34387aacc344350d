//! The guide for SQL: every statement of it runs against a store that an engine has open.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod crashed;

use std::process::Command;

use abide_kernel::shard::{Batch, Flush, Record};
use abide_kernel::{Fact, Facts, Rev, Row, RunId, Seq, ShardId, Slot, Status, Timestamp};
use abide_store::Store;
use crashed::File;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

const GUIDE: &str = include_str!("../../../docs/sql.md");
const ID: &str = "run_018bcfe568000000000000000000002a";

fn statements() -> Vec<&'static str> {
    let blocks = GUIDE.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().expect("a block ends")).collect()
}

fn query(connection: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(sql).expect(sql);
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect());
    rows.expect(sql).map(|row| row.expect(sql)).collect()
}

fn texts(rows: &[Vec<Value>]) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        other => format!("{other:?}"),
    };
    let line = |row: &Vec<Value>| row.iter().map(text).collect::<Vec<_>>().join(" | ");
    rows.iter().map(line).collect()
}

fn facts(json: &str) -> Facts {
    serde_json::from_str(json).unwrap()
}

/// Rows of two runs in turn: the one of the guide, in the last shard, and another.
fn rows(run: RunId) -> Vec<Row> {
    let other = RunId(run.0 + 1);
    let texts = [
        r#"[{"requeued":{"cursor":3}}]"#,
        r#"["parent_purged",{"notified":{"cursor":1,"turn":2}}]"#,
        r#"[{"expired":{"claim":4}}]"#,
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (rev, text) in (1u64..).zip(texts) {
        for (run, seq) in [(run, rev * 2 - 1), (other, rev * 2)] {
            rows.push(Row {
                seq: Seq(seq),
                run,
                rev: Rev(rev),
                prior: Seq(seq.saturating_sub(2)),
                at: Timestamp(1_700_000_000_000 + rev as i64),
                facts: if run == other { [Fact::ParentPurged].into_iter().collect() } else { facts(text) },
            });
        }
    }
    rows
}

fn record(run: RunId, head: u64, rev: u64) -> Record {
    Record {
        run,
        head: Seq(head),
        rev: Rev(rev),
        namespace: "default".into(),
        workflow: "orders".into(),
        version: 2,
        queue: "default".into(),
        status: Status::Sleeping,
        step: Some("charge".into()),
        key: None,
        occupies: None,
        parent: None,
        labels: Vec::new(),
        created_at: Timestamp(1_700_000_000_000),
        updated_at: Timestamp(1_700_000_000_002),
        due: Some(Timestamp(1_700_000_060_000)),
        ready: None,
        reservation: false,
        checkpoint: b"{}".to_vec(),
    }
}

/// The same by the tool that the guide names: it is often older than the SQLite inside the engine.
fn at_a_terminal(file: &File, sql: &str, expected: &[&str]) {
    let said = Command::new("sqlite3")
        .args(["-readonly", "-separator", " | ", "-nullvalue", "-"])
        .arg(file.path())
        .arg(sql)
        .output();
    match said {
        Ok(said) => {
            let lines = String::from_utf8_lossy(&said.stdout);
            let error = String::from_utf8_lossy(&said.stderr);
            assert_eq!(lines.lines().collect::<Vec<_>>(), expected, "{error}");
        }
        Err(_) => eprintln!("skipped: there is no sqlite3 at this terminal"),
    }
}

/// SQ-6: a run can be followed from the file alone, with any SQL tool, beside the running engine; also the part that
/// index rows do not cover yet, and all of it when there are none.
#[test]
fn the_guide_follows_a_run_while_the_engine_runs() {
    let run: RunId = ID.parse().unwrap();
    let shards = 4;
    let file = File::new(shards);
    let mut store = file.open();
    // The id of the guide belongs to the first shard; so that positions have an upper part, another run is used too.
    let late = RunId::new(Timestamp(1_700_000_000_000), Slot(4_000), 42);
    for run in [run, late] {
        let shard = store.map().home(run.slot());
        let epoch = store.open_shard(shard, "a").unwrap().epoch;
        let append = |store: &mut dyn Store, rows: &[Row]| {
            let batch = Batch { shard, epoch, rows: rows.to_vec(), ..Batch::default() };
            store.append(&[batch]).unwrap();
        };
        let rows = rows(run);
        let guide = statements()[2].replace(&ID[4..], &run.to_string()[4..]);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let beside = Connection::open_with_flags(file.path(), flags).unwrap();
        let all = [
            "1 | 2023-11-14T22:13:20.001Z | requeued | {\"cursor\":3}",
            "2 | 2023-11-14T22:13:20.002Z | parent_purged | -",
            "2 | 2023-11-14T22:13:20.002Z | notified | {\"cursor\":1,\"turn\":2}",
            "3 | 2023-11-14T22:13:20.003Z | expired | {\"claim\":4}",
        ];
        assert!(query(&beside, &guide).is_empty());
        append(&mut store, &rows[..4]);
        assert_eq!(texts(&query(&beside, &guide)), all[..3], "no index row yet");
        let flush = Flush { shard, epoch, through: Seq(4), records: vec![record(run, 3, 2)], ..Flush::default() };
        store.flush(&[flush]).unwrap();
        assert_eq!(texts(&query(&beside, &guide)), all[..3], "by its index row");
        append(&mut store, &rows[4..]);
        assert_eq!(texts(&query(&beside, &guide)), all, "with what is not covered yet");
        at_a_terminal(&file, &guide, &all);
    }
}

/// Every other statement of the guide runs, and shows ids and times as text.
#[test]
fn every_statement_of_the_guide_runs() {
    let run: RunId = ID.parse().unwrap();
    let file = File::new(1);
    let mut store = file.open();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    let flush = Flush { epoch, records: vec![record(run, 1, 1)], ..Flush::default() };
    store.flush(&[flush]).unwrap();
    let beside = Connection::open_with_flags(file.path(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let answers: Vec<Vec<String>> = statements().iter().map(|sql| texts(&query(&beside, sql))).collect();
    let listed = format!("{ID} | orders | sleeping | charge | 2023-11-14T22:13:20.002Z");
    let due = format!("{ID} | sleeping | charge | 2023-11-14T22:14:20.000Z");
    assert_eq!(answers, [vec![listed], vec!["sleeping | 1".into()], vec![], vec![due], vec![]]);
    assert!(beside.execute("DELETE FROM run", []).is_err(), "readers cannot write");
}
