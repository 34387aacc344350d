//! Every read on the engine's path is by an index: a store with millions of ended runs opens as fast as a new one.

use rusqlite::Connection;

use super::read::{CLAIMED, DUE, ENVELOPES, KEY, LINES, READY};
use super::schema;

fn plan(connection: &Connection, sql: &str) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    // Without values for its parameters, as the planner sees it.
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get::<_, String>(3).unwrap());
    }
    lines.join("\n")
}

/// SQLite uses an index with a condition only where the query repeats the condition. Without it, opening a shard
/// looked at every run there ever was.
#[test]
fn the_engine_reads_by_index() {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::migrate(&mut connection, 4).unwrap();
    let expected = [
        (CLAIMED, "run_by_status"),
        (READY, "run_by_line (shard=? AND line=? AND"),
        (LINES, "run_by_line (shard=? AND line>?)"),
        (DUE, "run_by_due"),
        (KEY, "run_by_occupies"),
        (ENVELOPES, "PRIMARY KEY (receiver=?)"),
        ("SELECT facts FROM journal WHERE position > 1 AND position < 9", "INTEGER PRIMARY KEY"),
    ];
    for (sql, index) in expected {
        let plan = plan(&connection, sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
        assert!(!plan.replace("SCAN found", "").contains("SCAN"), "{sql}\n{plan}");
    }
}
